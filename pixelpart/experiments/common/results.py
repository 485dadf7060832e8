"""The results of an experiment's runs, read from their folders: accuracies per arm, intervals, the paper's numbers."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from pixelpart.config import Config
from pixelpart.errors import UserError
from pixelpart.evaluation.results import Entry, current_entries
from pixelpart.evaluation.statistics import PerImage, accuracy_interval, crossed_interval, difference, t_test
from pixelpart.evaluation.store import read_flags
from pixelpart.experiments.common.paper import SAME_AS_IN_PAPER, Number, Numbers, minus_paper
from pixelpart.files import parse_json, read_text
from pixelpart.runs import MetricsRow, RunFolder
from pixelpart.sweeps.identity import parent_of
from pixelpart.sweeps.table import attack_specs, describe_conditions, find_entry
from pixelpart.sweeps.work import Job

NAMES = {
    "natural": "natural", "autoattack": "AutoAttack", "apgd": "APGD", "random only": "broken by random points only",
}  # fmt: skip
CHECKPOINT = "last"  # of every run of an experiment
MEASURED = ("columns", "intervals")  # numbers in a measure's JSON, by column

Pairs = Sequence[tuple[str, str]]  # an arm and its baseline


@dataclass(frozen=True)
class RunResult:
    """One run: values by column (accuracies in %), values per image where there are any, and what was measured."""

    seed: int
    folder: Path
    values: dict[str, float]
    intervals: dict[str, tuple[float, float]]
    flags: dict[str, PerImage]
    measures: dict[str, Any]  # JSON by the name of the measure
    budget: float | None  # mean after burn-in, in 1/255
    seconds: float  # of training
    n: int  # images
    warnings: dict[str, list[str]] = field(default_factory=dict)  # why a column's value may be unreliable

    def add(self, column: str, per_image: PerImage, *, of: Iterable[str]) -> None:
        """A column that an experiment derives from others, whose warnings are about it too."""
        self.flags[column], self.values[column] = per_image, 100 * float(per_image.mean())
        self.warnings[column] = list(dict.fromkeys(w for other in of for w in self.warnings.get(other, [])))


@dataclass(frozen=True)
class Cell:
    """A column of an arm: the mean over seeds with its 95 % interval, the paper's number, ours minus paper's."""

    seeds: list[int]
    values: list[float]  # by seed
    mean: float
    interval: tuple[float, float] | None
    paper: Number | None = None
    minus_paper: tuple[float, float, float] | None = None  # with its interval
    warnings: list[str] = field(default_factory=list)  # of any seed


@dataclass(frozen=True)
class Claim:
    """An arm minus its baseline, in one column: ours with its 95 % interval, and the paper's."""

    arm: str
    baseline: str
    column: str
    ours: tuple[float, float, float] | None  # in points
    paper: float | None
    seeds: list[int]  # that both have, with flags
    warnings: list[str] = field(default_factory=list)  # of either arm


