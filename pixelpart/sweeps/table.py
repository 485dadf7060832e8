"""The table of a sweep: a row per job, with the fields that differ, accuracies, intervals and seconds; and means."""

import contextlib
import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from pixelpart.config import write_fraction
from pixelpart.errors import UserError
from pixelpart.evaluation.results import Entry, current_entries
from pixelpart.files import atomic_write
from pixelpart.runs import RunFolder, mean_budget
from pixelpart.runtime.tables import text_table, warning_lines
from pixelpart.sweeps.labels import Row, arms, differing
from pixelpart.sweeps.work import Job

if TYPE_CHECKING:
    from pixelpart.evaluation.attack_spec import AttackSpec

MEAN = "mean over seeds"  # the column of the labels of arms
HIDDEN = ("checkpoint", "split")  # in the text: the notes have them
ABOUT = ("low", "high", "n", "eps", "warnings")  # what follows an attack in the names of the columns about it


class SweepTable(list[Row]):
    """A row per run, all with the same keys, and `means` over the seeds; printed as aligned columns.

    The accuracy under an attack is a fraction in the column of that name, such as pgd20, and pgd20 low and pgd20 high
    are the ends of its interval.
    """

    def __init__(self, rows: Iterable[Row], attacks: Sequence[str], means: Sequence[Row] = ()) -> None:
        super().__init__(rows)
        self.attacks, self.means = attacks, list(means)

    def write_csv(self, path: Path) -> None:
        text = io.StringIO()
        writer = csv.DictWriter(text, list(self[0]), lineterminator="\n")
        writer.writeheader()
        for row in self:
            writer.writerow({name: "; ".join(v) if isinstance(v, list) else v for name, v in row.items()})
        atomic_write(path, text.getvalue())

    def __str__(self) -> str:
        """The columns that are not empty everywhere; the notes; the means, if an arm has several seeds."""
        hidden = {*HIDDEN, *(f"{attack} {what}" for attack in self.attacks for what in ABOUT)}
        head = [n for n in self[0] if n not in hidden and any(row[n] not in (None, "") for row in self)]
        text = "\n".join([text_table(head, self._cells(head, self)), *self.notes])
        several = any(row["seeds"] > 1 for row in self.means)
        return f"{text}\n\n{text_table(*self.means_as_text)}\n" if several else text

    @property
    def means_as_text(self) -> tuple[list[str], list[list[str]]]:
        """Head and cells of the table of means."""
        head = [MEAN, "seeds", "budget", *self.attacks]
        return head, self._cells(head, self.means)

    @property
    def notes(self) -> list[str]:
        """How the accuracies were measured, and the warnings about those with a star."""
        sizes = [row[f"{name} n"] for row in self for name in self.attacks if row[name] is not None]
        about = describe_conditions(self.attacks, sizes, split=self[0]["split"], checkpoint=self[0]["checkpoint"])
        stars = warning_lines((name, row[f"{name} warnings"]) for name in self.attacks for row in self)
        return [about, *stars] if about else []

    def _cells(self, head: Sequence[str], rows: Iterable[Row]) -> list[list[str]]:
        """Accuracies with their intervals in %, as 28.00% [17.47%, 41.67%]; with a star if there are warnings."""

        def text(row: Row, name: str) -> str:
            value = row[name]
            if value is not None and name in self.attacks:
                low, high = row[f"{name} low"], row[f"{name} high"]
                interval = "" if low is None else f" [{low:.2%}, {high:.2%}]"
                return f"{value:.2%}{interval}" + "*" * bool(row[f"{name} warnings"])
            if isinstance(value, float):
                return f"{value:.2f}" if name == "budget" else f"{value:.4g}"
            return "" if value is None else str(value)

        return [[text(row, name) for name in head] for row in rows]


def describe_conditions(columns: Sequence[str], sizes: Iterable[int], *, split: str, checkpoint: str = "") -> str:
    """attacks at eps 8/255; n = 500 test images; best checkpoint.

    Attacks are named if their eps differ or if there are other columns; `sizes` are the numbers of images of all
    results. "" without any.
    """
    if not (known := sorted(set(sizes))):
        return ""
    bounds: dict[str, list[str]] = {}
    specs = attack_specs(columns)
    for name, spec in specs.items():
        bounds.setdefault(spec.bound, []).append(name)
    named = len(bounds) > 1 or any(name not in specs for name in columns if name != "natural")
    parts = [f"{', '.join(names) if named else 'attacks'} at {bound}" for bound, names in bounds.items()]
    n = f"{known[0]:,}" + f" to {known[-1]:,}" * (len(known) > 1)
    parts.append(f"n = {n} {split} images")
    return "; ".join([*parts, *[f"{checkpoint} checkpoint"] * bool(checkpoint)])


