"""A run on disk: config.json, metrics.jsonl, checkpoints/, log.txt; and `Run`, the same opened for use.

torch is imported only by what reads or writes tensors, so that importing this module is quick.
"""

import contextlib
import hashlib
import json
import math
import shlex
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pixelpart.config import Config, config_from, differing_fields, is_user_code, read_config
from pixelpart.errors import UserError
from pixelpart.files import atomic_write, exclusive_lock, parse_json
from pixelpart.records import CheckpointFacts, read_record, read_row, write_row
from pixelpart.runtime.notebook import html_table

if TYPE_CHECKING:
    from torch import Tensor

    from pixelpart.models import Classifier

LOCKS = {".lock", ".lock.soft"}
UNFINISHED = {*LOCKS, ".config.json.partial"}  # what a run killed at its very start leaves
EVAL_SCHEMA = 1  # layout of eval.json
EXPLAIN_SCHEMA = 1  # layout of explain.json
MetricsRow = dict[str, Any]  # one line of metrics.jsonl
Facts = dict[str, Any]  # what a checkpoint says of itself: config, epoch, position, ...


# -- checkpoints


def save_checkpoint(path: Path, tensors: "Mapping[str, Tensor]", facts: Facts) -> None:
    """Writes tensors, facts and a checksum of both as one safetensors file; equal input gives equal bytes."""
    from safetensors.torch import save

    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    text = json.dumps(facts | {"sum": _checksum(plain, facts)}, sort_keys=True)
    atomic_write(path, save(plain, metadata={"pixelpart": text}))  # one key: safetensors does not order several


def load_checkpoint(path: Path) -> "tuple[dict[str, Tensor], Facts]":
    """Tensors and facts of a checkpoint; UserError if the file is missing, truncated, corrupt or of another kind."""
    from safetensors.torch import load_file

    facts = _read_metadata(path)
    with _readable(path):
        tensors = load_file(path)
        matches = facts.pop("sum") == _checksum(tensors, facts)
    if not matches:
        raise UserError(f"{path}: checksum mismatch: the file is corrupt")
    return tensors, facts


def read_facts(path: Path) -> Facts:
    """The facts of a checkpoint; its tensors are not read."""
    return {name: value for name, value in _read_metadata(path).items() if name != "sum"}


def _read_metadata(path: Path) -> Facts:
    from safetensors import safe_open

    with _readable(path), safe_open(path, "pt") as file:
        return read_record(CheckpointFacts, (file.metadata() or {})["pixelpart"])


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Errors of reading the file become UserErrors."""
    from safetensors import SafetensorError

    try:
        yield
    except FileNotFoundError:
        raise UserError(f"no checkpoint at {path}") from None
    except (SafetensorError, KeyError, ValueError, TypeError, OSError, RuntimeError) as error:
        raise UserError(f"{path} is truncated or not a pixelpart checkpoint ({error})") from None


def _checksum(tensors: "Mapping[str, Tensor]", facts: Facts) -> str:
    import torch

    digest = hashlib.blake2b(json.dumps(facts, sort_keys=True).encode(), digest_size=16)
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def fill(state: "Mapping[str, Tensor]", tensors: "Mapping[str, Tensor]", *, source: Path) -> None:
    """Copies a checkpoint's tensors into those of `state`, in place; UserError if names, shapes or dtypes differ."""
    import torch

    misfits = sorted(state.keys() ^ tensors.keys()) or [
        name
        for name, tensor in state.items()
        if (tensor.shape, tensor.dtype) != (tensors[name].shape, tensors[name].dtype)
    ]
    if misfits:
        raise UserError(
            f"{source} belongs to another model: {len(misfits)} tensors do not fit, the first is {misfits[0]}"
        )
    with torch.no_grad():
        for name, tensor in state.items():
            tensor.copy_(tensors[name])


# -- the folder


