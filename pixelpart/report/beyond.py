"""What a run folder knows beyond its figures: warnings, check's verdicts, and accuracy on corrupted images."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic import Field, ValidationError

from pixelpart.config import explain as explain_mistake
from pixelpart.evaluation.checks.obfuscation import SCHEMA
from pixelpart.evaluation.corruptions import FILE, mean_of
from pixelpart.evaluation.store import intact, read_flags
from pixelpart.report.reading import Entry, Record, RunFiles
from pixelpart.report.table import Row
from pixelpart.report.words import count, percent
from pixelpart.runs import EVAL_SCHEMA


class Behaviour(Record):
    name: str
    found: str
    verdict: str


class Checked(Record):
    """check.json."""

    verdict: str
    checkpoint: str | None = None
    epoch: int | None = None
    eps: float
    n: int
    behaviours: tuple[Behaviour, ...] = Field(min_length=1)
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Corrupted:
    """One checkpoint on all corrupted images that it was tried on; no interval where flags are missing."""

    run: RunFiles
    entry: Entry
    clean: Entry | None
    accuracy: float
    interval: Sequence[float] | None
    what: str
    lowest: str


def warned(table: Sequence[Row]) -> list[tuple[str, list[str]]]:
    """Every warning about a figure shown, with the runs and attacks it is about."""
    found: dict[str, list[str]] = {}
    for row in table:
        for attack, entry in row.cells.items():
            for warning in entry.warnings:
                about = f"{row.run.label}, {attack}"
                if about not in found.setdefault(warning, []):
                    found[warning].append(about)
    return list(found.items())


def checked(run: RunFiles) -> Checked | None:
    """The run's check.json, if there is one that can be read."""
    content = _content(run, "check.json", SCHEMA)
    try:
        return None if content is None else Checked.model_validate(content)
    except ValidationError as error:
        run.notes.append(f"check.json cannot be used ({explain_mistake(error)})")
        return None


def corrupted(run: RunFiles) -> list[Corrupted]:
    """A row for each checkpoint, number of images and source of corruptions."""
    content = _content(run, FILE, EVAL_SCHEMA) or {}
    groups: dict[tuple, dict[tuple[str, int], Entry]] = {}
    clean: dict[tuple, Entry] = {}
    for item in content.get("entries", []):
        try:
            entry = Entry.model_validate(item)
            cell = str(entry.settings["corruption"]), int(entry.settings["severity"])
        except (ValidationError, KeyError, TypeError, ValueError):
            run.notes.append(f"{FILE}: an entry is left out")
            continue
        if not intact(item):
            run.notes.append(f"{FILE}: the entry of {entry.attack} is damaged and left out")
            continue
        context = entry.checkpoint, entry.epoch, entry.weights, entry.dataset, entry.n
        if cell[1] == 0:
            clean[context] = entry
        else:
            groups.setdefault((*context, entry.settings.get("source")), {})[cell] = entry
    return [_row(run, cells, clean.get(key[:-1])) for key, cells in groups.items()]


def _row(run: RunFiles, cells: dict[tuple[str, int], Entry], clean: Entry | None) -> Corrupted:
    names, severities = sorted({name for name, _ in cells}), sorted({severity for _, severity in cells})
    by_name = {name: np.mean([e.accuracy for (other, _), e in cells.items() if other == name]) for name in names}
    worst = min(by_name, key=lambda name: by_name[name])
    accuracy, interval = float(np.mean([entry.accuracy for entry in cells.values()])), None
    flags = [read_flags(run.path, entry.model_dump()) for entry in cells.values()]
    known = [one for one in flags if one is not None]
    if len(known) == len(flags):
        accuracy, *interval = mean_of(np.stack(known))
    entry = next(iter(cells.values()))
    levels = f"{count(len(names), 'corruption')} at severity {', '.join(map(str, severities))}"
    return Corrupted(
        run=run,
        entry=entry,
        clean=clean,
        accuracy=accuracy,
        interval=interval,
        what=f"{levels}, {entry.settings.get('source')}",
        lowest=f"{worst} {percent(float(by_name[worst]))}",
    )


def _content(run: RunFiles, name: str, schema: int) -> dict[str, Any] | None:
    """A file that need not be there; one that is there and cannot be read becomes a note."""
    try:
        content = json.loads((run.path / name).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        run.notes.append(f"{name} cannot be read ({error})")
        return None
    if not isinstance(content, dict) or content.get("schema_version") != schema:
        run.notes.append(f"{name} is not of schema version {schema}, the one this version reads")
        return None
    if not intact(content):
        run.notes.append(f"{name} is damaged")
        return None
    return content
