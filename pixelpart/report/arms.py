"""Runs as arms (one method, several seeds), and the results of arms that can be compared."""

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from numpy.typing import NDArray

from pixelpart.comparison.compare import common_name
from pixelpart.config import DEFAULT_EPS, Config, method_fields
from pixelpart.errors import UserError
from pixelpart.evaluation.store import read_flags, read_labels
from pixelpart.experiments.common.results import Cell, Results, RunResult, shown_name
from pixelpart.report.formatting import describe_images, fraction
from pixelpart.report.run import Marked, Measurement, ReportedRun
from pixelpart.runs import RunFolder
from pixelpart.sweeps.identity import canonical, equivalent_unforked, parent_of
from pixelpart.sweeps.labels import differing_runs

Fields = dict[str, Any]  # those in which runs differ, by dotted name

STEPPED = re.compile(r"([a-z-]+?)([1-9][0-9]*)(x[0-9]+)?")  # pgd20x5: kind, steps, restarts


@dataclass(frozen=True, eq=False)
class ReportedArm(Marked):
    """Runs that differ only in their seed."""

    label: str
    runs: Sequence[ReportedRun]
    place: int

    @property
    def seeds(self) -> str:
        return ", ".join(str(run.config.seed) for run in self.runs)

    @property
    def budget(self) -> float | None:
        """The mean over the runs."""
        budgets = [run.budget for run in self.runs if run.budget is not None]
        return fmean(budgets) if budgets else None


@dataclass(frozen=True, eq=False)
class Column:
    """An attack with its eps: pgd20, whether it was requested with --eps 4/255 or as pgd20@4/255."""

    base: str  # pgd20x5
    eps: float
    settings: Mapping[str, Any]
    n: int

    @classmethod
    def of(cls, m: Measurement) -> "Column":
        return cls(m.attack.partition("@")[0], m.eps or 0.0, m.settings, m.n)

    @property
    def key(self) -> str:
        return self.base if self.base == "natural" else f"{self.base}@{self.eps}"

    @property
    def bounds_pixels(self) -> bool:
        """Whether eps bounds the change of every pixel alike."""
        return self.base != "natural" and self.settings.keys().isdisjoint({"norm", "eps_low"})

    @property
    def name(self) -> str:
        shown, own = shown_name(self.base), f"{self.settings.get('norm')} {self.eps:g}"
        if self.base == "natural" or "eps_low" in self.settings:
            return shown
        return f"{shown} at {fraction(self.eps) if self.bounds_pixels else own}"

    @property
    def accuracy(self) -> str:
        return "natural accuracy" if self.base == "natural" else f"accuracy under {self.name}"

    @property
    def steps(self) -> tuple[str, int, str] | None:
        """Kind, steps and restarts of a step attack: pgd, 20, x5."""
        match = STEPPED.fullmatch(self.base) if "steps" in self.settings else None
        return (match[1], int(match[2]), match[3] or "") if match else None


@dataclass(frozen=True)
class ArmResults:
    """The results of arms on one kind of checkpoint and images; `columns` by their keys, natural first."""

    arms: Sequence[ReportedArm]
    columns: dict[str, Column]
    results: Results
    context: str = ""
    labels: dict[str, NDArray[Any]] = field(default_factory=dict)  # of the images of a column, where known

    def cell(self, arm: ReportedArm, column: Column) -> Cell | None:
        """The mean of an arm, in %, with its interval; None if no run of the arm has it."""
        return self.results.cell(arm.label, column.key)

    def seeds(self, arm: ReportedArm) -> int:
        """The seeds of an arm that have results."""
        return sum(bool(run.values) for run in self.results.runs[arm.label])

    @property
    def natural(self) -> Column | None:
        return self.columns.get("natural")

    @property
    def robust(self) -> Column | None:
        """The attack that plots show: at the eps of most results, run on most models, and lowering accuracy most."""
        every = [run.values for group in self.results.runs.values() for run in group]
        accuracies = {c: [v[c.key] for v in every if c.key in v] for c in self.columns.values() if c.bounds_pixels}
        at = Counter({c.eps: 0 for c in accuracies})
        for column, values in accuracies.items():
            at[column.eps] += len(values)
        eps = max(at, key=lambda e: (at[e], e == DEFAULT_EPS), default=None)
        here = {c: values for c, values in accuracies.items() if c.eps == eps}
        return max(here, key=lambda c: (len(here[c]), -fmean(here[c])), default=None)


def find_arms(runs: Sequence[ReportedRun]) -> list[ReportedArm]:
    """The runs by method, in their order, with the colour of the first.

    Named by the common start of their labels; where there is none, as in a sweep, by the fields in which they differ.
    """
    groups = by_method(runs)
    names = [group[0].label if len(group) == 1 else common_name([run.label for run in group]) for group in groups]
    if not all(names) or len(set(names)) < len(names):
        names = name_by_fields(groups, varying(runs))
    return [ReportedArm(name, group, group[0].place) for name, group in zip(names, groups, strict=True)]


def by_method(runs: Sequence[ReportedRun]) -> list[list[ReportedRun]]:
    """Runs that differ only in their seed, together; of one seed, the first run."""
    groups: dict[str, dict[int, ReportedRun]] = {}
    for run in runs:
        method = json.dumps([method_fields(run.config), fork_fields(run.config, run.path)], sort_keys=True)
        groups.setdefault(method, {}).setdefault(run.config.seed, run)
    return [list(seeds.values()) for seeds in groups.values()]


