"""`compare`: whether two methods, or two models, differ on the same images, read from the results in run folders."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np

from pixelpart.config import differing_fields, method_fields, write_fraction
from pixelpart.errors import UserError, choose
from pixelpart.evaluation.results import Entry, current_entries, read_entries
from pixelpart.evaluation.statistics import MCNEMAR, Difference, FlagArray, difference, wilson
from pixelpart.evaluation.store import read_flags
from pixelpart.evaluation.target import HELD_OUT, SPLITS
from pixelpart.runs import Run, RunFolder
from pixelpart.runtime.tables import text_table

# fields that two results must share for their flags to be about the same images under the same attack
CONDITIONS = ("dataset", "split", "n", "eps", "settings", "seed", "precision", "pixels")
FILES = ("eval.json", "corruptions.json")
MOST_LISTED = 20  # names in an error
ABOUT_MODELS = "One run a side: this is about these two models, not about the methods."
ABOUT_SEEDS = (
    "Intervals and p-values account for the choice of images; another seed of the same method changes the accuracy too."
)


@dataclass(frozen=True)
class AttackResults:
    """The results of several runs under one attack: their entries, and their flags (runs, images)."""

    attack: str
    entries: list[Entry]
    flags: FlagArray

    @property
    def conditions(self) -> Entry:
        return {field: self.entries[0][field] for field in CONDITIONS if field in self.entries[0]}


@dataclass(frozen=True)
class GroupAccuracy:
    """The accuracy of each run of a group with its Wilson interval, and the standard deviation between several runs."""

    accuracies: list[float]
    intervals: list[tuple[float, float]]
    deviation: float | None

    @classmethod
    def of(cls, flags: FlagArray) -> "GroupAccuracy":
        correct, n = flags.sum(1).tolist(), flags.shape[1]
        accuracies = [count / n for count in correct]
        return cls(accuracies, [wilson(count, n) for count in correct], stdev(accuracies) if len(flags) > 1 else None)

    @property
    def mean(self) -> float:
        return fmean(self.accuracies)

    def as_json(self) -> dict[str, Any]:
        return {"mean": self.mean, **asdict(self)}

    def __str__(self) -> str:
        if self.deviation is not None:
            return f"{self.mean:.2%} ± {100 * self.deviation:.2f}"
        low, high = self.intervals[0]
        return f"{self.mean:.2%} [{100 * low:.2f}, {100 * high:.2f}]"


@dataclass(frozen=True)
class ComparisonRow:
    """Two groups under one attack."""

    attack: str
    conditions: Entry
    sides: tuple[GroupAccuracy, GroupAccuracy]
    difference: Difference
    warnings: list[str]


@dataclass(frozen=True)
class Comparison:
    """A row for each attack with results of all runs; `left_out` lists the attacks that some runs lack, and which."""

    groups: dict[str, list[Path]]
    checkpoint: str
    rows: list[ComparisonRow]
    left_out: dict[str, list[Path]]

    def __getitem__(self, attack: str) -> ComparisonRow:
        return next(row for row in self.rows if row.attack == attack)

    @property
    def note(self) -> str:
        """What one run on each side can and cannot say; empty for several."""
        return f"{ABOUT_MODELS} {ABOUT_SEEDS}" if self.rows[0].difference.test == MCNEMAR else ""

    def as_json(self) -> dict[str, Any]:
        rows = [
            {"attack": row.attack, **row.conditions}
            | {"accuracy": {name: side.as_json() for name, side in zip(self.groups, row.sides, strict=True)}}
            | {"difference": row.difference.as_json(), "warnings": row.warnings}
            for row in self.rows
        ]
        return {
            "groups": {name: [str(folder) for folder in folders] for name, folders in self.groups.items()},
            "checkpoint": self.checkpoint,
            "confidence": 0.95,
            "rows": rows,
            "note": self.note,
            "left_out": {attack: [str(folder) for folder in folders] for attack, folders in self.left_out.items()},
        }

    def __str__(self) -> str:
        first, second = self.groups
        several_sets = len({row.conditions["dataset"] for row in self.rows}) > 1  # the runs' own images, and new ones
        head = ["attack", "eps", *["images"] * several_sets, "n", first, second, f"{first} - {second}", "p", "test"]
        cells = []
        for row in self.rows:
            d, eps = row.difference, row.conditions.get("eps")
            radius = "norm" in row.conditions["settings"]  # of an l2 or l1 ball: not written as a fraction of 255
            points = f"{100 * d.estimate:+z.2f} [{100 * d.low:+z.2f}, {100 * d.high:+z.2f}]"
            p = f"{d.p:.3f}" if d.p >= 0.001 else "<0.001"
            cells.append([
                row.attack, (f"{eps:g}" if radius else str(write_fraction(eps))) if eps else "",
                *[row.conditions["dataset"]] * several_sets, str(row.conditions["n"]),
                *map(str, row.sides), points, p, f"{d.test} *" if row.warnings else d.test,
            ])  # fmt: skip
        lines = [f"{name}: {', '.join(map(str, folders))}" for name, folders in self.groups.items()]
        lines += ["", text_table(head, cells), ""]
        several = "; ± is the standard deviation between seeds" if self.rows[0].sides[0].deviation is not None else ""
        images = ", held-out images" if self.rows[0].conditions["split"] == HELD_OUT else ""
        lines.append(f"{self.checkpoint} checkpoint{images}; differences in percentage points, 95 % intervals{several}")
        lines += [self.note] if self.note else []
        lines += [f"* {row.attack}: {warning}" for row in self.rows for warning in row.warnings]
        lines += [f"left out: {attack}, not in {_listed(folders)}" for attack, folders in self.left_out.items()]
        return "\n".join(lines)

    __repr__ = __str__


def compare(
    groups: Mapping[str, Run | Path | str | Sequence[Run | Path | str]],
    *,
    attacks: Sequence[str] | None = None,
    checkpoint: str = "best",
    split: str = "test",
) -> Comparison:
    """The first group's accuracy minus the second's, for each of these attacks (default: all with results of all runs).

    `groups` are two, by name: {"AT": ["runs/at-0", "runs/at-1"], "PART": ["runs/part-0", "runs/part-1"]}. A corruption
    is named with its severity: fog-3. `split="held-out"` reads the results on held-out images, which all runs must
    share (config field holdout_seed).
    A group is one run, or several that differ only in their seed. Results of another model, which `evaluate` stored in
    a folder under a name, are FOLDER/NAME and a group by themselves. One against one: McNemar's test of the two models.
    Several against several: the crossed bootstrap, a test of the two methods.
    """
    paths = {name: _folders(runs) for name, runs in groups.items()}
    if len(paths) != 2 or not all(paths.values()):
        raise UserError(f"compare takes two groups of run folders, not {len([g for g in paths.values() if g])}")
    for folders in paths.values():
        check_same_method(folders)
    first, second = paths.values()
    results, left_out = read_results([*first, *second], attacks=attacks, checkpoint=checkpoint, split=split)
    rows = []
    for result in results:
        a, b = result.flags[: len(first)], result.flags[len(first) :]
        warnings = dict.fromkeys(warning for entry in result.entries for warning in entry.get("warnings", []))
        sides = GroupAccuracy.of(a), GroupAccuracy.of(b)
        rows.append(ComparisonRow(result.attack, result.conditions, sides, difference(a, b), list(warnings)))
    return Comparison(paths, checkpoint, rows, left_out)


def _folders(runs: Run | Path | str | Sequence[Run | Path | str]) -> list[Path]:
    several = [runs] if isinstance(runs, Run | Path | str) else runs
    return [Run.of(run).dir for run in several]


def name_groups(first: Sequence[Path], second: Sequence[Path]) -> dict[str, Sequence[Path]]:
    """Two groups of runs, named by the common start of their folders' names, or "first" and "second"."""
    names = []
    for folders in (first, second):
        found = [folder.resolve().name for folder in folders]
        names.append(found[0] if len(found) == 1 else common_name(found))
    if not all(names) or names[0] == names[1]:
        names = ["first", "second"]
    return dict(zip(names, (first, second), strict=True))


