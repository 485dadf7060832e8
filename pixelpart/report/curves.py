"""Training curves: one small SVG per panel."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from pixelpart.report.drawing import COLOURS, drawing, marker, svg_of
from pixelpart.report.formatting import enumerate_words
from pixelpart.report.run import ReportedRun, number


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
    svg: Markup
    last: list[tuple[int, str, str]]  # number and label of a run, its last value

    @property
    def alt(self) -> str:
        values = ", ".join(f"{label} {value}" for _, label, value in self.last)
        return f"{self.title} over epochs; last values: {values}"


def draw_panels(runs: Sequence[ReportedRun], places: Sequence[int] | None = None) -> list[DrawnPanel]:
    """The panels for which at least one run recorded values; `places` choose the colours and markers of the runs."""
    if not any(run.metrics for run in runs):
        return []
    with drawing():
        drawn = [_draw(panel, runs, places or range(len(runs))) for panel in PANELS]
    return [panel for panel in drawn if panel is not None]


def burn_in(run: ReportedRun) -> int:
    """The number of finished burn-in epochs."""
    return max((row["epoch"] for row in run.metrics if row.get("phase") == "burn-in"), default=0)


def measured_on(runs: Sequence[ReportedRun]) -> str:
    """The images of the solid lines."""
    kinds: dict[str, list[str]] = {}
    for run in runs:
        for kind in dict.fromkeys(str(row["measured_on"]) for row in run.metrics if row.get("measured_on")):
            kinds.setdefault(kind, []).append(run.label)
    if len(kinds) < 2:
        return f"{next(iter(kinds), 'held-out')} images"
    return " and ".join(f"{kind} images ({enumerate_words(labels)})" for kind, labels in kinds.items())


def _series(run: ReportedRun, key: str, scale: float) -> tuple[list[int], list[float]]:
    pairs = [(row["epoch"], scale * number(row, key)) for row in run.metrics]
    kept = [(epoch, value) for epoch, value in pairs if math.isfinite(value)]
    return [epoch for epoch, _ in kept], [value for _, value in kept]


def _draw(panel: Panel, runs: Sequence[ReportedRun], places: Sequence[int]) -> DrawnPanel | None:
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    from pixelpart.experiments.common import plots

    figure = Figure(figsize=(3.7, 2.3), layout="constrained")
    axes = figure.add_subplot()
    last = []
    for number_of_run, (place, run) in enumerate(zip(places, runs, strict=True)):
        wide = number_of_run == 0 and len(set(places)) == len(runs) > 1  # the first line stays visible below the others
        colour = plots.COLOURS[place % COLOURS]
        epochs, values = _series(run, panel.key, panel.scale)
        if values:
            axes.plot(
                epochs, values, color=colour, linewidth=2.6 if wide else 1.3, markersize=5.2 if wide else 3.4,
                marker=marker(place)[0], markevery=math.ceil(len(values) / 20),
            )  # fmt: skip
            last.append((number_of_run, run.label, panel.format(values[-1])))
        if panel.train_key:
            epochs, values = _series(run, panel.train_key, panel.scale)
            axes.plot(epochs, values, color=colour, linewidth=1.9 if wide else 1.2, linestyle=(0, (2, 2)))
    if not last:
        return None
    for length in {burn_in(run) for run in runs} - {0}:
        axes.axvspan(0.5, length + 0.5, color=plots.INK, alpha=0.09, linewidth=0)
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
    axes.grid(axis="y", color=plots.INK, alpha=0.13, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_xlabel("epoch", color=plots.INK)
    axes.tick_params(colors=plots.INK, length=2.5)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(plots.INK)
    return DrawnPanel(panel.title, panel.about, svg_of(figure, prefix=panel.key), last)
