"""The commands that reproduce the results."""

import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pixelpart.config import (
    DEFAULT_EPS,
    DEFAULT_SEED,
    Config,
    code_flags,
    flag_of,
    flat,
    is_user_code,
    split_data_label,
    write_fraction,
    write_size,
)
from pixelpart.data import SETS
from pixelpart.recipes import RECIPES
from pixelpart.report.run import Measurement, ReportedRun
from pixelpart.report.table import ResultRow

# by training, from the data set; the size of a folder is the user's
FILLED_IN = ("size", "num_classes", "classes", "channels", "auto")


def train_command(config: Config, path: Path) -> str:
    """`pixelpart train RECIPE --seed S`, every field that differs from the recipe, `--out RUN`.

    If the recipe is unknown, the command trains the run's config.json.
    """
    if config.recipe not in RECIPES:
        return _join(["pixelpart", "train", shorten(path / "config.json"), *code_flags(config), "--out", "RUN"])
    recipe = flat(RECIPES[config.recipe](seed=config.seed))
    words = ["pixelpart", "train", config.recipe, "--seed", str(config.seed)]
    for name, value in flat(config).items():
        if value != recipe[name] and (name not in FILLED_IN or (name == "size" and config.data_options["size"])):
            words += _option(name, value)
    return _join([*words, "--out", shorten(path)])


def evaluate_command(config: Config, path: Path, measurements: Sequence[Measurement]) -> str:
    """The command for measurements that differ only in the attack; "" if the images were passed as tensors."""
    attacked = [m for m in measurements if m.attack != "natural"]
    first = (attacked or measurements)[0]
    if first.dataset == "given":
        return ""
    words = ["pixelpart", "evaluate", shorten(path), "--attacks", ",".join(m.attack for m in measurements)]
    words += ["--checkpoint", first.checkpoint]
    words += ["--split", first.split] if first.split != "test" else []
    if first.dataset == config.data_label:
        words += code_flags(config)
    else:
        words += ["--model", config.model] if is_user_code(config.model) else []
        name, options = split_data_label(first.dataset)
        size, skip_bad = options.get("size"), options.get("skip_bad")
        words += [
            "--data",
            name,
            *(["--size", str(write_size(size))] if size else []),
            *(["--skip-bad"] if skip_bad else []),
        ]
    if attacked:
        eps = next((m.eps or 0.0 for m in attacked if not m.own_eps), DEFAULT_EPS)
        step_size = next((m.step_size for m in attacked if isinstance(m.step_size, float)), None)
        words += ["--eps", str(write_fraction(eps))] if eps != DEFAULT_EPS else []
        words += ["--seed", str(first.seed)] if first.seed != DEFAULT_SEED else []
        words += ["--step-size", str(write_fraction(step_size))] if step_size is not None else []
    words += ["--engine", first.engine] if first.engine != "own" else []
    words += ["--search", first.gradients] if first.gradients != "fp32" else []
    dataset = SETS.get(first.dataset)
    if dataset is None or first.n != dataset.counts["test"]:
        words += ["--images", str(first.n)]
    return _join(words)


def run_commands(run: ReportedRun, rows: Sequence[ResultRow]) -> dict[str, Any]:
    """The variables of commands.html for one run and its rows in the table.

    A row has a command for each number of images, engine and precision; a result of several rows is in one command.
    """
    groups: dict[tuple, list[Measurement]] = {}
    seen: set[int] = set()
    for number, row in enumerate(rows):
        for m in sorted(row.cells.values(), key=lambda m: m.attack != "natural"):
            if id(m) in seen:
                continue
            seen.add(id(m))
            groups.setdefault((number, m.n, m.engine, m.gradients), []).append(m)
    evaluations = [evaluate_command(run.config, run.path, group) for group in groups.values()]
    return {
        "commands": [train_command(run.config, run.path), *(command for command in evaluations if command)],
        "given": not all(evaluations),
        "machines": list(dict.fromkeys(m.machine for row in rows for m in row.cells.values() if m.machine)),
    }


def report_command(paths: Sequence[Path], out: Path) -> str:
    return _join(["pixelpart", "report", *map(shorten, paths), "--out", shorten(out)])


def experiment_command(name: str, scale: str, *, data: str, seeds: int, folder: Path) -> str:
    """The command that wrote the folder; one that is not named by its experiment alone has the data set at its end."""
    words = ["pixelpart", "experiment", name, "--scale", scale]
    words += ["--data", data] if folder.name == f"{name}-{data}" else []
    words += ["--seeds", str(seeds)] if seeds else []
    return _join([*words, "--out", shorten(folder.parent)])


def shorten(path: Path) -> str:
    """The path relative to the working folder if it lies below it, else as given."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative


def _option(name: str, value: Any) -> list[str]:
    if isinstance(value, bool):
        return [flag_of(name), str(value).lower()]
    return [flag_of(name), ",".join(map(str, value)) if isinstance(value, list) else str(value)]


def _join(words: Sequence[str]) -> str:
    return " ".join(shlex.quote(word) for word in words)
