"""`compare`: whether two methods, or two models, differ on the same images, from what their run folders hold."""

import os
import statistics as plain
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pixelpart.config import differing_fields, write_fraction
from pixelpart.errors import UserError
from pixelpart.evaluation.statistics import Difference, difference, wilson
from pixelpart.evaluation.store import Entry, FlagArray, read_entries, read_flags
from pixelpart.runs import RunFolder

# what two results have to share before their flags speak of the same images under the same attack
QUESTION = ("dataset", "split", "n", "eps", "settings", "seed", "precision", "pixels")
FILES = ("eval.json", "corruptions.json")
OWN = {"seed", "recipe", "init_from", "keep"}  # fields in which two runs of one method may differ


@dataclass(frozen=True)
class Figures:
    """What every run answered to one question: its entries, and its flags (runs, images)."""

    attack: str
    entries: list[Entry]
    flags: FlagArray

    @property
    def question(self) -> Entry:
        return {field: self.entries[0][field] for field in QUESTION if field in self.entries[0]}


@dataclass(frozen=True)
class Side:
    """The accuracy of each run of a group, with Wilson's interval, and how far several deviate from each other."""

    accuracies: list[float]
    intervals: list[tuple[float, float]]
    deviation: float | None

    @property
    def accuracy(self) -> float:
        return plain.fmean(self.accuracies)

    def as_json(self) -> dict[str, Any]:
        return {"mean": self.accuracy, **asdict(self)}

    def __str__(self) -> str:
        if self.deviation is not None:
            return f"{self.accuracy:.2%} ± {100 * self.deviation:.2f}"
        low, high = self.intervals[0]
        return f"{self.accuracy:.2%} [{100 * low:.2f}, {100 * high:.2f}]"


@dataclass(frozen=True)
class Row:
    """Two groups under one attack."""

    attack: str
    question: Entry
    sides: tuple[Side, Side]
    difference: Difference
    warnings: list[str]


@dataclass(frozen=True)
class Comparison:
    """A row for each question that all runs have answered; `left_out` says which attacks some of them lack."""

    groups: dict[str, list[Path]]
    checkpoint: str
    rows: list[Row]
    left_out: dict[str, list[Path]]

    def __getitem__(self, attack: str) -> Row:
        return next(row for row in self.rows if row.attack == attack)

    def as_json(self) -> dict[str, Any]:
        rows = [
            {"attack": row.attack, **row.question}
            | {"accuracy": {name: side.as_json() for name, side in zip(self.groups, row.sides, strict=True)}}
            | {"difference": row.difference.as_json(), "warnings": row.warnings}
            for row in self.rows
        ]
        return {
            "groups": {name: [str(folder) for folder in folders] for name, folders in self.groups.items()},
            "checkpoint": self.checkpoint,
            "confidence": 0.95,
            "rows": rows,
            "left_out": {attack: [str(folder) for folder in folders] for attack, folders in self.left_out.items()},
        }

    def __str__(self) -> str:
        first, second = self.groups
        cells = [["attack", "eps", "n", first, second, f"{first} - {second}", "p", "test"]]
        for row in self.rows:
            d, eps = row.difference, row.question.get("eps")
            own = "norm" in row.question["settings"]  # a radius, which nobody writes in levels of 255
            points = f"{100 * d.estimate:+.2f} [{100 * d.low:+.2f}, {100 * d.high:+.2f}]"
            p = f"{d.p:.3f}" if d.p >= 0.001 else "<0.001"
            cells.append([
                row.attack, (f"{eps:g}" if own else str(write_fraction(eps))) if eps else "", str(row.question["n"]),
                *map(str, row.sides), points, p, f"{d.test} *" if row.warnings else d.test,
            ])  # fmt: skip
        lines = [f"{name}: {', '.join(map(str, folders))}" for name, folders in self.groups.items()]
        lines += ["", *align(cells), ""]
        several = "" if self.rows[0].sides[0].deviation is None else "; ± is the deviation between seeds"
        lines.append(f"{self.checkpoint} checkpoint; differences in points, intervals of 95 %{several}")
        lines += [f"* {row.attack}: {warning}" for row in self.rows for warning in row.warnings]
        lines += [f"left out: {attack}, not in {_listed(folders)}" for attack, folders in self.left_out.items()]
        return "\n".join(lines)


def compare(
    groups: Mapping[str, Sequence[Path | str]],
    *,
    attacks: Sequence[str] | None = None,
    checkpoint: str = "best",
) -> Comparison:
    """The first group's accuracy minus the second's, for each of these attacks (all that every run has been put to).

    A corruption goes by its name and severity, fog-3.
    A group is one run, or several that differ in their seed alone. One against one: McNemar's test of the two models.
    Several against several: the crossed bootstrap, which speaks of the methods.
    """
    paths = {name: [Path(folder) for folder in folders] for name, folders in groups.items()}
    if len(paths) != 2 or not all(paths.values()):
        raise UserError(f"compare takes two groups of run folders, not {len([g for g in paths.values() if g])}")
    for folders in paths.values():
        check_method(folders)
    first, second = paths.values()
    figures, left_out = read_figures([*first, *second], attacks=attacks, checkpoint=checkpoint)
    size = len(first)
    rows = [
        Row(
            attack=found.attack,
            question=found.question,
            sides=(_side(found.flags[:size]), _side(found.flags[size:])),
            difference=difference(found.flags[:size], found.flags[size:]),
            warnings=list(dict.fromkeys(warning for entry in found.entries for warning in entry.get("warnings", []))),
        )
        for found in figures
    ]
    return Comparison(paths, checkpoint, rows, left_out)


