import subprocess
import sys

import pytest

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


def test_burn_in_is_shaded(make_run, metrics_row):
    plain, masked = make_run("at", metrics=[metrics_row(1)]), make_run("part")
    assert [run.burn_in for run in read_runs([plain, masked])] == [0, 1]
    shaded = [["opacity: 0.09" in panel.svg for panel in draw(folder).values()] for folder in (plain, masked)]
    assert (any(shaded[0]), all(shaded[1])) == (False, True)
