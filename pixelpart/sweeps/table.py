"""The table of a sweep: a row per job, with the fields that differ, accuracies, intervals and seconds."""

import contextlib
import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pixelpart.config import Config, flat, write_fraction
from pixelpart.errors import UserError
from pixelpart.files import atomic_write
from pixelpart.runs import RunFolder, mean_budget
from pixelpart.runtime.tables import text_table, warning_lines
from pixelpart.sweeps.identity import unused
from pixelpart.sweeps.work import Job

if TYPE_CHECKING:
    from pixelpart.evaluation.attack_spec import AttackSpec

Row = dict[str, Any]
NOT_SHOWN = ("recipe", "keep", "schema_version")
ABOUT = (" low", " high", " n", " eps", " warnings")  # ends of the columns about an accuracy


class Table(list[Row]):
    """Rows with the same keys; printed as aligned columns."""

    def write_csv(self, path: Path) -> None:
        text = io.StringIO()
        writer = csv.DictWriter(text, list(self[0]), lineterminator="\n")
        writer.writeheader()
        for row in self:
            writer.writerow({name: "; ".join(v) if isinstance(v, list) else v for name, v in row.items()})
        atomic_write(path, text.getvalue())

    def __str__(self) -> str:
        """The columns that are not empty everywhere, accuracies with their intervals in %; then the notes."""
        hidden = ("checkpoint", "split")
        names = [
            n
            for n in self[0]
            if n not in hidden and not n.endswith(ABOUT) and any(row[n] not in (None, "") for row in self)
        ]
        return "\n".join([text_table(names, [[_shown(row, name) for name in names] for row in self]), *self.notes])

    @property
    def notes(self) -> list[str]:
        """How the accuracies were measured, and the warnings about those with a star."""
        attacks = [name for name in self[0] if f"{name} low" in self[0]]
        sizes = [row[f"{name} n"] for row in self for name in attacks if row[name] is not None]
        about = describe_conditions(attacks, sizes, split=self[0]["split"], checkpoint=self[0]["checkpoint"])
        stars = warning_lines((name, row[f"{name} warnings"]) for name in attacks for row in self)
        return [about, *stars] if about else []


def _shown(row: Row, name: str) -> str:
    value = row[name]
    if value is not None and f"{name} low" in row:
        return percent(value, (row[f"{name} low"], row[f"{name} high"]), warned=bool(row[f"{name} warnings"]))
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def percent(accuracy: float, interval: tuple[float, float] | None, *, warned: bool = False) -> str:
    """28.00% [17.47%, 41.67%]; with a star at the end if there are warnings."""
    return f"{accuracy:.2%}" + ("" if interval is None else " [{:.2%}, {:.2%}]".format(*interval)) + "*" * warned


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

    found = {}
    for name in columns:
        with contextlib.suppress(UserError):
            found[name] = parse_attack(name)
    return {name: spec for name, spec in found.items() if spec.kind != "natural"}


def differing(jobs: Sequence[Job]) -> list[Row]:
    """The fields in which the jobs' configs differ, for each job; None where the job does not use the field."""
    fields = [flat(job.config) for job in jobs]
    names = [
        n for n in (fields[0] if fields else {}) if n not in NOT_SHOWN and any(f[n] != fields[0][n] for f in fields)
    ]
    skipped = [unused(job.config) - {"init_from", "mask.rule", "burn_in.epochs"} for job in jobs]
    return [{n: None if n in s else f[n] for n in names} for f, s in zip(fields, skipped, strict=True)]


def describe(jobs: Sequence[Job]) -> dict[str, str]:
    """A label for each job, by its id: the fields in which it differs from the others, else its recipe."""
    labels = (_label(fields) for fields in differing(jobs))
    return {job.id: label or job.config.recipe for job, label in zip(jobs, labels, strict=True)}


def arms(jobs: Sequence[Job]) -> dict[str, list[Job]]:
    """Jobs that differ only in their seed, by the other fields in which jobs differ."""
    found: dict[str, list[Job]] = {}
    for job, fields in zip(jobs, differing(jobs), strict=True):
        found.setdefault(_label(fields, seed=False) or job.config.recipe, []).append(job)
    return found