def named(first: Sequence[Path], second: Sequence[Path]) -> dict[str, Sequence[Path]]:
    """Two groups of runs under what their folders' names begin with, where that tells the groups apart."""
    short = []
    for folders in (first, second):
        names = [folder.resolve().name for folder in folders]
        start = os.path.commonprefix(names).rstrip("0123456789").rstrip("-_.")  # noqa: RUF071 (letters are meant)
        short.append(names[0] if len(names) == 1 else start)
    one, other = short if all(short) and short[0] != short[1] else ("first", "second")
    return {one: first, other: second}


def check_method(folders: Sequence[Path]) -> None:
    """A UserError unless these are runs of one method: seeds that differ, and nothing else that matters."""
    seeds: dict[int, Path] = {}
    first = RunFolder(folders[0]).read_config()
    for folder in folders:
        config = RunFolder(folder).read_config()
        differing = [what for what in differing_fields(first, config) if what.partition(":")[0] not in OWN]
        if differing:
            raise UserError(f"{folder} is not {folders[0]} with another seed ({'; '.join(differing)})")
        if config.seed in seeds:
            raise UserError(f"{folder} has the seed of {seeds[config.seed]}, {config.seed}: that is one run twice")
        seeds[config.seed] = folder


def read_figures(
    folders: Sequence[Path], *, attacks: Sequence[str] | None, checkpoint: str
) -> tuple[list[Figures], dict[str, list[Path]]]:
    """What all runs have answered, question by question, and the attacks that some have not been put to."""
    places = [folder.resolve() for folder in folders]
    for folder, place in zip(folders, places, strict=True):
        if places.count(place) > 1:
            raise UserError(f"{folder} is there twice")
    files = FILES if attacks else FILES[:1]  # of corruptions there are many: those that are named
    answers = [_answers(folder, checkpoint, files) for folder in folders]
    known = dict.fromkeys(attack for answer in answers for attack in answer)
    left_out: dict[str, list[Path]] = {}
    figures: list[Figures] = []
    for attack in dict.fromkeys(attacks or known):
        lacking = [folder for folder, answer in zip(folders, answers, strict=True) if attack not in answer]
        if not lacking:
            entries = [answer[attack] for answer in answers]
            figures += [_figures(attack, folders, same) for same in _same_question(attack, folders, entries)]
        elif attacks is None:
            left_out[attack] = lacking
        else:
            there = f"there are: {', '.join(known)}" if known else "there are none at all"
            raise UserError(f"no {attack} of the {checkpoint} checkpoint in {_listed(lacking)}; {there}")
    if not figures:
        raise UserError(f"no attack has been tried on the {checkpoint} checkpoints of all runs; see pixelpart evaluate")
    return figures, left_out


def _answers(folder: Path, checkpoint: str, files: Sequence[str]) -> dict[str, list[Entry]]:
    """A run's own entries for a checkpoint, by attack, or by corruption: fog-3."""
    RunFolder(folder).read_config()  # says so if it is no run folder
    found: dict[str, list[Entry]] = {}
    for entry in [entry for file in files for entry in read_entries(folder, file)]:
        if entry.get("checkpoint") == checkpoint and entry.get("subject") is None:
            found.setdefault(str(entry.get("attack")), []).append(entry)
    return found


def _same_question(attack: str, folders: Sequence[Path], answers: Sequence[list[Entry]]) -> list[list[Entry]]:
    """The entries of all runs, for each question that all have answered; a UserError if there is none."""
    shared = [[entry] for entry in answers[0]]
    for folder, entries in zip(folders[1:], answers[1:], strict=True):
        joined = [[*some, entry] for some in shared for entry in entries if not _differing(some[0], entry)]
        if not joined:
            what = "; ".join(_differing(shared[-1][0], entries[-1]))
            raise UserError(f"{attack} in {folder} is not what it is in {folders[0]} ({what})")
        shared = joined
    if shared[0][0].get("dataset") == "given" and len(folders) > 1 and "pixels" not in shared[0][0]:
        raise UserError(f"{attack} in {folders[0]} is about images that were given; which, its eval.json does not say")
    return shared


def _differing(a: Entry, b: Entry) -> list[str]:
    fields = [field for field in QUESTION if a.get(field) != b.get(field)]
    return [f"{field}: {a.get(field)!r} there, {b.get(field)!r} here" for field in fields]


def _figures(attack: str, folders: Sequence[Path], entries: list[Entry]) -> Figures:
    rows = []
    for folder, entry in zip(folders, entries, strict=True):
        flags = read_flags(folder, entry)
        if flags is None:
            raise UserError(f"the flags of {attack} in {folder} are missing or damaged; evaluate it again")
        rows.append(flags)
    return Figures(attack, entries, np.stack(rows))


def _side(flags: FlagArray) -> Side:
    accuracies = [int(run.sum()) / len(run) for run in flags]
    intervals = [wilson(int(run.sum()), len(run)) for run in flags]
    return Side(accuracies, intervals, plain.stdev(accuracies) if len(flags) > 1 else None)


def align(cells: Sequence[Sequence[str]]) -> list[str]:
    """Lines of columns, each as wide as it has to be."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join(f"{text:<{width}}" for text, width in zip(row, widths, strict=True)).rstrip() for row in cells]


def _listed(folders: Sequence[Path]) -> str:
    return ", ".join(map(str, folders))