@dataclass
class Results:
    """All that tables and plots are made of."""

    name: str
    title: str
    number: str
    scale: str
    data: str
    columns: list[str]
    configs: dict[str, Config]
    runs: dict[str, list[RunResult]]  # by arm
    paper: Numbers
    baselines: Pairs
    requested: dict[str, int]  # seeds of each arm
    analysis: dict[str, Any] = field(default_factory=dict)  # JSON of the experiment's own analysis
    notes: list[str] = field(default_factory=list)
    split: str = "test"

    @property
    def sizes(self) -> set[int]:
        """The numbers of images of all runs that have results of attacks."""
        return {run.n for runs in self.runs.values() for run in runs if run.n}

    @property
    def conditions(self) -> str:
        """attacks at eps 8/255; n = 500 test images; last checkpoint."""
        return describe_conditions(self.columns, self.sizes, split=self.split, checkpoint=CHECKPOINT)

    @property
    def complete(self) -> bool:
        """Whether every arm has all the runs that were requested."""
        return all(len(self.runs[arm]) >= n for arm, n in self.requested.items())

    @property
    def arms(self) -> list[str]:
        return list(self.runs)

    def cell(self, arm: str, column: str) -> Cell | None:
        """None if no run has it."""
        runs = [run for run in self.runs.get(arm, []) if column in run.values]
        paper = self.paper.get(arm, {}).get(SAME_AS_IN_PAPER.get(column, column))
        if not runs:
            return Cell([], [], math.nan, None, paper) if paper else None
        values = [run.values[column] for run in runs]
        mean = fmean(values)
        apart = minus_paper(mean, len(values), column, paper) if self.scale == "paper" else None
        seeds = [run.seed for run in runs]
        return Cell(seeds, values, mean, _interval(runs, column), paper, apart, _warnings(runs, column))

    def cells(self) -> list[tuple[str, str, Cell]]:
        """Arm, column and cell, where there is one."""
        found = [(arm, column, self.cell(arm, column)) for arm in self.arms for column in self.columns]
        return [(arm, column, cell) for arm, column, cell in found if cell]

    def flags(self, arm: str, column: str) -> PerImage:
        """(seeds, images)."""
        return np.stack([run.flags[column] for run in self.runs[arm] if column in run.flags])

    def claims(self) -> list[Claim]:
        pairs = [(arm, base) for arm, base in self.baselines if {arm, base} <= self.runs.keys()]
        return [self.claim(arm, base, column) for arm, base in pairs for column in self.columns]

    def claim(self, arm: str, baseline: str, column: str) -> Claim:
        """On the seeds for which both have flags."""
        groups = [self.runs[label] for label in (arm, baseline)]
        ours, theirs = ({run.seed: run.flags[column] for run in runs if column in run.flags} for runs in groups)
        seeds, found = [seed for seed in ours if seed in theirs], None
        if len({len(side[seed]) for side in (ours, theirs) for seed in seeds}) == 1:  # images
            found = _apart(*(np.stack([side[seed] for seed in seeds]) for side in (ours, theirs)))
        name = SAME_AS_IN_PAPER.get(column, column)
        numbers = [self.paper.get(label, {}).get(name) for label in (arm, baseline)]
        known = [number[0] for number in numbers if number]
        papers = known[0] - known[1] if len(known) == 2 else None
        warnings = _warnings([run for runs in groups for run in runs if run.seed in seeds], column)
        return Claim(arm, baseline, column, found, papers, seeds, warnings)

    def as_json(self) -> dict[str, Any]:
        cells = {arm: {column: self.cell(arm, column) for column in self.columns} for arm in self.arms}
        return {
            "experiment": self.name, "title": self.title, "number": self.number, "scale": self.scale,
            "data": self.data, "columns": self.columns, "split": self.split, "checkpoint": CHECKPOINT,
            "eps": {name: spec.eps for name, spec in attack_specs(self.columns).items()},
            "arms": {
                arm: {
                    "config": self.configs[arm].hash(),
                    "requested": self.requested[arm],
                    "seeds": [run.seed for run in runs],
                    "n": runs[0].n if runs else None,
                    "budget": mean_of(run.budget for run in runs),
                    "seconds": mean_of(run.seconds for run in runs),
                    "runs": [str(run.folder) for run in runs],
                    "cells": {column: cell and _plain(asdict(cell)) for column, cell in cells[arm].items()},
                }
                for arm, runs in self.runs.items()
            },
            "claims": [asdict(claim) for claim in self.claims()],
            "analysis": self.analysis, "notes": self.notes,
        }  # fmt: skip


def _warnings(runs: Sequence[RunResult], column: str) -> list[str]:
    return list(dict.fromkeys(warning for run in runs for warning in run.warnings.get(column, [])))


def shown_name(column: str) -> str:
    """pgd20 as PGD-20."""
    kind = column.rstrip("0123456789")
    return NAMES.get(column, f"{kind.upper()}-{column[len(kind) :]}" if kind in ("pgd", "mma") else column)


# -- reading


