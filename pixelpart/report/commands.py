"""The commands that make a figure again."""

import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pixelpart.config import (
    DEFAULT_EPS,
    DEFAULT_SEED,
    DEFAULT_STEP_SIZE,
    Config,
    flat,
    split_data_label,
    write_fraction,
)
from pixelpart.data import SETS
from pixelpart.recipes import RECIPES
from pixelpart.report.reading import Entry

FILLED_IN = ("size", "num_classes", "classes")  # by training, from the data set; the size of a folder is the user's
EVALUATE_DEFAULTS = {"eps": DEFAULT_EPS, "step-size": DEFAULT_STEP_SIZE, "seed": DEFAULT_SEED}


def train_command(config: Config, path: Path) -> str:
    """`pixelpart train RECIPE --seed S`, every field that differs from the recipe, `--out RUN`.

    Where the recipe's name is not known, the run's own config.json is what to train.
    """
    if config.recipe not in RECIPES:
        return _line(["pixelpart", "train", shown(path / "config.json"), "--out", "RUN"])
    recipe = flat(RECIPES[config.recipe](seed=config.seed))
    words = ["pixelpart", "train", config.recipe, "--seed", str(config.seed)]
    for name, value in flat(config).items():
        if value != recipe[name] and (name not in FILLED_IN or (name == "size" and config.data_options["size"])):
            words += _option(name, value)
    return _line([*words, "--out", shown(path)])


def evaluate_command(config: Config, path: Path, entries: Sequence[Entry]) -> str:
    """One command for entries that differ in the attack alone; none ("") for tensors, given in Python."""
    attacked = next((e for e in entries if e.attack != "natural"), entries[0])
    if attacked.dataset == "given":
        return ""
    words = [
        "pixelpart",
        "evaluate",
        shown(path),
        "--attacks",
        ",".join(e.attack for e in entries),
        "--checkpoint",
        attacked.checkpoint,
    ]
    if attacked.dataset != config.data_label:
        name, size, skip_bad = split_data_label(attacked.dataset)
        words += ["--data", name, *(["--size", str(size)] if size else []), *(["--skip-bad"] if skip_bad else [])]
    if attacked.attack != "natural":
        plain = [entry.eps or 0.0 for entry in entries if entry.attack != "natural" and not entry.own_eps]
        steps = [entry.settings["step_size"] for entry in entries if "step_size" in entry.settings]
        given: dict[str, list[float]] = {"eps": plain[:1], "seed": [attacked.seed], "step-size": steps[:1]}
        for name, value in ((name, value) for name, values in given.items() for value in values):
            if value != EVALUATE_DEFAULTS[name]:
                words += [f"--{name}", str(value if name == "seed" else write_fraction(value))]
    if attacked.engine != "own":
        words += ["--engine", attacked.engine]
    if attacked.gradients != "fp32":
        words += ["--search", attacked.gradients]
    dataset = SETS.get(attacked.dataset)
    if dataset is None or attacked.n != dataset.counts["test"]:
        words += ["--images", str(attacked.n)]
    return _line(words)


def report_command(paths: Sequence[Path], out: Path) -> str:
    return _line(["pixelpart", "report", *map(shown, paths), "--out", shown(out)])


def shown(path: Path) -> str:
    """The path from here where it lies beneath, else as given."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative


def _option(name: str, value: Any) -> list[str]:
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{flag}", str(value).lower()]
    return [f"--{flag}", ",".join(map(str, value)) if isinstance(value, list) else str(value)]


def _line(words: Sequence[str]) -> str:
    return " ".join(shlex.quote(word) for word in words)
