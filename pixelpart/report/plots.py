"""Plots of arms: natural against robust accuracy, by seed, by class, and over the eps and the steps of attacks.

A plot is drawn only if it shows more than the table: two arms in the plane, two values on a line, two seeds of an arm.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, NullLocator

from pixelpart.comparison.compare import ABOUT_MODELS
from pixelpart.data import classes_of
from pixelpart.evaluation.statistics import accuracy_interval
from pixelpart.experiments.common import distances
from pixelpart.experiments.common import plots as shared
from pixelpart.report.arms import ArmResults, Column, ReportedArm, uniform_arms
from pixelpart.report.drawing import (
    MAX_LINES,
    WIDTH,
    Plot,
    bars_caption,
    colour_of,
    drawing,
    is_comparison,
    new_axes,
    svg_of,
)
from pixelpart.report.formatting import capital, fraction, short
from pixelpart.report.run import step_size_of

MAX_CLASSES = 20


def plot_section(measured: ArmResults) -> dict[str, Any]:
    """The variables of plots.html."""
    arms = [arm for arm in measured.arms if any(run.values for run in measured.results.runs[arm.label])]
    drawers: list[Callable[[ArmResults], list[Plot]]] = [plane, spread, over_eps, over_steps, by_class]
    with drawing():
        plots = [plot for draw in drawers for plot in draw(measured)] if arms else []
    return {"plots": plots, "plot_arms": arms, "plots_about": _about(measured, arms)}


def _about(measured: ArmResults, arms: Sequence[ReportedArm]) -> str:
    text = f"{capital(measured.context)}."
    if len(arms) > MAX_LINES:
        text += f" Lines and classes are drawn for at most {MAX_LINES} arms, and there are {len(arms)}."
    if len(arms) > 1 and (single := [arm for arm in arms if measured.seeds(arm) == 1]):
        if len(single) < len(arms):
            text += " An arm with one seed is about that model, not about the method."
        else:
            several = "One run each: this is about these models, not about the methods."
            text += f" {ABOUT_MODELS if len(arms) == 2 else several}"
    return text


def plane(measured: ArmResults) -> list[Plot]:
    """Natural against robust accuracy, with the curve of the uniform arms and its band."""
    natural, robust = measured.natural, measured.robust
    if robust is None or natural is None:
        return []
    cells = {arm: (measured.cell(arm, natural), measured.cell(arm, robust)) for arm in measured.arms}
    means = {arm: (clean.mean, attacked.mean) for arm, (clean, attacked) in cells.items() if clean and attacked}
    if len(means) < 2:
        return []
    shown = list(means)
    uniform = uniform_arms(shown)
    figure, axes = new_axes(4.4, 3.4)
    styles = {arm.label: {"color": colour_of(arm), "fmt": arm.marker} for arm in shown}
    shared.plane(axes, measured.results, y=robust.key, styles=styles, names=uniform)
    axes.set_xlabel("natural accuracy, %")
    axes.set_ylabel(f"accuracy under {robust.name}, %")
    curve = _draw_curve(axes, measured, robust, list(uniform))
    several = any(measured.seeds(arm) > 1 for arm in shown)
    about = f"A point is {'the mean over the seeds of an arm' if several else 'one run'}. "
    about += bars_caption(measured, shown, natural, robust)
    title = f"Natural accuracy and accuracy under {robust.name}"
    values = (f"{arm.label} {clean:.1f} and {attacked:.1f}" for arm, (clean, attacked) in means.items())
    alt = f"{title}, in %: {'; '.join(values)}"
    return [Plot("plane", title, f"{about} {curve}".strip(), svg_of(figure, prefix="plane"), alt)]


def _draw_curve(axes: Axes, measured: ArmResults, robust: Column, uniform: Sequence[str]) -> str:
    """Draws the curve where all uniform arms have flags for the same images; returns what the caption says of it."""
    if not uniform:
        return ""
    runs = [run for label in uniform for run in measured.results.runs[label]]
    sizes = {len(run.flags.get(key, ())) for run in runs for key in ("natural", robust.key)}
    if len(sizes) > 1 or sizes == {0}:
        return ""
    arms = [distances.study_arm(measured.results, label, robust.key) for label in uniform]
    if not distances.has_curve(arms):
        return ""
    distances.draw_curve(axes, arms)
    band = "the band is its 95 % interval" if min(arm.runs for arm in arms) > 1 else "one seed an arm gives no band"
    line = "Grey line: the quadratic through the arms with one eps at every pixel (their eps is next to the point)"
    return f"{line}; {band}."


def spread(measured: ArmResults) -> list[Plot]:
    """Every seed of every arm, with the arm's mean and interval."""
    if all(measured.seeds(arm) < 2 for arm in measured.arms):
        return []
    plots: list[Plot] = []
    for column in (measured.natural, measured.robust):
        if column is None:
            continue
        arms = {arm: cell for arm in measured.arms if (cell := measured.cell(arm, column))}
        figure, axes = new_axes(WIDTH, 0.75 + 0.4 * len(arms))
        for row, (arm, cell) in enumerate(arms.items()):
            low, high = cell.interval or (cell.mean, cell.mean)
            axes.plot([low, high], [row, row], color=colour_of(arm), linewidth=1.6, solid_capstyle="butt")
            axes.plot(cell.mean, row, arm.marker, color=colour_of(arm), markersize=5.5)
            axes.plot(cell.values, [row + 0.22] * len(cell.values), "|", color=colour_of(arm), markersize=6)
            where = {"xycoords": ("axes fraction", "data"), "xytext": (0, 5), "textcoords": "offset points"}
            axes.annotate(short(arm.label), (0, row), fontsize=7.5, color=shared.INK, **where)  # type: ignore[arg-type]
        axes.set_ylim(len(arms) - 0.5, -0.8)
        axes.yaxis.set_major_locator(NullLocator())
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6))
        axes.spines["left"].set_visible(False)
        axes.set_xlabel(f"{column.accuracy}, %")
        about = f"Strokes are seeds, markers their means. {bars_caption(measured, list(arms), column)}"
        alt = f"{column.accuracy} by seed, in %: " + "; ".join(
            f"{arm.label} {', '.join(f'{value:.1f}' for value in cell.values)}" for arm, cell in arms.items()
        )
        name = f"seeds-{len(plots)}"
        plots.append(Plot(name, f"{capital(column.accuracy)} by seed", about, svg_of(figure, prefix=name), alt))
    return plots


