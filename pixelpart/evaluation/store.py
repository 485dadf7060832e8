"""Results on disk: eval.json, an entry an attack, and flags by sample under eval/; each file old or new, never torn."""

import contextlib
import fcntl
import hashlib
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pixelpart.errors import UserError
from pixelpart.evaluation.identity import agree, digest
from pixelpart.files import atomic_write
from pixelpart.runs import EVAL_SCHEMA

Entry = dict[str, Any]
FlagArray = NDArray[np.bool_]

# what was asked, as a reader of the file would put it: a newer answer to the same question takes the older one's place
QUESTION = ("attack", "subject", "checkpoint", "dataset", "split", "n", "eps", "settings", "seed", "precision")


def read_entries(folder: Path, file: str = "eval.json") -> list[Entry]:
    """The entries of a folder's eval.json, none where there is no such file; one that cannot be read is a UserError.

    An entry that is damaged counts as never written.
    """
    path = folder / file
    afresh = "move it away to start afresh"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return []
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"cannot read {path}: {error}; {afresh}") from None
    entries = content.get("entries") if isinstance(content, dict) else None
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise UserError(f"{path} does not hold a list of results; {afresh}")
    if (version := content.get("schema_version")) != EVAL_SCHEMA:
        raise UserError(f"{path} has schema_version {version!r}, this version reads {EVAL_SCHEMA}; {afresh}")
    return [_renamed(entry) for entry in entries if intact(entry)]


def _renamed(entry: Entry) -> Entry:
    """An entry of an older version, which called its warnings doubts, as it is written now."""
    if "doubts" not in entry:
        return entry
    return sealed({("warnings" if field == "doubts" else field): value for field, value in entry.items()})


def find(folder: Path, entries: list[Entry], *, asked: str, probe: list[float]) -> tuple[Entry, FlagArray] | None:
    """The stored result for this question about this very model, with its flags; None where any part of it is amiss."""
    for entry in entries:
        if whole(entry) and entry.get("asked") == asked and agree(entry["probe"], probe):
            flags = read_flags(folder, entry)
            if flags is not None:
                return entry, flags
    return None


def add(folder: Path, entry: Entry, flags: FlagArray, file: str = "eval.json") -> None:
    """Writes the flags, then an eval.json with this entry; what it replaces goes."""
    buffer = io.BytesIO()
    np.save(buffer, flags, allow_pickle=False)
    with _alone(folder):
        entries = read_entries(folder, file)
        atomic_write(_flags_file(folder, entry["key"]), buffer.getvalue())
        stale = [old for old in entries if _replaces(entry, old)]
        kept = [old for old in entries if old not in stale]
        text = json.dumps({"schema_version": EVAL_SCHEMA, "entries": [*kept, entry]}, indent=2, allow_nan=False)
        atomic_write(folder / file, text + "\n")
        for key in {str(old.get("key")) for old in stale} - {str(old.get("key")) for old in [*kept, entry]}:
            if _is_key(key):
                _flags_file(folder, key).unlink(missing_ok=True)


def fingerprint(flags: FlagArray) -> str:
    """A hash of the flags, so that a flipped byte in their file is noticed."""
    return hashlib.sha256(np.packbits(flags).tobytes() + str(len(flags)).encode()).hexdigest()[:16]


def sealed(content: Entry) -> Entry:
    """The content with a hash of all its fields, so that a flipped byte in them is noticed."""
    plain = {field: value for field, value in content.items() if field != "sum"}
    return plain | {"sum": digest(plain)[:16]}


def intact(content: Entry) -> bool:
    """Whether the content is as it was sealed; what an older version wrote has no seal."""
    return "sum" not in content or content == sealed(content)


def _replaces(new: Entry, old: Entry) -> bool:
    # without a checkpoint's name two models cannot be told apart by the question; there each keeps its own entry
    fields = QUESTION if new["checkpoint"] else (*QUESTION, "key")
    return all(old.get(field) == new[field] for field in fields)


def read_flags(folder: Path, entry: Entry) -> FlagArray | None:
    """Which samples an entry counts as right; None where their file is missing, damaged or not what the entry says."""
    if not _is_key(entry.get("key")):
        return None
    try:
        content = _flags_file(folder, entry["key"]).read_bytes()
        flags = np.lib.format.read_array(io.BytesIO(content), allow_pickle=False)
    except Exception:  # numpy parses the file's head as Python: a flipped byte there fails in many ways
        return None
    if flags.dtype != np.bool_ or flags.shape != (entry.get("n"),) or entry.get("fingerprint") != fingerprint(flags):
        return None
    correct = int(flags.sum())
    return flags if (entry.get("correct"), entry.get("accuracy")) == (correct, correct / len(flags)) else None


def _flags_file(folder: Path, key: str) -> Path:
    return folder / "eval" / f"{key}.npy"


def _is_key(key: Any) -> bool:
    return isinstance(key, str) and re.fullmatch("[0-9a-f]{16,64}", key) is not None


def whole(entry: Entry) -> bool:
    """Whether an entry has what tells whose it is, and its warnings."""
    return _numbers(entry.get("probe")) and _words(entry.get("warnings")) and isinstance(entry.get("attack"), str)


def _numbers(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, int | float) for item in value)


def _words(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Waits for other evaluations of this folder to finish their write; the lock dies with its process."""
    try:
        (folder / "eval").mkdir(parents=True, exist_ok=True)
        file = open(folder / "eval" / ".lock", "a+")  # noqa: SIM115 (closed below)
    except OSError as error:
        raise UserError(f"cannot write results to {folder}: {error.strerror}") from None
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
