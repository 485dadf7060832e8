"""The plots that experiments share: values with intervals, lines over a number, points in the plane."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from statistics import median
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from pixelpart.experiments.common.results import Cell, Results, shown_name
from pixelpart.sweeps.table import describe_conditions

COLOURS = ("#1f5fa8", "#b8480f", "#0d7468", "#7a3fb0", "#86650a", "#b02568", "#4b721b", "#55606e")
INK, FAINT = "#222222", "#8a8f98"
UNITS = {
    "|g| on object": "|g| on object, over area",
    "after PGD-10": "after PGD-10, over area",
    "s/epoch": "seconds an epoch",
    "memory": "memory, MiB",
}
MARKERS = ("o", "^", "D", "v")


@contextmanager
def style() -> Iterator[None]:
    """The user's matplotlibrc does not change our figures."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update({"font.size": 9, "axes.titlesize": 9, "axes.edgecolor": FAINT, "text.color": INK})
        yield


def panels(
    n: int, *, width: float = 3.2, height: float = 2.8, title: str = "", **settings: Any
) -> tuple[Figure, list[Axes]]:
    """A figure with n calm panels next to each other."""
    figure = Figure(figsize=(width * n, height), layout="constrained")
    axes = figure.subplots(1, n, squeeze=False, **settings)[0]
    for one in axes:
        calm(one)
    if title:
        figure.suptitle(title, fontsize=9.5, x=0.01, ha="left")
    return figure, list(axes)


def calm(axes: Axes) -> None:
    axes.grid(color=INK, alpha=0.13, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(length=2.5, colors=INK)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))


def heading(results: Results, *, intervals: bool = True) -> str:
    """Title, scale, seeds and what the intervals are over; on a line below, the attacks' eps and the images."""
    what = results.number[:1].upper() + results.number[1:] + ": " if results.number != "-" else ""
    where = {"demo": f"demo scale ({results.data}, few epochs)", "paper": results.data}[results.scale]
    seeds = {len(runs) for runs in results.runs.values() if runs} or {0}
    several = " to ".join(str(n) for n in sorted({min(seeds), max(seeds)}))
    over = f", 95 % intervals over {_intervals_over(results, seeds)}" if intervals else ""
    runs = f"{where}, {several} seed{'s' * (several != '1')}{over}"
    about = describe_conditions(results.columns, results.sizes, split=results.split)
    return "\n".join(filter(None, [f"{what}{results.title}", runs, about]))


def _intervals_over(results: Results, seeds: set[int]) -> str:
    if seeds == {1}:
        return "images"
    if 1 in seeds:
        return "images, and over seeds where there are several"
    return "seeds, of accuracies also over images" if UNITS.keys() & {*results.columns} else "seeds and images"


def colour(results: Results, arm: str) -> str:
    """One colour for a baseline and all arms that are compared with it."""
    base = dict(reversed(results.baselines))
    groups = list(dict.fromkeys(base.get(one, one) for one in results.arms))
    return COLOURS[groups.index(base.get(arm, arm)) % len(COLOURS)]


def is_baseline(results: Results, arm: str) -> bool:
    """Whether other arms are compared with it, and it with none."""
    return arm not in {one for one, _ in results.baselines} and bool(results.baselines)


def intervals(
    results: Results, columns: Sequence[str] | None = None, *, filled: Callable[[str], bool] | None = None
) -> Figure:
    """A panel per column, a row per arm: ours with its interval, the paper's number as a hollow diamond.

    Arms are hollow that others are compared with; or one colour is used, and `filled` says which are not hollow.
    """
    columns = list(columns or results.columns)
    with style():
        height = 1.1 + 0.27 * len(results.arms)
        cells = [results.cell(arm, column) for arm in results.arms for column in columns]
        title = heading(results, intervals=any(cell and cell.interval for cell in cells))
        figure, axes = panels(len(columns), width=2.5, height=height, title=title, sharey=True)
        for one, column in zip(axes, columns, strict=True):
            for row, arm in enumerate(results.arms):
                if (cell := results.cell(arm, column)) is not None:
                    hue = COLOURS[0] if filled else colour(results, arm)
                    hollow = not filled(arm) if filled else is_baseline(results, arm)
                    _row(one, row, cell, hue, hollow=hollow, paper=results.scale == "paper")
            unit = "points" if " - " in column else "%"
            one.set_title(UNITS.get(column, f"{shown_name(column)}, {unit}"))
            one.xaxis.set_major_locator(MaxNLocator(nbins=5))
            one.set_ylim(len(results.arms) - 0.5, -0.5)
        axes[0].set_yticks(range(len(results.arms)), results.arms)
        _paper_legend(axes[-1], results)
        return figure


def _row(axes: Axes, row: int, cell: Cell, colour: str, *, hollow: bool, paper: bool) -> None:
    if not math.isnan(cell.mean):
        low, high = cell.interval or (cell.mean, cell.mean)
        axes.plot([low, high], [row, row], color=colour, linewidth=1.6, solid_capstyle="butt")
        axes.plot(cell.mean, row, "o", color=colour, markersize=5, markerfacecolor=colour if not hollow else "white")
        if len(cell.values) > 1:
            axes.plot(cell.values, [row + 0.22] * len(cell.values), "|", color=colour, markersize=4, alpha=0.7)
    if cell.paper and paper:
        axes.plot(cell.paper[0], row, "D", color=FAINT, markersize=5, markerfacecolor="none")


