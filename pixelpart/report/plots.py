"""Plots of arms: natural against robust accuracy, accuracy over eps and steps, by class, and over seeds.

A plot is drawn only if it shows more than the table: two arms in the plane, two values on a line, two seeds of an arm.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator

from pixelpart.data import SETS
from pixelpart.evaluation.compare import ABOUT_MODELS
from pixelpart.experiments.common import distances
from pixelpart.experiments.common import plots as shared
from pixelpart.experiments.common.results import Cell, accuracy_interval
from pixelpart.report.arms import ArmResults, Column, ReportedArm, uniform_arms
from pixelpart.report.drawing import drawing, marker, svg_of
from pixelpart.report.formatting import enumerate_words, fraction

MAX_LINES = 12  # arms in one plot of lines or classes
MAX_CLASSES = 20
WIDTH = 3.9  # inches


@dataclass(frozen=True)
class Plot:
    name: str
    title: str
    about: str
    svg: Markup
    alt: str


def plot_section(found: ArmResults) -> dict[str, Any]:
    """The variables of plots.html."""
    arms = [arm for arm in found.arms if any(run.values for run in found.results.runs[arm.label])]
    drawers: list[Callable[[ArmResults], list[Plot]]] = [plane, spread, over_eps, over_steps, by_class]
    with drawing():
        plots = [plot for draw in drawers for plot in draw(found)] if arms else []
    return {"plots": plots, "plot_arms": arms, "plots_about": _about(found, arms)}


def _about(found: ArmResults, arms: Sequence[ReportedArm]) -> str:
    text = f"{_capital(found.context)}."
    if len(arms) > MAX_LINES:
        text += f" Lines and classes are drawn for at most {MAX_LINES} arms, and there are {len(arms)}."
    if len(arms) > 1 and (single := [arm for arm in arms if _seeds(found, arm) == 1]):
        if len(single) < len(arms):
            text += " An arm with one seed is about that model, not about the method."
        else:
            several = "One run each: this is about these models, not about the methods."
            text += f" {ABOUT_MODELS if len(arms) == 2 else several}"
    return text


def plane(found: ArmResults) -> list[Plot]:
    """Natural against robust accuracy, with the curve of the uniform arms and its band."""
    results, robust = found.results, found.robust
    if robust is None or "natural" not in found.columns:
        return []
    shown = [arm for arm in found.arms if _values(found, arm, "natural") and _values(found, arm, robust.key)]
    if len(shown) < 2:
        return []
    uniform = uniform_arms(shown)
    figure, axes = _panel(4.4, 3.4)
    looks = {arm.label: {"color": _colour(arm), "fmt": marker(arm.place)[0]} for arm in shown}
    shared.plane(axes, results, y=robust.key, look=lambda label: looks[label], names=uniform)
    axes.set_xlabel("natural accuracy, %")
    axes.set_ylabel(f"accuracy under {robust.name}, %")
    curve = _draw_curve(axes, found, robust, list(uniform))
    means = [f"{arm.label} {_mean(found, arm, 'natural'):.1f} and {_mean(found, arm, robust.key):.1f}" for arm in shown]
    several = any(_seeds(found, arm) > 1 for arm in shown)
    about = f"A point is {'the mean over the seeds of an arm' if several else 'one run'}. "
    about += _bars(found, shown, found.columns["natural"], robust)
    title = f"Natural accuracy and accuracy under {robust.name}"
    alt = f"{title}, in %: {'; '.join(means)}"
    return [Plot("plane", title, f"{about} {curve}".strip(), svg_of(figure, prefix="plane"), alt)]


def _draw_curve(axes: Axes, found: ArmResults, robust: Column, uniform: Sequence[str]) -> str:
    """Draws the curve where all uniform arms have flags for the same images; returns what the caption says of it."""
    if not uniform:
        return ""
    runs = [run for label in uniform for run in found.results.runs[label]]
    sizes = {len(run.flags.get(key, ())) for run in runs for key in ("natural", robust.key)}
    if len(sizes) > 1 or sizes == {0}:
        return ""
    arms = [distances.study_arm(found.results, label, robust.key) for label in uniform]
    if not distances.has_curve(arms):
        return ""
    distances.draw_curve(axes, arms)
    band = "the band is its 95 % interval" if min(arm.runs for arm in arms) > 1 else "one seed an arm gives no band"
    line = "Grey line: the quadratic through the arms with one eps at every pixel (their eps is next to the point)"
    return f"{line}; {band}."


def spread(found: ArmResults) -> list[Plot]:
    """Every seed of every arm, with the arm's mean and interval."""
    if all(_seeds(found, arm) < 2 for arm in found.arms):
        return []
    plots: list[Plot] = []
    for column in _natural_and_robust(found):
        arms = [arm for arm in found.arms if _values(found, arm, column.key)]
        figure, axes = _panel(WIDTH, 0.75 + 0.4 * len(arms))
        for row, arm in enumerate(arms):
            cell = _cell(found, arm, column.key)
            assert cell is not None
            low, high = cell.interval or (cell.mean, cell.mean)
            axes.plot([low, high], [row, row], color=_colour(arm), linewidth=1.6, solid_capstyle="butt")
            axes.plot(cell.mean, row, marker(arm.place)[0], color=_colour(arm), markersize=5.5)
            axes.plot(cell.values, [row + 0.22] * len(cell.values), "|", color=_colour(arm), markersize=6)
            where = {"xycoords": ("axes fraction", "data"), "xytext": (0, 5), "textcoords": "offset points"}
            axes.annotate(_short(arm.label), (0, row), fontsize=7.5, color=shared.INK, **where)  # type: ignore[arg-type]
        axes.set_ylim(len(arms) - 0.5, -0.8)
        axes.yaxis.set_major_locator(NullLocator())
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6))
        axes.spines["left"].set_visible(False)
        axes.set_xlabel(f"{_accuracy(column)}, %")
        about = f"Strokes are seeds, markers their means. {_bars(found, arms, column)}"
        alt = f"{_accuracy(column)} by seed, in %: " + "; ".join(
            f"{arm.label} {', '.join(f'{value:.1f}' for value in _values(found, arm, column.key))}" for arm in arms
        )
        name = f"seeds-{len(plots)}"
        plots.append(Plot(name, f"{_capital(_accuracy(column))} by seed", about, svg_of(figure, prefix=name), alt))
    return plots


