"""The runs below a folder: found, summarised, deleted. No torch in here."""

import contextlib
import itertools
import math
import os
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from pixelpart.config import DEFAULT_EPS, Config, config_from
from pixelpart.errors import UserError, similar_path
from pixelpart.evaluation.results import Entry, current_entries, on_most_images
from pixelpart.files import lock_holder, parse_json, read_text
from pixelpart.runs import MetricsRow, RunFolder

# What a run folder consists of. Files of these folders count if they have one of the suffixes.
FILES = (
    "metrics.jsonl", "log.txt", "eval.json", "check.json", "corruptions.json", "explain.json", "explain.safetensors",
    "explain.png", "done.json", "clock.json", "metrics.jsonl.corrupt", "config.json", ".lock.soft", ".lock",
)  # fmt: skip
FOLDERS = {
    "checkpoints": (".safetensors", ".partial"),
    "eval": (".npy", ".partial", ".lock", ".soft"),
    "measures": (".json", ".partial"),
}


@dataclass(frozen=True)
class ListedAccuracy:
    """An accuracy, and how it was measured."""

    accuracy: float
    attack: str
    eps: float
    images: int
    split: str  # test or held-out
    checkpoint: str | None  # None: the weights of the last epoch, measured during training
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class ListedRun:
    path: Path
    state: str  # running, exported (by export --to hub), finished, unfinished or unreadable
    recipe: str = ""
    model: str = ""
    data: str = ""
    seed: int | None = None
    epoch: int = 0  # the last that is finished
    epochs: int = 0
    natural: ListedAccuracy | None = None
    robust: ListedAccuracy | None = None  # under the attack with the lowest accuracy
    problem: str = ""
    config: Config | None = None  # None if it cannot be read

    def as_json(self) -> dict[str, Any]:
        facts = asdict(replace(self, config=None))
        return {"run": str(self.path)} | {name: v for name, v in facts.items() if name not in ("path", "config")}


# -- finding


def find_folders(root: Path, *, seconds: float = math.inf) -> Iterator[Path]:
    """The run folders at and below `root`; hidden folders and symbolic links below it are not entered.

    Those found within `seconds`.
    """
    end = time.monotonic() + seconds
    for folder, names, files in os.walk(root):
        if time.monotonic() > end:
            return
        is_run_folder = "config.json" in files and is_run(Path(folder))
        names[:] = [name for name in names if not name.startswith(".") and not (is_run_folder and name in FOLDERS)]
        if is_run_folder:
            yield Path(folder)


def is_run(folder: Path) -> bool:
    return _read_config(folder) is not None


def find_runs(words: Iterable[str] = ()) -> list[ListedRun]:
    """The runs that the words select, at and below a folder, or all that match a pattern.

    Sorted by the folder that they are in, recipe, seed and name.

    A pattern is that of a path, or, without a slash, of a name or a recipe. Without words: below the current folder.
    """
    by_path: dict[Path, ListedRun] = {}
    for word in list(words) or ["."]:
        path = Path(word)
        if path.is_dir():
            runs = [read_run(folder) for folder in find_folders(path)]
            problem = f"no runs in {word}"
        else:
            plain = itertools.takewhile(lambda part: not re.search(r"[*?\[]", part), path.parts[:-1])
            runs = [run for run in map(read_run, find_folders(Path(*plain))) if _matches(run, str(path))]
            problem = f"no run matches {word!r}; {similar_path(path)}".removesuffix("; ")
        if not runs and list(words):
            raise UserError(problem)
        by_path |= {run.path: run for run in runs}
    return sorted(by_path.values(), key=_order)


def _matches(run: ListedRun, pattern: str) -> bool:
    texts = [str(run.path)] if "/" in pattern else [str(run.path), run.path.name, run.recipe]
    return any(fnmatchcase(text, pattern) for text in texts)


def _order(run: ListedRun) -> tuple[Any, ...]:
    return _number_aware(str(run.path.parent)), run.recipe, run.seed or 0, _number_aware(run.path.name)


