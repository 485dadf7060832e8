"""The verdicts of `check`, and accuracy on corrupted images."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from pydantic import Field

from pixelpart.evaluation.corruptions import FILE, mean_accuracy
from pixelpart.evaluation.store import read_flags
from pixelpart.report.formatting import count, percent
from pixelpart.report.run import JsonRecord, Measurement, ReportedRun


class BehaviourRecord(JsonRecord):
    name: str
    found: str
    verdict: str


class CheckRecord(JsonRecord):
    """check.json."""

    verdict: str
    checkpoint: str | None = None
    eps: float
    n: int
    behaviours: tuple[BehaviourRecord, ...] = Field(min_length=1)
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class CorruptionRow:
    """One checkpoint on corrupted images: the mean over all corruptions, with an interval if all flags are stored."""

    run: ReportedRun
    measurement: Measurement
    clean: Measurement | None
    accuracy: float
    interval: Sequence[float] | None
    corruptions: str
    lowest: str


def corruption_rows(run: ReportedRun) -> list[CorruptionRow]:
    """A row for each checkpoint, number of images and source of the corrupted images."""
    groups: dict[tuple, dict[tuple[str, int], Measurement]] = {}
    clean: dict[tuple, Measurement] = {}
    for found in run.read_measurements(FILE):
        name, severity = str(found.settings.get("corruption")), int(found.settings.get("severity", 0))
        context = found.checkpoint, found.epoch, found.weights, found.dataset, found.n
        if severity == 0:
            clean[context] = found
        else:
            groups.setdefault((*context, found.settings.get("source")), {})[name, severity] = found
    return [_corruption_row(run, cells, clean.get(key[:-1])) for key, cells in groups.items()]


def _corruption_row(
    run: ReportedRun, cells: dict[tuple[str, int], Measurement], clean: Measurement | None
) -> CorruptionRow:
    names, severities = sorted({name for name, _ in cells}), sorted({severity for _, severity in cells})
    by_name = {name: float(np.mean([m.accuracy for (n, _), m in cells.items() if n == name])) for name in names}
    worst = min(by_name, key=lambda name: by_name[name])
    accuracy, interval = float(np.mean([m.accuracy for m in cells.values()])), None
    flags = [read_flags(run.path, m.entry) for m in cells.values()]
    known = [array for array in flags if array is not None]
    if len(known) == len(flags):
        accuracy, *interval = mean_accuracy(np.stack(known))
    first = next(iter(cells.values()))
    levels = f"{count(len(names), 'corruption')} at severity {', '.join(map(str, severities))}"
    return CorruptionRow(
        run, first, clean, accuracy, interval, f"{levels}, {first.settings.get('source')}",
        f"{worst} {percent(by_name[worst])}",
    )  # fmt: skip