def over_eps(found: ArmResults) -> list[Plot]:
    """A line per arm for each attack that was run with two eps or more; natural accuracy is that at eps 0."""
    families: dict[tuple, list[Column]] = {}
    for column in found.columns.values():
        if column.bounds_pixels:
            families.setdefault((column.base, column.settings.get("step_size")), []).append(column)
    plots: list[Plot] = []
    for columns in families.values():
        natural = [found.columns["natural"]] if "natural" in found.columns else []
        numbers = {255 * column.eps: column for column in sorted([*natural, *columns], key=lambda c: c.eps)}
        title = f"Accuracy over the eps of {columns[0].name.partition(' at ')[0]}"
        about = "0 is natural accuracy." if natural else ""
        plots += _lines(
            found, numbers, name=f"eps-{len(plots)}", title=title, xlabel="eps of the attack, in 1/255", about=about,
            least=3 if natural else 2,
        )  # fmt: skip
    return plots


def over_steps(found: ArmResults) -> list[Plot]:
    """A line per arm for each attack that was run with two numbers of steps or more, at the same eps."""
    families: dict[tuple, list[tuple[int, Column]]] = {}
    for column in found.columns.values():
        if (steps := column.steps) and column.bounds_pixels:
            kind, number, restarts = steps
            families.setdefault((kind, restarts, column.eps, column.settings.get("step_size")), []).append(
                (number, column)
            )
    plots: list[Plot] = []
    for (kind, restarts, eps, _), columns in families.items():
        numbers = {float(number): column for number, column in sorted(columns, key=lambda pair: pair[0])}
        what = f"{kind.upper()}{f' with {restarts[1:]} restarts' if restarts else ''} at {fraction(eps)}"
        plots += _lines(
            found, numbers, name=f"steps-{len(plots)}", title=f"Accuracy over the steps of {what}",
            xlabel="steps of the attack", about="", least=2,
            log=max(numbers) > 12 * min(numbers),
        )  # fmt: skip
    return plots


def _lines(
    found: ArmResults,
    numbers: Mapping[float, Column],
    *,
    name: str,
    title: str,
    xlabel: str,
    about: str,
    least: int,
    log: bool = False,
) -> list[Plot]:
    cells = {
        arm.label: {x: cell for x, column in numbers.items() if (cell := _cell(found, arm, column.key))}
        for arm in found.arms
    }
    arms = [arm for arm in found.arms if len(cells[arm.label]) >= least]
    if not _is_comparison(found, arms):
        return []
    figure, axes = _panel(WIDTH, 2.7)
    for arm in arms:
        shared.series(axes, cells[arm.label], colour=_colour(arm), label=arm.label, marker=marker(arm.place)[0])
    if log:
        axes.set_xscale("log")
        axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks(list(numbers), [f"{x:g}" for x in numbers])
    axes.set_xlabel(xlabel)
    axes.set_ylabel("accuracy, %")
    values = [
        f"{arm.label} " + ", ".join(f"{cell.mean:.1f} at {x:g}" for x, cell in cells[arm.label].items()) for arm in arms
    ]
    about = f"{about} {_bars(found, arms, *numbers.values())}".strip()
    return [Plot(name, title, about, svg_of(figure, prefix=name), f"{title}, in %: {'; '.join(values)}")]