def fork_fields(config: Config, folder: Path) -> list[Any] | None:
    """The epoch that a run is forked from, and the method and the fork of its parent: its folder differs by seed.

    None if it is not a fork, or if its own burn-in would have been the same, as where jobs of a sweep share one.
    """
    if not config.init_from:
        return None
    parent_folder, epoch = parent_of(config, folder)
    try:
        parent = RunFolder(parent_folder).read_config()
    except UserError:  # deleted
        return None if epoch and epoch == config.burn_in.epochs else [epoch]
    unforked = equivalent_unforked(config, parent, epoch)
    if unforked and canonical(unforked) == canonical(config):
        return None
    return [epoch, method_fields(parent), fork_fields(parent, parent_folder)]


def varying(runs: Sequence[ReportedRun]) -> dict[Path, Fields]:
    """The fields in which the runs differ, by run folder."""
    return differing_runs({run.path: run.config for run in runs})


def name_by_fields(groups: Sequence[Sequence[ReportedRun]], fields: Mapping[Path, Fields]) -> list[str]:
    """The fields in which the groups differ, apart from the seed, with their values; equal names get a folder's name.

    The burn-in is left out if the names differ without it.
    """

    def name(run: ReportedRun, skipped: tuple[str, ...]) -> str:
        used = {n: v for n, v in fields[run.path].items() if v is not None and not n.startswith(skipped)}
        return " ".join(f"{name}={value}" for name, value in used.items()) or run.config.recipe

    short, full = ([name(group[0], skipped) for group in groups] for skipped in (("seed", "burn_in."), ("seed",)))
    names = short if len(set(short)) == len(groups) else full
    return [
        one if names.count(one) == 1 else f"{one} ({group[0].path.name})"
        for one, group in zip(names, groups, strict=True)
    ]


def collect(arms: Sequence[ReportedArm]) -> ArmResults:
    """What the arms' runs have under the same conditions.

    Of checkpoints and image sets the one with most results, and in each column the number of images and the settings
    that most runs share, if several, those with the number of images that most columns have; a run measured otherwise
    is left out of that column.
    """
    every = [(run, m, Column.of(m)) for arm in arms for run in arm.runs for m in run.measurements]
    contexts = Counter(_context(m) for _, m, _ in every)
    chosen = max(contexts, key=lambda c: (contexts[c], c[0] == "best"), default=None)
    every = [(run, m, column) for run, m, column in every if _context(m) == chosen]
    conditions: dict[str, Counter[tuple]] = {}
    for _, m, column in every:
        conditions.setdefault(column.key, Counter())[_condition(m)] += 1
    sizes = Counter(n for counts in conditions.values() for n in {c[0] for c in counts})
    usual = {key: max(counts, key=lambda c: (counts[c], sizes[c[0]], c[0])) for key, counts in conditions.items()}
    columns: dict[str, Column] = {}
    cells: dict[Path, dict[str, Measurement]] = {}
    labels: dict[str, NDArray[Any]] = {}
    for run, m, column in sorted(every, key=lambda item: item[2].base != "natural"):
        if _condition(m) == usual[column.key]:
            columns.setdefault(column.key, column)
            cells.setdefault(run.path, {})[column.key] = m  # the newest is the last
            if column.key not in labels and (known := read_labels(run.path, m.entry)) is not None:
                labels[column.key] = known
    results = Results(
        name="", title="", number="-", scale="", data="", columns=list(columns),
        configs={arm.label: arm.runs[0].config for arm in arms},
        runs={arm.label: [_run_result(run, cells.get(run.path, {})) for run in arm.runs] for arm in arms},
        paper={}, baselines=[], requested={arm.label: len(arm.runs) for arm in arms},
    )  # fmt: skip
    context = f"{chosen[0]} checkpoint, {describe_images(chosen[1], chosen[2])}" if chosen else ""
    return ArmResults(list(arms), columns, results, context, labels)


def uniform_arms(arms: Sequence[ReportedArm]) -> dict[str, str]:
    """The eps of the arms that have the same budget at every pixel and else agree; {} unless three eps or more differ.

    The burn-in may differ, as in an experiment where all arms start with 8/255.
    """
    families: dict[str, dict[str, str]] = {}
    for arm in arms:
        config = arm.runs[0].config
        if config.mask.rule == "none":
            settings = {
                name: value
                for name, value in method_fields(config).items()
                if name not in ("eps", "eps_low") and not name.startswith(("mask.", "burn_in."))
            }
            families.setdefault(json.dumps(settings, sort_keys=True), {})[arm.label] = fraction(config.eps)
    largest: dict[str, str] = max(families.values(), key=lambda family: len(set(family.values())), default={})
    return largest if len(set(largest.values())) > 2 else {}


def _context(m: Measurement) -> tuple:
    return m.checkpoint, m.dataset, m.split, m.precision, m.seed


def _condition(m: Measurement) -> tuple:
    return m.n, m.step_size, m.gradients, m.engine, m.entry.get("pixels")


def _run_result(run: ReportedRun, cells: Mapping[str, Measurement]) -> RunResult:
    flags = {key: read_flags(run.path, m.entry) for key, m in cells.items()}
    return RunResult(
        run.config.seed, run.path, {key: 100 * m.accuracy for key, m in cells.items()},
        {key: (100 * m.interval[0], 100 * m.interval[1]) for key, m in cells.items()},
        {key: right for key, right in flags.items() if right is not None}, {}, None, 0.0,
        max((m.n for m in cells.values()), default=0), {key: [*m.warnings] for key, m in cells.items()},
    )  # fmt: skip
