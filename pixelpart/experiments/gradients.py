"""Appendix H.3: the five behaviours of obfuscated gradients, for PART and, next to it, for AT."""

from textwrap import fill

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pixelpart.experiments.common import paper, plots
from pixelpart.experiments.common.experiment import Experiment, Runner
from pixelpart.experiments.common.measures import GROWING
from pixelpart.experiments.common.results import Results, shown_name
from pixelpart.experiments.common.scales import Scale
from pixelpart.experiments.common.tables import Table

COLUMNS = (
    "natural", "pgd1", "one step", "pgd20", "transfer", "unbounded", "random only", *GROWING.values(),
)  # fmt: skip


def analyse(results: Results, runner: Runner) -> list[Table]:
    """The verdicts, also of behaviours on which the check is stricter than the numbers above."""
    found = [
        (arm, run.measures["gradients"])
        for arm, runs in results.runs.items()
        for run in runs
        if "gradients" in run.measures
    ]
    rows = [[arm, one["verdict"], ", ".join(one["suspicious"])] for arm, one in found]
    return [Table("Verdicts of pixelpart check", ["arm", "verdict", "suspicious"], rows)] if rows else []


def plot(results: Results) -> Figure:
    with plots.style():
        figure, (axes,) = plots.panels(1, width=8.5, height=3.4, title=plots.heading(results))
        _bars(axes, results)
        return figure


def _bars(axes: Axes, results: Results) -> None:
    """Grouped bars, a group per column and a bar per arm; the paper's numbers as diamonds at paper scale."""
    width = 0.8 / len(results.arms)
    for place, arm in enumerate(results.arms):
        for x, column in enumerate(COLUMNS):
            cell, at = results.cell(arm, column), x + (place - (len(results.arms) - 1) / 2) * width
            if cell is None:
                continue
            if cell.values:
                axes.bar(at, cell.mean, width, color=plots.COLOURS[place], label=arm if x == 0 else None)
                low, high = cell.interval or (cell.mean, cell.mean)
                axes.plot([at, at], [low, high], color=plots.INK, linewidth=0.8)
                axes.annotate(f"{cell.mean:.1f}", (at, high), ha="center", va="bottom", fontsize=7)
            if cell.paper and results.scale == "paper":
                axes.plot(at, cell.paper[0], "D", color=plots.INK, markersize=4, markerfacecolor="none")
    axes.set_xticks(range(len(COLUMNS)), [fill(shown_name(column), 9) for column in COLUMNS])
    axes.set_ylabel("accuracy or share broken, %")
    axes.grid(False, axis="x")
    axes.legend(frameon=False, fontsize=8)


EXPERIMENT = Experiment(
    arms=Scale.at_and_part,
    attacks=("natural", "pgd1", "pgd20"),
    measures=("pixelpart.experiments.common.measures:gradients",),
    columns=lambda scale: COLUMNS,
    paper=lambda scale: paper.GRADIENTS,
    analyse=analyse,
    plot=plot,
    notes=(
        "one step: FGSM at eps; the paper's PGD-1, one step of 2/255, is in the column pgd1.",
        "transfer: PGD-20 through the other arm's run of the same seed. random only: images that 100 random points of "
        "the ball break and PGD-20 does not, in %. eps: PGD-20 with steps in proportion to eps.",
    ),
)