def read_run_result(job: Job, folder: Path, columns: Sequence[str]) -> RunResult:
    """What a run's folder has of these columns: attacks, corruptions (fog-3), numbers of measures.

    Accuracies on fewer images than others are left out: a row of a table has one number of images.
    """
    values, intervals, flags, warnings = dict[str, float](), dict[str, tuple[float, float]](), {}, {}
    measures = {path.stem: _measured(path) for path in sorted(folder.glob("measures/*.json"))}
    numbers, ends = ({k: v for one in measures.values() for k, v in one.get(key, {}).items()} for key in MEASURED)
    corrupted = {entry.get("attack"): entry for entry in current_entries(folder, "corruptions.json")}
    attacked = current_entries(folder)
    entries = {column: corrupted.get(column) or _entry(job, column, attacked) for column in columns}
    n = max((entry["n"] for entry in entries.values() if entry), default=0)
    for column, entry in entries.items():
        if entry and entry["n"] == n:
            values[column] = 100 * entry["accuracy"]
            low, high = entry["interval"]
            intervals[column] = 100 * low, 100 * high
            warnings[column] = entry.get("warnings", [])
            if (right := read_flags(folder, entry)) is not None:
                flags[column] = right
        elif not entry and numbers.get(column) is not None:
            values[column] = numbers[column]
            intervals |= {column: tuple(ends[column])} if column in ends else {}
    rows = all_epochs(folder)
    budgets = [row["budget_mean"] for row in rows if row["epoch"] > job.config.burn_in.epochs]
    budget = 255 * fmean(budgets) if budgets else None
    seconds = sum(row["seconds"] for row in rows)
    return RunResult(job.config.seed, folder, values, intervals, flags, measures, budget, seconds, n, warnings)


def _measured(path: Path) -> dict[str, Any]:
    try:
        return dict(parse_json(read_text(path)))
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"cannot read {path}: {error}; delete it to measure again") from None


def all_epochs(folder: Path) -> list[MetricsRow]:
    """The rows of metrics.jsonl, after those of the run that this one was forked from, if that is at hand."""
    rows, config = RunFolder(folder).read_metrics(), RunFolder(folder).read_config()
    if not config.init_from:
        return rows
    parent, last = parent_of(config, folder)
    before = all_epochs(parent) if (parent / "config.json").exists() else []
    return [*(row for row in before if row["epoch"] <= last), *rows]


def _entry(job: Job, column: str, entries: Sequence[Entry]) -> Entry | None:
    try:
        found = find_entry(job, column, entries)
    except UserError:  # the column is not an attack
        return None
    if found is None and not job.config.holdout:  # then best and last are the same weights
        found = find_entry(replace(job, checkpoint="best" if job.checkpoint == "last" else "last"), column, entries)
    return found


# -- intervals


def _interval(runs: Sequence[RunResult], column: str) -> tuple[float, float] | None:
    """Over seeds and images if the flags are there, else over seeds; of a single run, its own."""
    values = [run.values[column] for run in runs]
    flags = [run.flags[column] for run in runs if column in run.flags]
    if len(runs) == 1 and column in runs[0].intervals:
        return runs[0].intervals[column]
    if flags and len(flags) == len(runs) and len({len(one) for one in flags}) == 1 and len(flags[0]) > 1:
        low, high = accuracy_interval(np.stack(flags))
        return 100 * low, 100 * high
    if len(runs) == 1:
        return None
    _, low, high, _ = t_test(values)
    return low, high


def _apart(a: PerImage, b: PerImage) -> tuple[float, float, float]:
    """a - b in points with its interval: of `statistics.difference` if these are flags."""
    if a.dtype == b.dtype == bool:
        found = difference(a, b)
        return 100 * found.estimate, 100 * found.low, 100 * found.high
    estimate, low, high = crossed_interval(a, b)
    return 100 * estimate, 100 * low, 100 * high


def mean_of(values: Any) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _plain(cell: dict[str, Any]) -> dict[str, Any]:
    return cell | {"mean": None if math.isnan(cell["mean"]) else cell["mean"]}