def by_class(found: ArmResults) -> list[Plot]:
    """Natural and robust accuracy of each class, the hardest under attack last; only the hardest if there are many."""
    arms = {
        column: [arm for arm in found.arms if any(column.key in run.flags for run in found.results.runs[arm.label])]
        for column in _natural_and_robust(found)
        if column.key in found.labels
    }
    arms = {column: some for column, some in arms.items() if _is_comparison(found, some)}
    if not arms:
        return []
    hardest = list(arms)[-1]
    labels = found.labels[hardest.key]
    right = [found.results.flags(arm.label, hardest.key) for arm in arms[hardest]]
    accuracy = {c: np.mean([flags[:, labels == c].mean() for flags in right]) for c in np.unique(labels).tolist()}
    order = sorted(accuracy, key=lambda c: -accuracy[c])
    if len(order) < 2:
        return []
    names = class_names(arms[hardest][0])
    shown = {c: names.get(c, f"class {c}") for c in order[-MAX_CLASSES:]}
    some = f"The {MAX_CLASSES} classes of {len(order)} with the lowest accuracy. " if len(order) > MAX_CLASSES else ""
    return [_class_plot(found, column, some_arms, shown, about=some) for column, some_arms in arms.items()]


def _class_plot(
    found: ArmResults, column: Column, arms: Sequence[ReportedArm], names: Mapping[int, str], *, about: str
) -> Plot:
    labels = found.labels[column.key]
    figure, axes = _panel(WIDTH, 0.7 + len(names) * (0.16 + 0.085 * len(arms)))
    values: dict[str, list[str]] = {}
    for place, arm in enumerate(arms):
        flags = found.results.flags(arm.label, column.key)
        for row, (c, name) in enumerate(names.items()):
            right = flags[:, labels == c]
            if not right.size:
                continue
            mean = 100 * float(right.mean())
            low, high = accuracy_interval(right) if right.shape[1] > 1 else (mean, mean)
            at = row + (place - (len(arms) - 1) / 2) * 0.75 / len(arms)
            axes.plot([max(low, 0), min(high, 100)], [at, at], color=_colour(arm), linewidth=0.9, alpha=0.6)
            axes.plot(mean, at, marker(arm.place)[0], color=_colour(arm), markersize=4)
            values.setdefault(arm.label, []).append(f"{name} {mean:.0f}")
    axes.set_yticks(range(len(names)), [_short(name, 18) for name in names.values()])
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(False, axis="y")
    for row in range(1, len(names)):
        axes.axhline(row - 0.5, color=shared.INK, alpha=0.1, linewidth=0.5)
    axes.set_xlabel(f"{_accuracy(column)}, %")
    counts = [int((labels == c).sum()) for c in names]
    n = f"{counts[0]}" if len(set(counts)) == 1 else f"{min(counts)} to {max(counts)}"
    title = f"{_capital(_accuracy(column))} by class"
    alt = f"{title}, in %: " + "; ".join(f"{label}: {', '.join(known)}" for label, known in values.items())
    about = f"{about}{_bars(found, arms, column)} A class has {n} of them."
    prefix = f"class-{'natural' if column.base == 'natural' else 'robust'}"
    return Plot(prefix, title, about, svg_of(figure, prefix=prefix), alt)


def _is_comparison(found: ArmResults, arms: Sequence[ReportedArm]) -> bool:
    """Whether these arms are enough for a plot, one only if there is no other, and not too many for it."""
    return min(2, len(found.arms)) <= len(arms) <= MAX_LINES


def class_names(arm: ReportedArm) -> dict[int, str]:
    config = arm.runs[0].config
    known = config.classes or (SETS[config.dataset].classes if config.dataset in SETS else ())
    return dict(enumerate(known))


# -- what captions say


def _bars(found: ArmResults, arms: Sequence[ReportedArm], *columns: Column) -> str:
    """What the bars are, and the number of seeds and images."""
    seeds = sorted({len(_values(found, arm, column.key)) for arm in arms for column in columns} - {0})
    over = "over images" if seeds == [1] else "over seeds and images" + " (one seed: over images)" * (seeds[0] == 1)
    number = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    images = enumerate_words([f"{n:,}" for n in dict.fromkeys(column.n for column in columns)])
    return f"Bars: 95 % intervals, {over}; {number} seed{'s' * (number != '1')} an arm; n = {images} images."


def _seeds(found: ArmResults, arm: ReportedArm) -> int:
    """The seeds of an arm that have results."""
    return sum(bool(run.values) for run in found.results.runs[arm.label])


def _accuracy(column: Column) -> str:
    return "natural accuracy" if column.base == "natural" else f"accuracy under {column.name}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _short(text: str, most: int = 52) -> str:
    """The text without its middle if it is long: names of arms often differ at the end only."""
    start = most // 2
    return text if len(text) <= most else f"{text[:start]}…{text[start + 1 - most :]}"


# -- results and axes


def _cell(found: ArmResults, arm: ReportedArm, key: str) -> Cell | None:
    return found.results.cell(arm.label, key)


def _values(found: ArmResults, arm: ReportedArm, key: str) -> list[float]:
    cell = _cell(found, arm, key)
    return cell.values if cell else []


def _mean(found: ArmResults, arm: ReportedArm, key: str) -> float:
    cell = _cell(found, arm, key)
    assert cell is not None
    return cell.mean


def _natural_and_robust(found: ArmResults) -> list[Column]:
    robust = found.robust
    return [*([found.columns["natural"]] if "natural" in found.columns else []), *([robust] if robust else [])]


def _colour(arm: ReportedArm) -> str:
    return shared.COLOURS[arm.colour]


def _panel(width: float, height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    shared.calm(axes)
    return figure, axes