def common_name(names: Sequence[str]) -> str:
    """The common start of the names of a method's runs: part of part-0 and part-1."""
    return os.path.commonprefix(list(names)).rstrip("0123456789").rstrip("-_.")  # noqa: RUF071 (letters are meant)


def check_same_method(folders: Sequence[Path]) -> None:
    """Raises UserError unless these are runs of one method: different seeds, and otherwise the same config."""
    if len(folders) == 1 and stored_name(folders[0]):
        return
    seeds: dict[int, Path] = {}
    first = RunFolder(folders[0]).read_config()
    for folder in folders:
        config = RunFolder(folder).read_config()
        compared = method_fields(config)
        if differing := [what for what in differing_fields(first, config) if what.partition(":")[0] in compared]:
            raise UserError(f"{folder} and {folders[0]} differ in more than their seed ({'; '.join(differing)})")
        if config.seed in seeds:
            raise UserError(f"{folder} and {seeds[config.seed]} have the same seed, {config.seed}; give each run once")
        seeds[config.seed] = folder


def read_results(
    folders: Sequence[Path], *, attacks: Sequence[str] | None, checkpoint: str, split: str = "test"
) -> tuple[list[AttackResults], dict[str, list[Path]]]:
    """The results that all runs have, for each attack and its conditions, and the attacks that some runs lack."""
    places = [folder.resolve() for folder in folders]
    for folder, place in zip(folders, places, strict=True):
        if places.count(place) > 1:
            raise UserError(f"{folder} is given twice")
    files = FILES if attacks else FILES[:1]  # there are many corruptions, so only those that are named
    choose(SPLITS, split, "split")
    found = [_entries_by_attack(folder, checkpoint, split, files) for folder in folders]
    where = " on held-out images" if split == HELD_OUT else ""
    known = dict.fromkeys(attack for entries in found for attack in entries)
    left_out: dict[str, list[Path]] = {}
    results: list[AttackResults] = []
    for attack in dict.fromkeys(attacks or known):
        lacking = [folder for folder, entries in zip(folders, found, strict=True) if attack not in entries]
        if not lacking:
            shared = _with_same_conditions(attack, folders, [entries[attack] for entries in found])
            results += [AttackResults(attack, entries, _read_flags(attack, folders, entries)) for entries in shared]
        elif attacks is None:
            left_out[attack] = lacking
        else:
            some = [*list(known)[:MOST_LISTED], *["..."] * (len(known) > MOST_LISTED)]  # of 95 corruptions
            raise UserError(
                f"no {attack} of the {checkpoint} checkpoint{where} in {_listed(lacking)}; "
                f"choose from {', '.join(some) or 'none: there are no results yet'}"
            )
    if not results:
        if empty := [folder for folder, entries in zip(folders, found, strict=True) if not entries]:
            raise UserError(
                f"no results{where} of the {checkpoint} checkpoint in {_listed(empty)}; see pixelpart evaluate"
            )
        raise UserError(
            f"no attack has results{where} of the {checkpoint} checkpoints of all runs; see pixelpart evaluate"
        )
    return results, left_out


