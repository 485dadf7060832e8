import re
import subprocess
import sys

import matplotlib

from pixelpart.report.curves import burn_in, draw_all
from pixelpart.report.reading import read_run, read_runs


def test_matplotlibs_settings_are_given_back(make_run, monkeypatch):
    monkeypatch.setitem(matplotlib.rcParams, "lines.linewidth", 7.5)
    before = dict(matplotlib.rcParams)
    draw_all([read_run(make_run())])
    assert dict(matplotlib.rcParams) == before


def test_importing_the_report_imports_no_matplotlib_and_drawing_no_pyplot(make_run):
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
    panels = {panel.title: panel for panel in draw_all(read_runs([make_run("a", metrics=rows)]))}
    assert panels["Natural accuracy, %"].last == [(0, "a", "43.2 %")]
    assert panels["Mean budget, in 1/255"].alt == "Mean budget, in 1/255 over epochs; last values: a 7.25"


def test_the_curve_goes_through_its_points_in_order(make_run, metrics_row):
    """y grows downwards in SVG: a rising series falls there, evenly for even steps."""
    rows = [metrics_row(epoch, lr=epoch / 10) for epoch in (1, 2, 3)]
    svg = next(panel.svg for panel in draw_all([read_run(make_run(metrics=rows))]) if panel.title == "Learning rate")
    path = re.search(r'd="([^"]*)"\s+clip-path="[^"]*"\s+style="fill: none; stroke: var\(--run-0\)', svg)[1]
    points = [tuple(map(float, pair)) for pair in re.findall(r"([\d.]+) ([\d.]+)", path)]
    (x1, y1), (x2, y2), (x3, y3) = points
    assert abs((x2 - x1) - (x3 - x2)) < 1e-3
    assert abs((y2 - y1) - (y3 - y2)) < 1e-3
    assert y1 > y2 > y3


def test_values_that_are_missing_or_not_finite_leave_a_gap_and_no_crash(make_run, metrics_row):
    rows = [
        metrics_row(1, loss=float("nan"), damage=None),
        metrics_row(2, loss=float("inf"), damage=None),
        metrics_row(3, damage=None),
    ]
    titles = {panel.title: panel.last for panel in draw_all(read_runs([make_run("a", metrics=rows)]))}
    assert "Damage" not in titles
    assert titles["Training loss"] == [(0, "a", "0.667")]


def test_burn_in_is_counted_from_the_rows_and_shaded(make_run, metrics_row):
    plain = read_run(make_run("at", metrics=[metrics_row(1)]))
    masked = read_run(make_run("part"))
    assert (burn_in(plain), burn_in(masked)) == (0, 1)
    shades = [sum("opacity: 0.09" in panel.svg for panel in draw_all(runs)) for runs in ([plain], [masked, plain])]
    assert shades == [0, len(draw_all([masked]))]


def test_no_metrics_no_panels(make_run):
    assert draw_all([read_run(make_run(metrics=None))]) == []


def test_only_a_line_of_zeros_is_drawn_on_a_unit_axis(make_run, metrics_row):
    rows = [metrics_row(epoch, lr=0.2 - 0.1 * epoch) for epoch in (1, 2)]
    ticks = {}
    for panel in draw_all([read_run(make_run(metrics=rows))]):
        texts = re.findall(r"<text[^>]*>([^<]*)</text>", panel.svg)
        ticks[panel.title] = [float(text) for text in texts[texts.index("epoch") + 1 :]]
    assert ticks["Dead heat maps"] == [0, 1]
    assert max(ticks["Learning rate"]) == 0.1