def _paper_legend(axes: Axes, results: Results) -> None:
    if results.scale == "paper" and results.paper:
        axes.plot([], [], "D", color=FAINT, markersize=5, markerfacecolor="none", label="paper")
        axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))


def lines(results: Results, panels_of: Mapping[str, Mapping[int, str]], *, xlabel: str) -> Figure:
    """A line per arm over a number; `panels_of` has the column of each number, for every panel's title."""
    with style():
        title = heading(results, intervals=results.scale == "paper")
        figure, axes = panels(len(panels_of), width=3.6 if len(panels_of) > 1 else 5.0, height=3.3, title=title)
        for one, (title, columns) in zip(axes, panels_of.items(), strict=True):
            for arm in results.arms:
                line(one, results, arm, {x: results.cell(arm, column) for x, column in columns.items()})
            one.set_title(title)
            one.set_xticks(list(columns))
            one.set_xlabel(xlabel)
        axes[0].set_ylabel("accuracy, %")
        axes[-1].legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
        return figure


def line(axes: Axes, results: Results, arm: str, cells: Mapping[int, Cell | None]) -> None:
    """An arm, dashed where it is a baseline; at paper scale its interval as a band, the paper's as hollow diamonds."""
    known = {x: cell for x, cell in cells.items() if cell is not None and not math.isnan(cell.mean)}
    hue = colour(results, arm)
    dash = (0, (4, 2)) if is_baseline(results, arm) else "-"
    axes.plot(
        list(known), [cell.mean for cell in known.values()], color=hue, linestyle=dash, marker="o", markersize=3.5,
        linewidth=1.4, label=arm,
    )  # fmt: skip
    bands = {x: cell.interval for x, cell in known.items() if cell.interval}
    if bands and results.scale == "paper":
        low, high = zip(*bands.values(), strict=True)
        axes.fill_between(list(bands), low, high, color=hue, alpha=0.1, linewidth=0)
    papers = {x: cell.paper[0] for x, cell in cells.items() if cell is not None and cell.paper}
    if papers and results.scale == "paper":
        axes.plot(list(papers), list(papers.values()), "D", color=hue, markersize=4, markerfacecolor="none")


def plane(
    axes: Axes, results: Results, *, y: str, styles: Mapping[str, dict[str, Any]], names: Mapping[str, str],
    runs: bool = False,
) -> None:  # fmt: skip
    """Each arm as a point with its error, natural against robust accuracy; `names` are written next to their arms.

    With `runs`, a dot for every run takes the place of the error.
    """
    shown = []
    for arm in results.arms:
        across, up = results.cell(arm, "natural"), results.cell(arm, y)
        if across and up and across.values and up.values:
            shown.append((across, up))
            if runs:
                axes.plot(
                    across.values, up.values, ".", color=styles[arm]["color"], markersize=4, alpha=0.5, linewidth=0
                )
            axes.errorbar(
                across.mean, up.mean, markersize=5, elinewidth=0.8, alpha=0.95, **styles[arm],
                xerr=None if runs else _errors(across), yerr=None if runs else _errors(up),
            )  # fmt: skip
            if arm in names:
                above = sum(one in names for one in results.arms[: results.arms.index(arm)]) % 2 == 0
                where = {"xytext": (4, 5 if above else -12), "textcoords": "offset points"}
                axes.annotate(names[arm], (across.mean, up.mean), fontsize=8, color=INK, **where)  # type: ignore[arg-type]
    if shown and not runs:
        axes.set_xlim(_limits([across for across, _ in shown]))
        axes.set_ylim(_limits([up for _, up in shown]))
    axes.set_xlabel("natural accuracy, %")
    axes.set_ylabel(f"{shown_name(y)} accuracy, %")


def _limits(cells: Sequence[Cell]) -> tuple[float, float]:
    """The range of the means and of most intervals; with two seeds a few intervals can be far wider than all else."""
    means = [cell.mean for cell in cells]
    widths = [(cell.interval[1] - cell.interval[0]) / 2 for cell in cells if cell.interval]
    spread = max(max(means) - min(means), 1.0)
    margin = max(0.15 * spread, min(1.2 * median(widths), max(1.5 * spread, 15.0)) if widths else 0.0)
    return max(min(means) - margin, -1.0), min(max(means) + margin, 101.0)


def point(results: Results, arm: str, first: Sequence[str]) -> dict[str, Any]:
    """Colour and marker of an arm; the arms in `first` are grey squares."""
    others = [one for one in results.arms if one not in first]
    if arm in first:
        return {"color": FAINT, "fmt": "s"}
    place = others.index(arm)
    return {"color": COLOURS[place % len(COLOURS)], "fmt": MARKERS[place // len(COLOURS) % len(MARKERS)]}


def _errors(cell: Cell) -> list[list[float]] | None:
    return [[cell.mean - cell.interval[0]], [cell.interval[1] - cell.mean]] if cell.interval else None


def series(
    axes: Axes,
    cells: Mapping[int, Cell | None] | Mapping[float, Cell | None],
    *,
    colour: str,
    label: str,
    dashed: bool = False,
    marker: str = "o",
) -> None:
    """Means over a number, each with its interval as a thin bar."""
    known = {x: cell for x, cell in cells.items() if cell is not None and cell.values}
    style = (0, (4, 2)) if dashed else "-"
    means = [cell.mean for cell in known.values()]
    axes.plot(
        list(known), means, color=colour, marker=marker, markersize=4, linewidth=1.4, linestyle=style, label=label
    )
    for x, cell in known.items():
        if cell.interval:
            axes.plot([x, x], cell.interval, color=colour, linewidth=0.9, alpha=0.5)