def attack_specs(columns: Iterable[str]) -> "dict[str, AttackSpec]":
    """The attacks among the columns, by name, without natural."""
    from pixelpart.evaluation.attack_spec import parse_attack

    specs = {}
    for name in columns:
        with contextlib.suppress(UserError):
            specs[name] = parse_attack(name)
    return {name: spec for name, spec in specs.items() if spec.kind != "natural"}


def read_table(jobs: Sequence[Job], folders: Mapping[str, Path]) -> SweepTable:
    """A row per job, and means; `folders` are the run folders by id. Results that are not there are None."""
    entries = {job.id: _entries(job, folders.get(job.id)) for job in jobs}
    rows = {
        job.id: {"run": job.id, **fields, **_results(job, folders.get(job.id), entries[job.id])}
        for job, fields in zip(jobs, differing(jobs), strict=True)
    }
    means = []
    for label, group in arms(jobs).items():
        if complete := [job.id for job in group if entries[job.id] and all(entries[job.id].values())]:
            budgets = [rows[id]["budget"] for id in complete if rows[id]["budget"] is not None]
            mean = {MEAN: label, "seeds": len(complete), "budget": round(fmean(budgets), 2) if budgets else None}
            for attack in group[0].attacks:
                mean |= _mean(attack, [(folders[id], entries[id][attack] or {}) for id in complete])
            means.append(mean)
    return SweepTable(rows.values(), jobs[0].attacks, means)


def _entries(job: Job, folder: Path | None) -> dict[str, Entry | None]:
    """The result of each attack."""
    entries = current_entries(folder) if folder else []
    return {attack: find_entry(job, attack, entries) for attack in job.attacks}


def _mean(attack: str, entries: Sequence[tuple[Path, Entry]]) -> Row:
    """The mean accuracy of runs, folder and entry of each; its interval if all have flags of as many images."""
    import numpy as np

    from pixelpart.evaluation.statistics import accuracy_interval
    from pixelpart.evaluation.store import read_flags

    flags = [read_flags(folder, entry) for folder, entry in entries]
    known, low, high = [one for one in flags if one is not None], None, None
    if len(known) == len(flags) and len(set(map(len, known))) == 1:
        low, high = accuracy_interval(np.stack(known))
    warnings = dict.fromkeys(warning for _, entry in entries for warning in entry.get("warnings", []))
    return {
        attack: fmean(entry["accuracy"] for _, entry in entries), f"{attack} low": low, f"{attack} high": high,
        f"{attack} warnings": list(warnings),
    }  # fmt: skip


def _results(job: Job, folder: Path | None, entries: Mapping[str, Entry | None]) -> Row:
    """epochs, mean budget after burn-in in 1/255, checkpoint and split, what was measured under each attack, seconds.

    For an attack: its accuracy, the ends of the interval, the number of images, eps (but of natural), and warnings.
    """
    measured: Row = {}
    specs = attack_specs(job.attacks)
    problems: list[str] = []
    metrics = RunFolder(folder).read_metrics(problems) if folder else []
    seconds = math.nan if problems else sum(row["seconds"] for row in metrics)
    budget = mean_budget([] if problems else metrics)
    for attack in job.attacks:
        entry = entries[attack] or {}
        low, high = entry.get("interval", (None, None))
        measured |= {attack: entry.get("accuracy"), f"{attack} low": low, f"{attack} high": high}
        measured[f"{attack} n"] = entry.get("n")
        if attack in specs:
            eps = specs[attack].eps
            measured[f"{attack} eps"] = write_fraction(eps) if specs[attack].norm == "linf" else eps
        measured[f"{attack} warnings"] = entry.get("warnings", [])
        seconds += entry.get("seconds", 0.0)
    done = {"epochs": metrics[-1]["epoch"] if metrics else 0, "budget": None if budget is None else round(budget, 2)}
    done |= {"checkpoint": job.checkpoint, "split": job.split}
    return {**done, **measured, "seconds": round(seconds, 1)}


def find_entry(job: Job, attack: str, entries: Iterable[Entry]) -> Entry | None:
    """Of a run's results, that of the attack as the job requests it; of several, that on the most images."""
    from pixelpart.evaluation.attack_spec import parse_attack

    spec = parse_attack(attack, step_size=job.step_size)
    requested = {
        "attack": attack, "checkpoint": job.checkpoint, "split": job.split, "eps": spec.eps, "seed": spec.seed,
    }  # fmt: skip
    requested |= {"n": job.images} if job.images else {}
    matching = [
        entry
        for entry in entries
        if all(entry.get(name) == value for name, value in requested.items())
        if entry.get("settings", {}).get("step_size", spec.step_size) == spec.step_size
    ]
    return max(matching, key=lambda entry: entry["n"], default=None)
