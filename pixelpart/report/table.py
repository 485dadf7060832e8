"""Results as rows: those of eval.json and of corruptions.json; and the verdicts of check.json."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from pydantic import Field

from pixelpart.evaluation.checks.behaviours import describe_verdict
from pixelpart.evaluation.corruptions import FILE, mean_accuracy
from pixelpart.evaluation.store import read_flags
from pixelpart.report.formatting import count, describe_eps, describe_images, fraction, percent
from pixelpart.report.run import JsonRecord, Measurement, ReportedRun


@dataclass
class ResultRow:
    """One checkpoint of one run with one group of settings; `cells` by column."""

    run: ReportedRun
    cells: dict[str, Measurement]
    remarks: list[str] = field(default_factory=list)

    @property
    def first(self) -> Measurement:
        """The measurement that describes the row: one with an attack, if there is one."""
        cells = list(self.cells.values())
        return next((m for m in cells if m.attack != "natural"), cells[0])

    @property
    def eps(self) -> str:
        return describe_eps(self.first.eps, self.first.settings) if self.first.attack != "natural" else "no attack"


def columns(runs: Sequence[ReportedRun]) -> list[str]:
    """The attacks of all runs: natural first, then in the order of the files."""
    names = dict.fromkeys(m.column for run in runs for m in run.measurements)
    return sorted(names, key=lambda name: name != "natural")


def result_rows(run: ReportedRun) -> list[ResultRow]:
    """A run's results; those that share checkpoint, weights, eps, step size and seed share a row.

    Of an attack, the newest result on the most images counts. An attack with its own eps, or without a step size, joins
    every row that agrees in the other settings.
    """
    attacked: dict[tuple, ResultRow] = {}
    natural: dict[tuple, list[Measurement]] = {}
    hidden = 0
    for m in sorted(run.measurements, key=lambda m: (m.own_eps, "step_size" not in m.settings)):  # wildcards last
        if m.attack == "natural":
            natural.setdefault(_context(m), []).append(m)
            continue
        key = ((*_context(m), m.seed), None if m.own_eps else m.eps, m.step_size)
        rows = [row for other, row in attacked.items() if _agree(key, other)]
        rows = rows or [attacked.setdefault(key, ResultRow(run, {}))]
        hidden += any(m.column in row.cells for row in rows)
        for row in rows:
            row.cells[m.column] = max(m, row.cells.get(m.column, m), key=lambda m: m.n)  # the first of equals
    for row in attacked.values():
        if same := natural.get(_context(row.first)):
            row.cells["natural"] = _nearest(same, row.first.n)
    contexts = {_context(row.first) for row in attacked.values()}
    rows = list(attacked.values())
    rows += [ResultRow(run, {"natural": _nearest(m, None)}) for key, m in natural.items() if key not in contexts]
    if hidden:
        run.notes.append(f"eval.json: {count(hidden, 'result')} not shown: older, or on fewer images, than another")
    _add_remarks(run, rows)
    return rows


def _context(m: Measurement) -> tuple:
    return m.checkpoint, m.epoch, m.weights, m.dataset, m.split, m.precision


def _agree(key: tuple, other: tuple) -> bool:
    """Whether two keys are equal where neither is None."""
    return all(a == b or None in (a, b) for a, b in zip(key, other, strict=True))


def _nearest(measurements: list[Measurement], n: int | None) -> Measurement:
    """The newest measurement on n images, else the one on most images."""
    newest = list(reversed(measurements))
    return next((m for m in newest if m.n == n), max(newest, key=lambda m: m.n))


def _add_remarks(run: ReportedRun, rows: list[ResultRow]) -> None:
    newest: dict[str, int] = {"last": run.epochs_done}
    for row in rows:
        newest[row.first.checkpoint] = max(newest.get(row.first.checkpoint, 0), row.first.epoch or 0)
    for row in rows:
        first = row.first
        if first.epoch is not None and first.epoch < newest[first.checkpoint]:
            row.remarks.append(f"an earlier {first.checkpoint} checkpoint: training went on after this evaluation")
        if first.dataset != run.config.data_label:
            row.remarks.append(describe_images(first.dataset, first.split))
        elif first.split == "held-out":
            row.remarks.append("held-out training images")
        if first.seed:
            row.remarks.append(f"seed of the attack {first.seed}")
        if isinstance(first.step_size, float):
            row.remarks.append(f"step size {fraction(first.step_size)}")
        if first.precision != "fp32":
            row.remarks.append(first.precision)


# -- corruptions and checks


class BehaviourRecord(JsonRecord):
    name: str
    found: str
    verdict: str
    numbers: dict[str, Any] = Field(default_factory=dict)


class CheckRecord(JsonRecord):
    """check.json."""

    verdict: str
    checkpoint: str | None = None
    eps: float
    n: int
    behaviours: tuple[BehaviourRecord, ...] = Field(min_length=1)
    warnings: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        return describe_verdict(self.verdict, self.eps, self.behaviours[0].numbers.get("pgd20"))


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
    for m in run.read_measurements(FILE):
        name, severity = str(m.settings.get("corruption")), int(m.settings.get("severity", 0))
        context = m.checkpoint, m.epoch, m.weights, m.dataset, m.n
        if severity == 0:
            clean[context] = m
        else:
            groups.setdefault((*context, m.settings.get("source")), {})[name, severity] = m
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