def over_eps(measured: ArmResults) -> list[Plot]:
    """A line per arm for each attack that was run with two eps or more; natural accuracy is that at eps 0."""
    families: dict[tuple, list[Column]] = {}
    for column in measured.columns.values():
        if column.bounds_pixels:
            families.setdefault((column.base, step_size_of(column.settings, column.eps)), []).append(column)
    plots: list[Plot] = []
    for columns in families.values():
        natural = [measured.natural] if measured.natural else []
        numbers = {255 * column.eps: column for column in sorted([*natural, *columns], key=lambda c: c.eps)}
        title = f"Accuracy over the eps of {columns[0].name.partition(' at ')[0]}"
        plots += _lines(measured, numbers, name=f"eps-{len(plots)}", title=title, xlabel="eps of the attack, in 1/255")
    return plots


def over_steps(measured: ArmResults) -> list[Plot]:
    """A line per arm for each attack that was run with two numbers of steps or more, at the same eps."""
    families: dict[tuple, list[tuple[int, Column]]] = {}
    for column in measured.columns.values():
        if (steps := column.steps) and column.bounds_pixels:
            kind, number, restarts = steps
            families.setdefault((kind, restarts, column.eps, step_size_of(column.settings, column.eps)), []).append(
                (number, column)
            )
    plots: list[Plot] = []
    for (kind, restarts, eps, _), columns in families.items():
        numbers = {float(number): column for number, column in sorted(columns, key=lambda pair: pair[0])}
        what = f"{kind.upper()}{f' with {restarts[1:]} restarts' if restarts else ''} at {fraction(eps)}"
        plots += _lines(
            measured, numbers, name=f"steps-{len(plots)}", title=f"Accuracy over the steps of {what}",
            xlabel="steps of the attack", log=max(numbers) > 12 * min(numbers),
        )  # fmt: skip
    return plots


