"""What `evaluate` returns, and the entries of eval.json. No torch or numpy in here, so that listing runs is quick."""

import contextlib
import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pixelpart.errors import UserError
from pixelpart.files import parse_json, read_text
from pixelpart.runs import EVAL_SCHEMA, RunFolder, read_facts
from pixelpart.runs.records import ResultEntry, check_record
from pixelpart.runtime.tables import html_table, warning_lines

if TYPE_CHECKING:
    from pixelpart.evaluation.statistics import FlagArray

Entry = dict[str, Any]  # of eval.json


@dataclass(frozen=True)
class Outcome:
    """The result of one attack: its entry in eval.json, which samples remain correct, and whether it was reused."""

    entry: Entry
    right: "FlagArray"
    reused: bool

    @property
    def accuracy(self) -> float:
        return self.entry["accuracy"]

    @property
    def interval(self) -> tuple[float, float]:
        low, high = self.entry["interval"]
        return low, high

    @property
    def correct(self) -> int:
        return self.entry["correct"]

    @property
    def n(self) -> int:
        return self.entry["n"]

    @property
    def warnings(self) -> list[str]:
        """Reasons why the number may be unreliable."""
        return self.entry["warnings"]

    def __repr__(self) -> str:
        return repr(self._alone)

    def _repr_html_(self) -> str:
        return self._alone._repr_html_()

    @property
    def _alone(self) -> "Result":
        return Result({self.entry["attack"]: self})


@dataclass(frozen=True)
class Result:
    """The outcome of every requested attack, by name and in that order: `result["pgd20"].accuracy`."""

    outcomes: dict[str, Outcome]

    def __getitem__(self, attack: str) -> Outcome:
        return self.outcomes[attack]

    def __iter__(self) -> Iterator[str]:
        return iter(self.outcomes)

    def __len__(self) -> int:
        return len(self.outcomes)

    @property
    def entries(self) -> list[Entry]:
        return [outcome.entry for outcome in self.outcomes.values()]

    @property
    def flags(self) -> "dict[str, FlagArray]":
        return {name: outcome.right for name, outcome in self.outcomes.items()}

    def _repr_html_(self) -> str:
        rows: list[list[object]] = []
        notes: list[str] = []
        for name, outcome in self.outcomes.items():
            entry, (low, high) = outcome.entry, outcome.interval
            images = f"{outcome.n} {entry['dataset']} {entry['split']}" if entry["dataset"] != "given" else outcome.n
            spent = "reused" if outcome.reused else f"{entry['seconds']:.1f} s"
            star = " *" if outcome.warnings else ""
            rows.append([name, f"{outcome.accuracy:.2%}{star}", f"{low:.2%} to {high:.2%}", images, spent])
            notes += [f"* {name}: {warning}" for warning in outcome.warnings]
        return html_table(rows, head=["attack", "accuracy", "95 % interval", "images", "time"], notes=notes)

    def _ipython_key_completions_(self) -> list[str]:
        return list(self.outcomes)

    def __str__(self) -> str:
        """One line per attack, with its seconds or "reused", and a star if there are warnings; then the warnings."""
        lines: list[str] = []
        width = max([12, *map(len, self.outcomes)])
        for name, outcome in self.outcomes.items():
            low, high = outcome.interval
            spent = "reused" if outcome.reused else f"{outcome.entry['seconds']:.1f} s"
            of = " held-out" if outcome.entry["split"] == "held-out" else ""
            interval = f"[{low:.2%}, {high:.2%}]"
            numbers = f"{outcome.accuracy:7.2%}  {interval:<16}  n = {outcome.n}{of}"
            line = f"{name:<{width}} {numbers}  {spent:>9}"
            lines.append(f"{line} *" if outcome.warnings else line)
        notes = warning_lines((name, outcome.warnings) for name, outcome in self.outcomes.items())
        return "\n".join([*lines, *notes])

    __repr__ = __str__


# -- eval.json


def read_entries(folder: Path, file: str = "eval.json", problems: list[str] | None = None) -> list[Entry]:
    """The entries of a folder's eval.json; [] without a file, a UserError if it is unreadable.

    Entries that are corrupt or not results are left out; why is added to `problems`.
    """
    path = folder / file
    hint = "move it away to start afresh"
    try:
        content = parse_json(read_text(path))
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {path}: {error}; {hint}") from None
    entries = content.get("entries") if isinstance(content, dict) else None
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise UserError(f"{path} does not hold a list of results; {hint}")
    if (version := content.get("schema_version")) != EVAL_SCHEMA:
        raise UserError(f"{path} has schema_version {version!r}, this version reads {EVAL_SCHEMA}; {hint}")
    found: list[Entry] = []
    for entry in entries:
        try:
            if not checksum_matches(entry):
                raise ValueError("checksum mismatch")
            found.append(_with_warnings(check_record(ResultEntry, entry)))
        except ValueError as error:
            if problems is not None:
                problems.append(f"{file}: an entry is left out ({error})")
    return found


def _with_warnings(entry: Entry) -> Entry:
    """The entry, with `warnings` where an older version wrote `doubts`."""
    if "doubts" not in entry:
        return entry
    return with_checksum({("warnings" if name == "doubts" else name): value for name, value in entry.items()})


def current_entries(folder: Path, file: str = "eval.json", problems: list[str] | None = None) -> list[Entry]:
    """As `read_entries`, without those of a checkpoint that later training replaced, such as an older `last`."""
    entries, epochs = read_entries(folder, file, problems), dict[str, int]()
    for name in {entry["checkpoint"] for entry in entries if entry.get("checkpoint")}:
        with contextlib.suppress(UserError):  # results may be kept without checkpoints
            epochs[name] = read_facts(RunFolder(folder).checkpoint(name))["epoch"]

    def replaced(entry: Entry) -> bool:
        measured, now = entry.get("epoch"), epochs.get(entry.get("checkpoint") or "")
        return entry.get("subject") is None and None not in (measured, now) and measured != now

    return [entry for entry in entries if not replaced(entry)]


def on_most_images(entries: Iterable[Entry]) -> list[Entry]:
    """Of each attack with its eps, the result on the most images; of several such results, the lowest accuracy."""
    found: dict[tuple[str, float], Entry] = {}
    for entry in entries:
        key = entry["attack"], entry["eps"]
        rank = (entry["n"], -entry["accuracy"])
        if key not in found or rank >= (found[key]["n"], -found[key]["accuracy"]):
            found[key] = entry
    return list(found.values())


def with_checksum(content: Entry) -> Entry:
    """The content with `sum`, a checksum of all its fields."""
    plain = {name: value for name, value in content.items() if name != "sum"}
    return plain | {"sum": hash_json(plain)[:16]}


def checksum_matches(content: Entry) -> bool:
    """Whether the checksum is right; entries of older versions have none."""
    return "sum" not in content or content == with_checksum(content)


def hash_json(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
