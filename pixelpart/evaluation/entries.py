"""The entries of eval.json and their checksums. No torch in here, so that listing runs is quick."""

import contextlib
import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pixelpart.errors import UserError
from pixelpart.files import parse_json, read_text
from pixelpart.runs import EVAL_SCHEMA, RunFolder, read_facts
from pixelpart.runs.records import ResultEntry, check_record

Entry = dict[str, Any]  # of eval.json


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