def _lines(
    measured: ArmResults,
    numbers: Mapping[float, Column],
    *,
    name: str,
    title: str,
    xlabel: str,
    log: bool = False,
) -> list[Plot]:
    sizes = Counter(column.n for column in numbers.values())
    n = max(sizes, key=lambda n: (sizes[n], n))
    numbers = {x: column for x, column in numbers.items() if column.n == n}  # a line is about the same images
    cells = {
        arm.label: {x: cell for x, column in numbers.items() if (cell := measured.cell(arm, column))}
        for arm in measured.arms
    }
    arms = [arm for arm in measured.arms if len(cells[arm.label].keys() - {0}) > 1]
    if not is_comparison(measured, arms):
        return []
    figure, axes = new_axes(WIDTH, 2.7)
    for arm in arms:
        shared.series(axes, cells[arm.label], colour=colour_of(arm), label=arm.label, marker=arm.marker)
    if log:
        axes.set_xscale("log")
        axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks(list(numbers), [f"{x:g}" for x in numbers])
    axes.set_xlabel(xlabel)
    axes.set_ylabel("accuracy, %")
    values = [
        f"{arm.label} " + ", ".join(f"{cell.mean:.1f} at {x:g}" for x, cell in cells[arm.label].items()) for arm in arms
    ]
    about = "0 is natural accuracy. " * (0 in numbers) + bars_caption(measured, arms, *numbers.values())
    return [Plot(name, title, about, svg_of(figure, prefix=name), f"{title}, in %: {'; '.join(values)}")]


def by_class(measured: ArmResults) -> list[Plot]:
    """Natural and robust accuracy of each class, the hardest under attack last; only the hardest if there are many."""
    runs = measured.results.runs
    arms = {
        column: [arm for arm in measured.arms if any(column.key in run.flags for run in runs[arm.label])]
        for column in (measured.natural, measured.robust)
        if column and column.key in measured.labels
    }
    arms = {column: some for column, some in arms.items() if is_comparison(measured, some)}
    if not arms:
        return []
    hardest = list(arms)[-1]
    labels = measured.labels[hardest.key]
    right = [measured.results.flags(arm.label, hardest.key) for arm in arms[hardest]]
    accuracy = {c: np.mean([flags[:, labels == c].mean() for flags in right]) for c in np.unique(labels).tolist()}
    order = sorted(accuracy, key=lambda c: -accuracy[c])
    if len(order) < 2:
        return []
    names = dict(enumerate(classes_of(arms[hardest][0].runs[0].config)))
    shown = {c: names.get(c, f"class {c}") for c in order[-MAX_CLASSES:]}
    some = f"The {MAX_CLASSES} classes of {len(order)} with the lowest accuracy. " if len(order) > MAX_CLASSES else ""
    return [_class_plot(measured, column, some_arms, shown, about=some) for column, some_arms in arms.items()]


def _class_plot(
    measured: ArmResults, column: Column, arms: Sequence[ReportedArm], names: Mapping[int, str], *, about: str
) -> Plot:
    labels = measured.labels[column.key]
    figure, axes = new_axes(WIDTH, 0.7 + len(names) * (0.16 + 0.085 * len(arms)))
    values: dict[str, list[str]] = {}
    for number, arm in enumerate(arms):
        flags = measured.results.flags(arm.label, column.key)
        for row, (c, name) in enumerate(names.items()):
            right = flags[:, labels == c]
            if not right.size:
                continue
            mean = 100 * float(right.mean())
            low, high = (100 * end for end in accuracy_interval(right)) if right.shape[1] > 1 else (mean, mean)
            at = row + (number - (len(arms) - 1) / 2) * 0.75 / len(arms)
            axes.plot([low, high], [at, at], color=colour_of(arm), linewidth=0.9, alpha=0.6)
            axes.plot(mean, at, arm.marker, color=colour_of(arm), markersize=4)
            values.setdefault(arm.label, []).append(f"{name} {mean:.0f}")
    axes.set_yticks(range(len(names)), [short(name, 18) for name in names.values()])
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(False, axis="y")
    for row in range(1, len(names)):
        axes.axhline(row - 0.5, color=shared.INK, alpha=0.1, linewidth=0.5)
    axes.set_xlabel(f"{column.accuracy}, %")
    counts = [int((labels == c).sum()) for c in names]
    n = f"{counts[0]}" if len(set(counts)) == 1 else f"{min(counts)} to {max(counts)}"
    title = f"{capital(column.accuracy)} by class"
    alt = f"{title}, in %: " + "; ".join(f"{label}: {', '.join(known)}" for label, known in values.items())
    about = f"{about}{bars_caption(measured, arms, column)} A class has {n} of them."
    prefix = f"class-{'natural' if column.base == 'natural' else 'robust'}"
    return Plot(prefix, title, about, svg_of(figure, prefix=prefix), alt)
