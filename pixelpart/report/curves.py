"""Training curves: one small SVG per panel, in the colours of the page, so that dark mode and print work."""

import io
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from pixelpart.report.run import ReportedRun, number

MARKERS = (("o", "●"), ("s", "■"), ("^", "▲"), ("D", "◆"), ("v", "▼"), ("P", "✚"), ("X", "✖"), ("*", "★"))
COLOURS = 8  # --run-0 to --run-7 in report.css
INK = "#010203"  # replaced by the page's text colour
RUN_INK = "#0405{:02x}"  # replaced by the colours of the runs


@dataclass(frozen=True)
class Panel:
    title: str
    key: str  # field of metrics.jsonl
    about: str
    train_key: str = ""
    scale: float = 1.0
    format: Callable[[float], str] = "{:.3g}".format
    integer: bool = False


PANELS = (
    Panel("Training loss", "loss", "mean over the epoch"),
    Panel("Natural accuracy, %", "natural", "clean images", "train_natural", 100, "{:.1f} %".format),
    Panel("PGD accuracy, %", "pgd", "attacked images", "train_pgd", 100, "{:.1f} %".format),
    Panel("Robust cross-entropy", "robust_ce", "on attacked images; on held-out images it selects the best checkpoint"),
    Panel("Mean budget, in 1/255", "budget_mean", "largest change allowed, averaged over pixels", scale=255),
    Panel("Pixels with the high budget, %", "high_fraction", "pixels with eps", scale=100, format="{:.1f} %".format),
    Panel("Damage", "damage", "sum over pixels of budget × |gradient|: first-order effect of a full step on the loss"),
    Panel("Dead heat maps", "dead_cams", "images whose heat map is zero", format="{:.0f}".format, integer=True),
    Panel("Learning rate", "lr", "at the end of the epoch"),
)  # fmt: skip


@dataclass(frozen=True)
class DrawnPanel:
    title: str
    about: str
    svg: str
    last: list[tuple[int, str, str]]  # number and label of a run, its last value

    @property
    def alt(self) -> str:
        values = ", ".join(f"{label} {value}" for _, label, value in self.last)
        return f"{self.title} over epochs; last values: {values}"


def draw_panels(runs: Sequence[ReportedRun]) -> list[DrawnPanel]:
    """The panels for which at least one run recorded values."""
    if not any(run.metrics for run in runs):
        return []
    import matplotlib

    with matplotlib.rc_context():  # the user's matplotlibrc must not change the page
        matplotlib.rcdefaults()
        matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "pixelpart", "font.size": 9})
        drawn = [_draw(panel, runs) for panel in PANELS]
    return [panel for panel in drawn if panel is not None]


def burn_in(run: ReportedRun) -> int:
    """The number of finished burn-in epochs."""
    return max((row["epoch"] for row in run.metrics if row.get("phase") == "burn-in"), default=0)


def _series(run: ReportedRun, key: str, scale: float) -> tuple[list[int], list[float]]:
    pairs = [(row["epoch"], scale * number(row, key)) for row in run.metrics]
    kept = [(epoch, value) for epoch, value in pairs if math.isfinite(value)]
    return [epoch for epoch, _ in kept], [value for _, value in kept]


def _draw(panel: Panel, runs: Sequence[ReportedRun]) -> DrawnPanel | None:
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(3.7, 2.3), layout="constrained")
    axes = figure.add_subplot()
    last = []
    for place, run in enumerate(runs):
        wide = place == 0 and len(runs) > 1  # the first line stays visible below the others
        colour = RUN_INK.format(place % COLOURS)
        epochs, values = _series(run, panel.key, panel.scale)
        if values:
            axes.plot(
                epochs, values, color=colour, linewidth=2.6 if wide else 1.3, markersize=5.2 if wide else 3.4,
                marker=MARKERS[place % len(MARKERS)][0], markevery=math.ceil(len(values) / 20),
            )  # fmt: skip
            last.append((place, run.label, panel.format(values[-1])))
        if panel.train_key:
            epochs, values = _series(run, panel.train_key, panel.scale)
            axes.plot(epochs, values, color=colour, linewidth=1.9 if wide else 1.2, linestyle=(0, (2, 2)))
    if not last:
        return None
    for length in {burn_in(run) for run in runs} - {0}:
        axes.axvspan(0.5, length + 0.5, color=INK, alpha=0.09, linewidth=0)
    axes.set_xlim(0.5, max(run.epochs_done for run in runs) + 0.5)
    low, high = axes.get_ylim()
    if not any(np.any(line.get_ydata()) for line in axes.get_lines()):  # all zero: a line at the bottom
        axes.set_ylim(-0.04, 1)
    elif high - low < 1e-3 * max(abs(high), abs(low)):  # a constant: no zoom into rounding errors
        axes.set_ylim(low - 0.05 * abs(low), high + 0.05 * abs(high))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=7, min_n_ticks=1))
    steps = [1, 2, 5, 10] if panel.integer else [1, 2, 2.5, 5, 10]
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=panel.integer, steps=steps))
    axes.ticklabel_format(axis="y", useOffset=False)
    axes.grid(axis="y", color=INK, alpha=0.13, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_xlabel("epoch", color=INK)
    axes.tick_params(colors=INK, length=2.5)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(INK)
    file = io.StringIO()
    figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    return DrawnPanel(panel.title, panel.about, inline_svg(file.getvalue(), prefix=panel.key), last)


def inline_svg(svg: str, *, prefix: str) -> str:
    """A matplotlib SVG for use inside HTML: without prolog, metadata and styles, with ids unique on the page."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", svg).replace("xlink:href", "href")
    head, rest = svg.split(">", 1)
    svg = re.sub(r'\s(width|height|version)="[^"]*"', "", head) + ' aria-hidden="true" focusable="false">' + rest
    used = set(re.findall(r"#([A-Za-z][\w.-]*)\)?\"", svg)) | set(re.findall(r"url\(#([\w.-]+)\)", svg))
    svg = re.sub(r'\sid="([^"]*)"', lambda m: f' id="{prefix}-{m[1]}"' if m[1] in used else "", svg)
    svg = re.sub(r'href="#', f'href="#{prefix}-', svg)
    svg = re.sub(r"url\(#", f"url(#{prefix}-", svg)
    svg = svg.replace(INK, "currentColor")
    for place in range(COLOURS):
        svg = svg.replace(RUN_INK.format(place), f"var(--run-{place})")
    return re.sub(r"\n\s*", "\n", svg)