class RunFolder:
    """The files of one run, as training reads and writes them."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.config_file = self.path / "config.json"
        self.metrics_file = self.path / "metrics.jsonl"
        self.clock_file = self.path / "clock.json"
        self.log_file = self.path / "log.txt"

    def checkpoint(self, name: str) -> Path:
        """The file of a checkpoint: last, best or epoch-N."""
        return self.path / "checkpoints" / f"{name}.safetensors"

    def kept_epochs(self) -> list[int]:
        """The epochs N of the checkpoints epoch-N."""
        names = [file.stem.removeprefix("epoch-") for file in self.path.glob("checkpoints/epoch-*.safetensors")]
        return sorted(int(name) for name in names if name.isdecimal())

    def read_config(self) -> Config:
        if not self.config_file.exists():
            reason = "it has no config.json" if self.path.is_dir() else "no such folder"
            raise UserError(f"{self.path} is not a run folder: {reason}")
        return read_config(self.config_file)

    def check_config(self, config: Config) -> None:
        """UserError unless the folder is new, empty or holds a run with this config; the message says what differs."""
        if self.config_file.exists():
            theirs = self.read_config()
            if differing := differing_fields(theirs, config):
                raise UserError(
                    f"{self.path} holds a run with another config ({'; '.join(differing)}); "
                    + (self._command_that_goes_on(theirs, config) or "choose another --out")
                )
        elif self.path.exists() and (
            not self.path.is_dir() or any(entry.name not in UNFINISHED for entry in self.path.iterdir())
        ):
            raise UserError(f"{self.path} is not empty and not a run folder; choose another --out")

    def _command_that_goes_on(self, theirs: Config, config: Config) -> str:
        """The command for more epochs of a finished run; empty if this config asks for something else."""
        rows, more = self.read_metrics([]), theirs.model_copy(update={"epochs": config.epochs})
        if config != more or config.epochs < theirs.epochs or not rows or rows[-1]["epoch"] < theirs.epochs:
            return ""
        code = {"--model": config.model, "--data": config.dataset}
        words = [
            "pixelpart",
            "train",
            str(self.path),
            *(word for item in code.items() if is_user_code(item[1]) for word in item),
        ]
        words += ["--epochs", str(config.epochs), "--init-from", f"{self.path}@{theirs.epochs}"]
        return f"it is finished; to go on: {shlex.join([*words, '--out', f'{self.path}-{config.epochs}'])}"

    def write_config(self, config: Config) -> None:
        """Writes config.json unless it exists."""
        if not self.config_file.exists():
            atomic_write(self.config_file, config.to_json())

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keeps other processes out of the folder; UserError if one is working in it.

        A new folder to which nothing was written is removed again.
        """
        new = not self.path.exists()
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(exclusive_lock(self.path / ".lock", wait=False))
            except BlockingIOError as error:
                raise UserError(error.strerror) from None
            except OSError as error:
                raise UserError(f"cannot use {self.path} as a run folder: {error.strerror}") from None
            try:
                yield
            finally:
                if new and {file.name for file in self.path.iterdir()} <= LOCKS:
                    shutil.rmtree(self.path)

    def read_metrics(self, problems: list[str] | None = None) -> list[MetricsRow]:
        """The rows of metrics.jsonl: one for each epoch, from 1 or from the fork on.

        Corrupt lines and missing epochs are a UserError, unless `problems` is given: they are then described there, and
        the other rows are returned.
        """
        rows, found = list[MetricsRow](), list[str]()
        text = self.metrics_file.read_text(encoding="utf-8", errors="replace") if self.metrics_file.exists() else ""
        for number, line in enumerate(text.splitlines(), 1):
            try:
                row = read_row(line)
                if rows and row["epoch"] <= rows[-1]["epoch"]:
                    raise ValueError(f"epoch {row['epoch']} after epoch {rows[-1]['epoch']}")
                rows.append(row)
            except ValueError as error:
                found.append(f"line {number} is corrupt ({error})")
        epochs = {row["epoch"] for row in rows}
        first = 1 if not epochs or 1 in epochs else self._first_epoch()
        if missing := sorted(set(range(first, max(epochs, default=0) + 1)) - epochs):
            found.append(f"epochs without a row: {', '.join(map(str, missing[:10]))}{', ...' * (len(missing) > 10)}")
        found += ["rows from before the fork"] * any(epoch < first for epoch in epochs)
        if found and problems is None:
            raise UserError(f"{self.metrics_file}: {'; '.join(found[:3])}; restore the file or train the run again")
        if problems is not None:
            problems += [f"{self.metrics_file.name}: {problem}" for problem in found]
        return rows

    def _first_epoch(self) -> int:
        """The epoch after the fork; 1 if the run is not a fork."""
        epoch = self.read_config().init_from.rpartition("@")[2] if self.config_file.exists() else ""
        return int(epoch) + 1 if epoch.isdecimal() else 1

    def rewind_metrics(self, epoch: int) -> tuple[list[MetricsRow], list[str]]:
        """Removes the rows after this epoch; returns the others, and what is wrong with the file.

        A file with corrupt lines is kept as metrics.jsonl.corrupt.
        """
        problems: list[str] = []
        rows = self.read_metrics(problems)
        if any("corrupt" in problem for problem in problems):
            shutil.copyfile(self.metrics_file, f"{self.metrics_file}.corrupt")
            problems.append(f"it is kept as {self.metrics_file.name}.corrupt")
        kept = [row for row in rows if row["epoch"] <= epoch]
        if self.metrics_file.exists():
            self.write_metrics(kept)
        return kept, problems

    def write_metrics(self, rows: list[MetricsRow]) -> None:
        atomic_write(self.metrics_file, "".join(map(write_row, rows)))

    def read_clock(self, step: int) -> float | None:
        """The seconds of an epoch until the checkpoint at this step; None if they are not known."""
        try:
            seconds = parse_json(self.clock_file.read_text(encoding="utf-8"))[str(step)]
            return seconds if isinstance(seconds, float) and 0 <= seconds < math.inf else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def write_clock(self, seconds: Mapping[int, float]) -> None:
        """Keeps the seconds of an epoch until some steps; not in the checkpoint, whose bytes depend on no clock."""
        atomic_write(self.clock_file, json.dumps(seconds))

    def log(self, line: str) -> None:
        with open(self.log_file, "a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(line.rstrip("\n") + "\n")


# -- a run opened for use


@dataclass(frozen=True)
class Run:
    """A trained run: `Run("runs/part")` has .config, .metrics and .model.

    The model is the best checkpoint in eval mode, with averaged weights if the run averages them.
    """

    dir: Path

    def __post_init__(self) -> None:
        object.__setattr__(self, "dir", Path(self.dir))  # strings are accepted too

    @cached_property
    def folder(self) -> RunFolder:
        return RunFolder(self.dir)

    @cached_property
    def config(self) -> Config:
        return self.folder.read_config()

    @property
    def metrics(self) -> list[MetricsRow]:
        return self.folder.read_metrics()

    @cached_property
    def model(self) -> "Classifier":
        return self.load("best")[0]

    def load(self, checkpoint: str = "best") -> "tuple[Classifier, Facts]":
        """The model of a checkpoint in eval mode, and the checkpoint's facts: epoch, averaged or raw weights, ..."""
        return load_model(self.find_checkpoint(checkpoint), self.config)

    def find_checkpoint(self, checkpoint: str) -> Path:
        """The file of a checkpoint; UserError if the folder is no run or has none of that name."""
        _, path = self.config, self.folder.checkpoint(checkpoint)
        if not path.exists():
            saved = ", ".join(sorted(file.stem for file in path.parent.glob("*.safetensors")))
            hint = f"choose from {saved}" if saved else "none is saved yet"
            raise UserError(f"no checkpoint {checkpoint!r} in {self.dir}; {hint}")
        return path

    def describe(self) -> dict[str, str]:
        """What it is and how far it is, each in a few words."""
        try:
            config, rows = self.config, self.metrics
        except UserError as error:
            return {"run": str(error)}
        found = {"recipe": config.recipe, "model": config.model, "data": config.data_label, "seed": str(config.seed)}
        found["epochs"] = f"{rows[-1]['epoch'] if rows else 0} of {config.epochs}"
        if measured := [f"{name} {rows[-1][name]:.1%}" for name in ("natural", "pgd") if rows and name in rows[-1]]:
            found["last epoch"] = f"{', '.join(measured)} ({rows[-1].get('measured_on')} images)"
        return found

    def __repr__(self) -> str:
        return f"Run({str(self.dir)!r}), {'; '.join(f'{name}: {text}' for name, text in self.describe().items())}"

    def _repr_html_(self) -> str:
        return html_table({"run": self.dir, **self.describe()}.items())


def load_model(path: Path, config: Config) -> "tuple[Classifier, Facts]":
    """The model and the facts of a checkpoint of a run with this config; see `Run.load`."""
    tensors, facts = load_checkpoint(path)
    model = build_model(config)
    averaged = config.ema > 0
    prefix = "average." if averaged else "model."
    weights = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    fill(model.state_dict(), weights, source=path)
    if facts["config"] != config.hash():
        raise UserError(f"{path} belongs to another run: its config is {facts['config']}, not {config.hash()}")
    return model.eval(), facts | {"weights": "averaged" if averaged else "raw"}


def config_of(path: Path) -> Config:
    """The config stored in a checkpoint, with which the file can be used outside its run folder."""
    return config_from(read_facts(path)["settings"], source=str(path))


def build_model(config: Config) -> "Classifier":
    """The network of a config, with the initial weights of its seed."""
    from pixelpart import data, draws, models

    known = data.SETS.get(config.dataset)
    if known is None and config.num_classes and config.size:  # a set of the user's own, which need not be at hand
        num_classes, size, channels = config.num_classes, config.size, int(config.channels or 3)
        mean, std = data.folder.scaling(channels)
    else:
        dataset = known or data.of_config(config)
        num_classes, size, channels = dataset.num_classes, dataset.size, dataset.shape[0]
        mean, std = dataset.mean, dataset.std
    scaling: dict[str, Any] = {"mean": mean, "std": std} if config.normalize else {}
    return models.build(
        config.model,
        num_classes=num_classes,
        size=size,
        channels=channels,
        generator=draws.generator(config.seed, "weights"),
        **scaling,
    )