def differing_runs(configs: Mapping[Path, Config]) -> dict[Path, Row]:
    """The fields in which the configs of runs differ, by run folder; None where a run does not use the field.

    Forks of a run next to them, as a shared burn-in leaves them, do not count as different.
    """
    jobs = []
    for path, config in configs.items():
        parent = Path(config.init_from.rpartition("@")[0]).name
        shared = bool(parent) and (path.parent / parent).is_dir()
        jobs.append(Job(config.model_copy(update={"init_from": ""}) if shared else config))
    return dict(zip(configs, differing(jobs), strict=True))


def settings_of_runs(configs: Mapping[Path, Config]) -> dict[Path, str]:
    """By run folder, the fields in which runs of one recipe differ, apart from the seed."""
    recipes: dict[str, dict[Path, Config]] = {}
    for path, config in configs.items():
        recipes.setdefault(config.recipe, {})[path] = config
    found = [differing_runs(group).items() for group in recipes.values()]
    return {path: _label(fields, seed=False) for group in found for path, fields in group}


def _label(fields: Row, *, seed: bool = True) -> str:
    return " ".join(f"{name}={v}" for name, v in fields.items() if v is not None and (seed or name != "seed"))


def rows(jobs: Sequence[Job], folders: Mapping[str, Path]) -> list[Row]:
    """A row per job; `folders` are the run folders by id. Results that are not there are None."""
    return [
        {"run": job.id, **fields, **results(job, folders.get(job.id))}
        for job, fields in zip(jobs, differing(jobs), strict=True)
    ]


def results(job: Job, folder: Path | None) -> Row:
    """epochs, mean budget after burn-in in 1/255, checkpoint and split, what was measured under each attack, seconds.

    For an attack: its accuracy, the ends of the interval, the number of images, eps (but of natural), and warnings.
    """
    found: Row = {}
    specs = attack_specs(job.attacks)
    problems: list[str] = []
    metrics = RunFolder(folder).read_metrics(problems) if folder else []
    seconds = math.nan if problems else sum(row["seconds"] for row in metrics)
    budget = mean_budget([] if problems else metrics)
    for attack in job.attacks:
        entry = find_entry(job, attack, folder) or {}
        low, high = entry.get("interval", (None, None))
        found |= {attack: entry.get("accuracy"), f"{attack} low": low, f"{attack} high": high}
        found[f"{attack} n"] = entry.get("n")
        if attack in specs:
            eps = specs[attack].eps
            found[f"{attack} eps"] = write_fraction(eps) if specs[attack].norm == "linf" else eps
        found[f"{attack} warnings"] = entry.get("warnings", [])
        seconds += entry.get("seconds", 0.0)
    done = {"epochs": metrics[-1]["epoch"] if metrics else 0, "budget": None if budget is None else round(budget, 2)}
    done |= {"checkpoint": job.checkpoint, "split": job.split}
    return {**done, **found, "seconds": round(seconds, 1)}


def find_entry(job: Job, attack: str, folder: Path | None) -> dict[str, Any] | None:
    """The entry of the run's eval.json that answers the job's question, the largest number of images first."""
    from pixelpart.evaluation.attack_spec import parse_attack
    from pixelpart.evaluation.store import read_entries

    spec = parse_attack(attack, step_size=job.step_size)
    requested = {
        "attack": attack, "checkpoint": job.checkpoint, "split": job.split, "eps": spec.eps, "seed": spec.seed,
    }  # fmt: skip
    requested |= {"n": job.images} if job.images else {}
    entries = read_entries(folder) if folder else []
    matching = [
        entry
        for entry in entries
        if all(entry.get(name) == value for name, value in requested.items())
        if entry.get("settings", {}).get("step_size", spec.step_size) == spec.step_size
    ]
    return max(matching, key=lambda entry: entry["n"], default=None)
