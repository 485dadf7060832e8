"""Run folders as they lie on disk; what is missing or torn becomes a note in words."""

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from safetensors import SafetensorError
from safetensors.numpy import load_file

from pixelpart.config import Config, read_config
from pixelpart.config import explain as explain_mistake
from pixelpart.errors import UserError
from pixelpart.evaluation.store import intact
from pixelpart.runs import EVAL_SCHEMA, EXPLAIN_SCHEMA


class Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class Entry(Record):
    """One figure of eval.json."""

    attack: str
    checkpoint: str
    epoch: int | None = None
    weights: str = "raw"
    dataset: str
    split: str = "test"
    accuracy: float = Field(ge=0, le=1)
    interval: tuple[float, float]
    n: int = Field(ge=0)
    eps: float | None = None
    settings: dict[str, Any] = {}
    seed: int = 0
    precision: str = "fp32"
    seconds: float | None = None
    machine: str = ""
    warnings: tuple[str, ...] = ()
    correct: int | None = None
    key: str | None = None
    fingerprint: str | None = None

    @property
    def engine(self) -> str:
        """Who ran the attack: we, or AutoAttack's authors' code."""
        return self.settings.get("engine", "own")

    @property
    def gradients(self) -> str:
        """The precision of the gradients in an attack by so many steps; it is part of what such an attack is."""
        return self.settings.get("search", "fp32") if "step_size" in self.settings else "fp32"

    @property
    def column(self) -> str:
        """The attack's name in a table, where two engines' figures may stand beside each other, or two precisions'."""
        unusual = [word for word in (self.engine, self.gradients) if word not in ("own", "fp32")]
        return ", ".join([self.attack, *unusual])

    @property
    def own_eps(self) -> bool:
        """Whether eps is the attack's own, and not the one that a row of the table has in common."""
        return "@" in self.attack or not self.settings.keys().isdisjoint({"norm", "eps_low"})


class Answer(Record):
    said: int | str = Field(alias="class")
    confidence: float


class Shown(Record):
    index: int
    label: int | str
    natural: Answer
    adversarial: Answer


class OnObject(Record):
    n: int | None = None
    dead: int = 0
    object_area: float
    high_budget_on_object: float | None = None
    heat_on_object: float | None = None


class Explained(Record):
    """explain.json."""

    schema_version: int
    checkpoint: str
    epoch: int | None = None
    weights: str = ""
    eps: float = Field(gt=0)
    steps: int
    classes: tuple[str, ...]
    images: tuple[Shown, ...]
    object: OnObject | None = None

    @model_validator(mode="after")
    def _readable(self) -> "Explained":
        if self.schema_version != EXPLAIN_SCHEMA:
            raise ValueError(f"schema_version {self.schema_version} is not {EXPLAIN_SCHEMA}")
        numbers = [c for i in self.images for c in (i.label, i.natural.said, i.adversarial.said) if isinstance(c, int)]
        if any(not 0 <= c < len(self.classes) for c in numbers):
            raise ValueError("a class number has no name")
        return self

    def name(self, what: int | str) -> str:
        return self.classes[what] if isinstance(what, int) else what


@dataclass
class RunFiles:
    """All that a page can know about a run; `notes` says in words what is not there."""

    path: Path
    config: Config
    label: str
    metrics: list[dict[str, Any]] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    explained: Explained | None = None
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def epochs_done(self) -> int:
        return max((row["epoch"] for row in self.metrics), default=0)


def read_run(path: Path) -> RunFiles:
    """A run folder's files; UserError where the folder is no run."""
    if not path.is_dir():
        raise UserError(f"{path} is not a run folder: no such folder")
    if not (path / "config.json").is_file():
        raise UserError(f"{path} is not a run folder: it has no config.json")
    run = RunFiles(path=path, config=read_config(path / "config.json"), label=path.resolve().name)
    run.metrics = _metrics(run)
    run.entries = _entries(run)
    run.explained, run.arrays = _explained(run)
    return run


