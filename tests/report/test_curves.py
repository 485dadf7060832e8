import subprocess
import sys

import pytest

from pixelpart import recipes
from pixelpart.report import curves
from pixelpart.report.curves import draw_panels
from pixelpart.report.run import read_runs

pytestmark = pytest.mark.usefixtures("all_panels")


def draw(*folders):
    return {panel.title: panel for panel in draw_panels(read_runs(folders))}


def last(panel):
    return [(run.label, value) for run, value in panel.last]


def test_report_imports_matplotlib_late_and_never_pyplot_or_the_engine(make_run):
    code = f"""if True:
        import sys
        from pathlib import Path
        from pixelpart.report import write_report
        assert "matplotlib" not in sys.modules
        write_report([Path({str(make_run())!r})], Path({str(make_run("other"))!r}) / "r.html")
        assert "matplotlib.pyplot" not in sys.modules
        assert not any(name.startswith("pixelpart.engine") for name in sys.modules)
    """
    subprocess.run([sys.executable, "-c", code], check=True)


def test_last_values_are_those_of_the_last_epoch(make_run, metrics_row):
    rows = [metrics_row(1, natural=0.2), metrics_row(2, natural=0.4321, budget_mean=7.25 / 255)]
    panels = draw(make_run("a", metrics=rows))
    assert last(panels["Natural accuracy, %"]) == [("a", "43.2 %")]
    assert panels["Mean budget, in 1/255"].alt == "Mean budget, in 1/255 over epochs; last values: a 7.25"


def test_corrupt_rows_and_non_finite_values_are_left_out(make_run, metrics_row):
    rows = [metrics_row(epoch, damage=float("nan")) for epoch in (1, 2, 3)]
    panels = draw(make_run("a", metrics=[*rows, metrics_row(4, natural=9.07, damage=0.5)]))
    assert "Damage" not in panels
    assert last(panels["Training loss"]) == [("a", "0.667")]
    assert last(panels["Natural accuracy, %"]) == [("a", "50.0 %")]
    assert draw(make_run("b", metrics=None)) == {}


def test_runs_share_a_panel_of_pgd_only_at_the_same_eps_and_without_an_attack_have_none(make_run):
    eps = {"plain": 0, "weak": "4/255", "at": "8/255", "also": "8/255"}
    panels = draw(*(make_run(name, config=recipes.shapes_at(eps=value)) for name, value in eps.items()))
    for name in ("PGD accuracy at eps {}, %", "Robust cross-entropy at eps {}"):
        found = {at: [run.label for run, _ in panels[name.format(at)].last] for at in ("4/255", "8/255")}
        assert found == {"4/255": ["weak"], "8/255": ["at", "also"]}
    assert not any("eps 0" in title for title in panels)
    assert len(panels["Natural accuracy, %"].last) == 4


def test_an_axis_in_percent_ends_at_100(make_run, metrics_row, monkeypatch):
    tops = []
    monkeypatch.setattr(curves, "svg_of", lambda figure, prefix: tops.append(figure.axes[0].get_ylim()[1]))
    rows = [metrics_row(1, natural=0.96, train_natural=0.97), metrics_row(2, natural=0.99, train_natural=1.0)]
    draw(make_run("a", metrics=rows))
    assert tops[1] == 100


def test_burn_in_is_shaded(make_run, metrics_row):
    plain, masked = make_run("at", metrics=[metrics_row(1)]), make_run("part")
    assert [run.burn_in for run in read_runs([plain, masked])] == [0, 1]
    shaded = [["opacity: 0.09" in panel.svg for panel in draw(folder).values()] for folder in (plain, masked)]
    assert (any(shaded[0]), all(shaded[1])) == (False, True)