def _number_aware(text: str) -> list[str | int]:
    """A key that sorts part-2 before part-10."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"([0-9]+)", text)]


# -- reading


def _read_config(folder: Path) -> dict[str, Any] | None:
    """config.json, or None if it is not that of a run; many programs have a file of this name."""
    with contextlib.suppress(OSError, ValueError):
        values = parse_json(read_text(folder / "config.json"))
        if isinstance(values, dict) and values.keys() >= {"schema_version", "recipe"}:
            return values
    return None


def read_run(folder: Path) -> ListedRun:
    """What is known of a run; `problem` says which file cannot be read."""
    running = holder(folder) != ""
    try:
        config = config_from(_read_config(folder), source=str(folder / "config.json"))
    except UserError as error:
        return ListedRun(folder, "running" if running else "unreadable", problem=str(error))
    entries, problems = list[Entry](), list[str]()
    try:
        entries = current_entries(folder, problems=problems)
    except UserError as error:
        problems.append(str(error))
    rows = RunFolder(folder).read_metrics(problems, epochs=config.epochs)
    epoch = rows[-1]["epoch"] if rows else 0
    natural, robust = _results(config, entries)
    if rows:
        natural = natural or _during_training(config, rows[-1], "natural")
        if config.eps:
            robust = robust or _during_training(config, rows[-1], "pgd")
    state = "finished" if epoch >= config.epochs else "unfinished"
    return ListedRun(
        folder,
        "running" if running else "exported" if RunFolder(folder).exported else state,
        recipe=config.recipe, model=config.model, data=config.data_label, seed=config.seed,
        epoch=epoch, epochs=config.epochs, natural=natural, robust=robust, problem="; ".join(problems),
        config=config,
    )  # fmt: skip


def _results(config: Config, entries: list[Entry]) -> tuple[ListedAccuracy | None, ListedAccuracy | None]:
    """Natural accuracy, and the lowest under an attack at 8/255, else at any eps; of one checkpoint and split.

    Of each attack, the result on the most images counts.
    Test images come before held-out ones, then best before last before other checkpoints.
    """
    own = [entry for entry in entries if entry.get("subject") is None and entry.get("dataset") == config.data_label]
    kinds = {(entry["split"], entry["checkpoint"]) for entry in own}
    if not kinds:
        return None, None
    order = {"best": 0, "last": 1}
    split, checkpoint = min(kinds, key=lambda kind: (kind[0] != "test", order.get(kind[1], 2), kind[1]))
    chosen = [entry for entry in own if (entry["split"], entry["checkpoint"]) == (split, checkpoint)]
    natural = [entry for entry in chosen if entry["attack"] == "natural"]
    attacked = [entry for entry in chosen if entry["attack"] != "natural"]
    usual = [entry for entry in attacked if entry["eps"] == DEFAULT_EPS]
    lowest = min(on_most_images(usual or attacked), key=lambda entry: entry["accuracy"], default=None)
    return _measured(on_most_images(natural)[0]) if natural else None, _measured(lowest) if lowest else None


def _measured(entry: Entry) -> ListedAccuracy:
    accuracy, attack, eps = entry["accuracy"], entry["attack"], entry["eps"]
    warnings = tuple(entry.get("warnings", ()))
    return ListedAccuracy(accuracy, attack, eps, entry["n"], entry["split"], entry["checkpoint"], warnings)


def _during_training(config: Config, row: MetricsRow, name: str) -> ListedAccuracy:
    attack, eps = ("natural", 0.0) if name == "natural" else (f"pgd{config.attack.steps}", config.eps)
    return ListedAccuracy(row[name], attack, eps, config.holdout or config.probe, row["measured_on"], None)


def holder(folder: Path) -> str:
    """The process that trains the run, or works on it as a job of a sweep; "" if none does."""
    job = folder.parent.parent / "jobs" / f"{folder.name}.lock"
    return lock_holder(folder / ".lock") or (lock_holder(job) if folder.parent.name == "runs" else "")


# -- deleting


def delete_run(folder: Path) -> list[Path]:
    """Deletes the files of a run and returns those that are left: links, and what does not belong to a run.

    config.json is deleted last, so that a deletion that was interrupted can be repeated.
    """
    check_deletable(folder)
    with RunFolder(folder).locked():
        for name, suffixes in FOLDERS.items():
            if (folder / name).is_dir() and not (folder / name).is_symlink():
                for path in (folder / name).iterdir():
                    if path.suffix in suffixes or path.name in suffixes:
                        _unlink(path)
                with contextlib.suppress(OSError):
                    (folder / name).rmdir()
        for name in FILES:
            _unlink(folder / f".{name}.partial")
            _unlink(folder / name)
        with contextlib.suppress(OSError):
            folder.rmdir()
    return sorted(folder.iterdir()) if folder.exists() else []


def check_deletable(folder: Path) -> None:
    """UserError if the folder is a link or not a run, or if a process works in it."""
    if folder.is_symlink():
        raise UserError(f"{folder} is a symbolic link; delete the run at {folder.resolve()}")
    if not is_run(folder):
        raise UserError(f"{folder} is not a run folder")
    if who := holder(folder):
        raise UserError(f"{folder} is in use by {who}")


def _unlink(path: Path) -> None:
    if path.is_file() and not path.is_symlink():
        path.unlink()