def read_runs(paths: list[Path]) -> list[RunFiles]:
    """Each folder once, in the order given, labelled by the shortest end of its path that tells it from the others."""
    runs = [read_run(path) for path in {path.resolve(): path for path in paths}.values()]
    for run in runs:
        parts = run.path.resolve().parts
        others = [other.path.resolve().parts for other in runs if other is not run]
        length = next((k for k in range(1, len(parts)) if all(o[-k:] != parts[-k:] for o in others)), len(parts))
        run.label = "/".join(parts[-length:])
    return runs


def number(row: dict[str, Any], key: str) -> float:
    """A value of a metrics row as a float; NaN where there is none."""
    value = row.get(key)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan


def _metrics(run: RunFiles) -> list[dict[str, Any]]:
    try:
        lines = (run.path / "metrics.jsonl").read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        run.notes.append("no metrics.jsonl: no epoch of it is finished, so it has no curves yet")
        return []
    rows: dict[int, dict[str, Any]] = {}
    torn = 0
    for line in lines:
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            rows[int(row["epoch"])] = row
        except (ValueError, KeyError, TypeError):
            torn += 1
    if torn:
        run.notes.append(f"metrics.jsonl: {torn} {'line' if torn == 1 else 'lines'} could not be read and left out")
    done = max(rows, default=0)
    if done < run.config.epochs:
        run.notes.append(f"unfinished: {done} of {run.config.epochs} epochs are done")
    return [rows[epoch] for epoch in sorted(rows)]


def _json(run: RunFiles, name: str, *, absent: str) -> Any:
    try:
        return json.loads((run.path / name).read_text(encoding="utf-8"))
    except FileNotFoundError:
        run.notes.append(absent)
    except (OSError, ValueError) as error:
        run.notes.append(f"{name} cannot be read ({error})")
    return None


def _entries(run: RunFiles) -> list[Entry]:
    content = _json(run, "eval.json", absent="not evaluated yet: there is no eval.json")
    if content is None:
        return []
    if not isinstance(content, dict) or content.get("schema_version") != EVAL_SCHEMA:
        run.notes.append(f"eval.json is not of schema version {EVAL_SCHEMA}, the one this version reads")
        return []
    entries = []
    for item in content.get("entries", []):
        try:
            entry = Entry.model_validate(item)
        except ValidationError as error:
            run.notes.append(f"eval.json: an entry is left out ({explain_mistake(error)})")
            continue
        if intact(item):
            entries.append(entry)
        else:
            run.notes.append(f"eval.json: the entry of {entry.attack} is damaged and left out; evaluate it again")
    if not content.get("entries"):
        run.notes.append("not evaluated yet: eval.json has no entries")
    return entries


def _explained(run: RunFiles) -> tuple[Explained | None, dict[str, np.ndarray]]:
    content = _json(run, "explain.json", absent="no explained images yet: `pixelpart explain RUN` makes them")
    if content is None:
        return None, {}
    try:
        explained = Explained.model_validate(content)
    except ValidationError as error:
        run.notes.append(f"explain.json cannot be used ({explain_mistake(error)})")
        return None, {}
    try:
        arrays = load_file(run.path / "explain.safetensors")
        _check_shapes(arrays, len(explained.images))
    except FileNotFoundError:
        run.notes.append(
            "no pictures: explain.json is there, explain.safetensors is not; `pixelpart explain RUN` makes both"
        )
        return explained, {}
    except (OSError, SafetensorError, ValueError) as error:
        run.notes.append(f"no pictures: explain.safetensors cannot be used ({error})")
        return explained, {}
    return explained, arrays


def _check_shapes(arrays: dict[str, np.ndarray], n: int) -> None:
    missing = {"picture", "heat", "budget", "adversarial"} - arrays.keys()
    if missing:
        raise ValueError(f"it lacks {', '.join(sorted(missing))}")
    size = arrays["picture"].shape[-2:]
    wanted = {
        "picture": [(n, 3, *size)],
        "adversarial": [(n, 3, *size)],
        "heat": [(n, *size)],
        "budget": [(n, 1, *size), (n, 3, *size)],
    }
    for name, shapes in wanted.items():
        if arrays[name].shape not in shapes:
            raise ValueError(f"{name} has shape {arrays[name].shape}, not {shapes[0]}")
        if not np.isfinite(arrays[name]).all():
            raise ValueError(f"{name} holds values that are not finite")
