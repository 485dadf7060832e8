"""Accuracy by class."""

from collections.abc import Mapping, Sequence

import numpy as np

from pixelpart.comparison.intervals import accuracy_interval
from pixelpart.data import classes_of
from pixelpart.experiments.common import plots as shared
from pixelpart.report.arms import ArmResults, Column, ReportedArm
from pixelpart.report.drawing import WIDTH, Plot, bars_caption, colour_of, is_comparison, new_axes, svg_of
from pixelpart.report.formatting import capital, short

MAX_CLASSES = 20


def by_class(found: ArmResults) -> list[Plot]:
    """Natural and robust accuracy of each class, the hardest under attack last; only the hardest if there are many."""
    arms = {
        column: [arm for arm in found.arms if any(column.key in run.flags for run in found.results.runs[arm.label])]
        for column in (found.natural, found.robust)
        if column and column.key in found.labels
    }
    arms = {column: some for column, some in arms.items() if is_comparison(found, some)}
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
    figure, axes = new_axes(WIDTH, 0.7 + len(names) * (0.16 + 0.085 * len(arms)))
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
            axes.plot([max(low, 0), min(high, 100)], [at, at], color=colour_of(arm), linewidth=0.9, alpha=0.6)
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
    about = f"{about}{bars_caption(found, arms, column)} A class has {n} of them."
    prefix = f"class-{'natural' if column.base == 'natural' else 'robust'}"
    return Plot(prefix, title, about, svg_of(figure, prefix=prefix), alt)


def class_names(arm: ReportedArm) -> dict[int, str]:
    config = arm.runs[0].config
    known = classes_of(config)
    return dict(enumerate(known))
