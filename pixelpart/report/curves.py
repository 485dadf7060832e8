"""Training curves: one small SVG per panel."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from markupsafe import Markup
from matplotlib.ticker import MaxNLocator

from pixelpart.experiments.common.plots import INK
from pixelpart.report.drawing import colour_of, drawing, new_axes, svg_of
from pixelpart.report.formatting import enumerate_words, fraction
from pixelpart.report.run import ReportedRun


@dataclass(frozen=True)
class Panel:
    title: str  # with {eps}: runs are measured at their own eps, so that there is a panel for each
    key: str  # field of metrics.jsonl
    about: str
    train_key: str = ""
    scale: float = 1.0
    format: Callable[[float], str] = "{:.3g}".format
    integer: bool = False


PANELS = (
    Panel("Training loss", "loss", "mean over the epoch"),
    Panel("Natural accuracy, %", "natural", "clean images", "train_natural", 100, "{:.1f} %".format),
    Panel("PGD accuracy at eps {eps}, %", "pgd", "attacked images", "train_pgd", 100, "{:.1f} %".format),
    Panel(
        "Robust cross-entropy at eps {eps}", "robust_ce",
        "on attacked images; on held-out images it selects the best checkpoint",
    ),
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
    last: list[tuple[ReportedRun, str]]  # the last value of each run

    @property
    def alt(self) -> str:
        values = ", ".join(f"{run.label} {value}" for run, value in self.last)
        return f"{self.title} over epochs; last values: {values}"


def draw_panels(runs: Sequence[ReportedRun]) -> list[DrawnPanel]:
    """The panels for which at least one run recorded values."""
    if not any(run.metrics for run in runs):
        return []
    with drawing():
        parts = [part for panel in PANELS for part in _by_eps(panel, runs)]
        drawn = [_draw(*part, prefix=f"panel-{number}") for number, part in enumerate(parts)]
    return [panel for panel in drawn if panel is not None]


def _by_eps(panel: Panel, runs: Sequence[ReportedRun]) -> list[tuple[Panel, Sequence[ReportedRun]]]:
    """The panel with the runs that it shows; where runs are measured at their own eps, a panel for each eps above 0."""
    if "{eps}" not in panel.title:
        return [(panel, runs)]
    return [
        (replace(panel, title=panel.title.format(eps=fraction(eps))), [run for run in runs if run.config.eps == eps])
        for eps in sorted({run.config.eps for run in runs} - {0})
    ]


def measured_on(runs: Sequence[ReportedRun]) -> str:
    """The images of the solid lines."""
    kinds: dict[str, list[str]] = {}
    for run in runs:
        for kind in dict.fromkeys(row["measured_on"] for row in run.metrics):
            kinds.setdefault(kind, []).append(run.label)
    if len(kinds) < 2:
        return f"{next(iter(kinds), 'held-out')} images"
    return " and ".join(f"{kind} images ({enumerate_words(labels)})" for kind, labels in kinds.items())


def _series(run: ReportedRun, key: str, scale: float) -> tuple[list[int], list[float]]:
    rows = [row for row in run.metrics if math.isfinite(row[key])]
    return [row["epoch"] for row in rows], [scale * row[key] for row in rows]


def _draw(panel: Panel, runs: Sequence[ReportedRun], *, prefix: str) -> DrawnPanel | None:
    figure, axes = new_axes(3.7, 2.3)
    last = []
    distinct = len({run.place for run in runs}) == len(runs) > 1
    for run in runs:
        wide = distinct and run is runs[0]  # the first line stays visible below the others
        colour = colour_of(run)
        epochs, values = _series(run, panel.key, panel.scale)
        if values:
            axes.plot(
                epochs, values, color=colour, linewidth=2.6 if wide else 1.3, markersize=5.2 if wide else 3.4,
                marker=run.marker, markevery=math.ceil(len(values) / 20), clip_on=False,
            )  # fmt: skip
            last.append((run, panel.format(values[-1])))
        if panel.train_key:
            epochs, values = _series(run, panel.train_key, panel.scale)
            axes.plot(
                epochs, values, color=colour, linewidth=1.9 if wide else 1.2, linestyle=(0, (2, 2)), clip_on=False
            )
    if not last:
        return None
    for length in {run.burn_in for run in runs} - {0}:
        axes.axvspan(0.5, length + 0.5, color=INK, alpha=0.09, linewidth=0)
    axes.set_xlim(0.5, max(run.epochs_done for run in runs) + 0.5)
    low, high = axes.get_ylim()
    if not any(np.any(line.get_ydata()) for line in axes.get_lines()):  # all zero: a line at the bottom
        axes.set_ylim(-0.04, 1)
    elif high - low < 1e-3 * max(abs(high), abs(low)):  # a constant: no zoom into rounding errors
        axes.set_ylim(low - 0.05 * abs(low), high + 0.05 * abs(high))
    if panel.scale == 100:  # percent
        axes.set_ylim(top=min(axes.get_ylim()[1], 100))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=7, min_n_ticks=1))
    steps = [1, 2, 5, 10] if panel.integer else [1, 2, 2.5, 5, 10]
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=panel.integer, steps=steps))
    axes.ticklabel_format(axis="y", useOffset=False)
    axes.grid(False, axis="x")
    axes.set_xlabel("epoch")
    return DrawnPanel(panel.title, panel.about, svg_of(figure, prefix=prefix), last)