def stored_name(path: Path) -> str | None:
    """NAME if `path` is FOLDER/NAME and FOLDER has results of a model of that name; None for the folder of a run."""
    others = () if path.is_dir() else read_entries(path.parent, FILES[0])
    return path.name if any(entry.get("subject") == path.name for entry in others) else None


def _entries_by_attack(folder: Path, checkpoint: str, split: str, files: Sequence[str]) -> dict[str, list[Entry]]:
    """A run's own entries for a checkpoint and a split, by attack or corruption (fog-3); or those of a stored name."""
    found: dict[str, list[Entry]] = {}
    name = stored_name(folder)
    place, wanted = (folder.parent, None) if name else (folder, checkpoint)
    for entry in chain.from_iterable(current_entries(place, file) for file in files):
        same_split = (entry["split"] == HELD_OUT) == (split == HELD_OUT)  # images passed as tensors: with test
        if entry.get("checkpoint") == wanted and entry.get("subject") == name and same_split:
            found.setdefault(entry["attack"], []).append(entry)
    return found


def _with_same_conditions(attack: str, folders: Sequence[Path], found: Sequence[list[Entry]]) -> list[list[Entry]]:
    """An entry of each run, for all conditions that all runs share; a UserError if there are none."""
    shared = [[entry] for entry in found[0]]
    for folder, entries in zip(folders[1:], found[1:], strict=True):
        joined = [[*some, entry] for some in shared for entry in entries if not _differing(some[0], entry)]
        if not joined:
            a, b = shared[-1][0], entries[-1]
            fields = _differing(a, b)
            if "pixels" in fields and {*fields} <= {"pixels", "n"}:
                again = "" if a["split"] == HELD_OUT else ": evaluate both again, on the same pictures"
                raise UserError(
                    f"{attack} was measured on other pictures in {folder} (n = {b['n']}) than in {folders[0]} "
                    f"(n = {a['n']}){again}"
                )
            what = "; ".join(f"{field}: {b.get(field)!r} instead of {a.get(field)!r}" for field in fields)
            raise UserError(f"{attack} has other settings in {folder} than in {folders[0]} ({what})")
        shared = joined
    return shared


def _differing(a: Entry, b: Entry) -> list[str]:
    """The conditions in which two results differ."""
    return [field for field in CONDITIONS if a.get(field) != b.get(field)]


def _read_flags(attack: str, folders: Sequence[Path], entries: list[Entry]) -> FlagArray:
    rows = []
    for folder, entry in zip(folders, entries, strict=True):
        flags = read_flags(folder.parent if stored_name(folder) else folder, entry)
        if flags is None:
            raise UserError(f"the flags of {attack} in {folder} are missing or corrupt; evaluate it again")
        rows.append(flags)
    return np.stack(rows)


def _listed(folders: Sequence[Path]) -> str:
    return ", ".join(map(str, folders))
