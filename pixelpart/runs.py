"""A run on disk: config.json, metrics.jsonl, checkpoints/, log.txt; and opened for use: its config, metrics, model."""

import contextlib
import fcntl
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save
from torch import Tensor

from pixelpart import data, draws, models
from pixelpart.config import Config, config_from, differing_fields, read_config
from pixelpart.errors import UserError
from pixelpart.files import atomic_write
from pixelpart.models import Classifier

EVAL_SCHEMA = 1  # layout of eval.json
EXPLAIN_SCHEMA = 1  # layout of explain.json
Row = dict[str, Any]


def save_checkpoint(path: Path, tensors: Mapping[str, Tensor], facts: Row) -> None:
    """Writes tensors and a few facts, with a sum over both, as one safetensors file; equal input gives equal bytes."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    text = json.dumps(facts | {"sum": _sum(plain, facts)}, sort_keys=True)
    atomic_write(path, save(plain, metadata={"pixelpart": text}))  # in one text: the order of several is left to chance


def load_checkpoint(path: Path) -> tuple[dict[str, Tensor], Row]:
    """Tensors and facts of a checkpoint; a missing, torn, damaged or foreign file is a UserError."""
    tensors, facts = _reading(path, lambda: load_file(path)), _all_facts(path)
    told = facts.pop("sum", None)  # older files have none
    if told not in (None, _sum(tensors, facts)):
        raise UserError(f"{path} is damaged: it is not what was written, by its sum")
    return tensors, facts


def read_facts(path: Path) -> Row:
    """The facts of a checkpoint, without its tensors."""
    return {name: value for name, value in _all_facts(path).items() if name != "sum"}


def _all_facts(path: Path) -> Row:
    def facts() -> Row:
        with safe_open(path, "pt") as file:
            return dict(json.loads((file.metadata() or {})["pixelpart"]))

    return _reading(path, facts)


def _sum(tensors: Mapping[str, Tensor], facts: Row) -> str:
    digest = hashlib.blake2b(json.dumps(facts, sort_keys=True).encode(), digest_size=16)
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def fill(state: Mapping[str, Tensor], tensors: Mapping[str, Tensor], *, source: Path) -> None:
    """Copies a checkpoint's tensors into live ones, in place; those of another model are a UserError."""
    misfits = sorted(state.keys() ^ tensors.keys()) or [
        name for name in state if state[name].shape != tensors[name].shape
    ]
    if misfits:
        raise UserError(
            f"{source} belongs to another model: {len(misfits)} tensors do not fit, the first is {misfits[0]}"
        )
    with torch.no_grad():
        for name, tensor in state.items():
            tensor.copy_(tensors[name])


def _reading(path: Path, read: Any) -> Any:
    try:
        return read()
    except FileNotFoundError:
        raise UserError(f"no checkpoint at {path}") from None
    except (SafetensorError, KeyError, ValueError, TypeError, OSError) as error:
        raise UserError(f"{path} is truncated or not a checkpoint of pixelpart ({error})") from None


class RunFolder:
    """The paths of one run, and what may be done with them."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.config_file = self.path / "config.json"
        self.metrics_file = self.path / "metrics.jsonl"
        self.log_file = self.path / "log.txt"

    def checkpoint(self, name: str) -> Path:
        """last, best, or epoch-N."""
        return self.path / "checkpoints" / f"{name}.safetensors"

    def read_config(self) -> Config:
        if not self.config_file.exists():
            raise UserError(f"{self.path} is not a run folder: it has no config.json")
        return read_config(self.config_file)

    def check(self, config: Config) -> None:
        """Returns if the folder is new, empty or holds a run with this config; else a UserError names what differs."""
        if self.config_file.exists():
            if differing := differing_fields(self.read_config(), config):
                what = "; ".join(differing)
                raise UserError(f"{self.path} holds a run with another config ({what}); choose another --out")
        elif self.path.exists() and (
            not self.path.is_dir() or any(entry.name != ".lock" for entry in self.path.iterdir())
        ):
            raise UserError(f"{self.path} is not empty and not a run folder; choose another --out")

    def claim(self, config: Config) -> None:
        """Writes the config into a folder that has none."""
        if not self.config_file.exists():
            atomic_write(self.config_file, config.to_json())

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keeps every other process out; the lock dies with the process that holds it."""
        new = not self.path.exists()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            file = open(self.path / ".lock", "a+")  # noqa: SIM115 (closed below)
        except OSError as error:
            raise UserError(f"cannot use {self.path} as a run folder: {error.strerror}") from None
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise UserError(f"another process is working in {self.path}") from None
            try:
                yield
            finally:
                if new and [entry.name for entry in self.path.iterdir()] == [".lock"]:  # a mistake: leave no trace
                    (self.path / ".lock").unlink()
                    self.path.rmdir()

    def read_metrics(self) -> list[Row]:
        """The rows written so far; a line torn by a kill is left out."""
        rows = []
        if self.metrics_file.exists():
            for line in self.metrics_file.read_text(encoding="utf-8", errors="replace").splitlines():
                with contextlib.suppress(json.JSONDecodeError):
                    row = json.loads(line)
                    if isinstance(row, dict) and isinstance(row.get("epoch"), int):
                        rows.append(row)
        return rows

    def write_metrics(self, rows: list[Row]) -> None:
        atomic_write(self.metrics_file, "".join(json.dumps(row) + "\n" for row in rows))

    def log(self, line: str) -> None:
        with open(self.log_file, "a", encoding="utf-8") as file:
            file.write(line.rstrip("\n") + "\n")


@dataclass(frozen=True)
class Run:
    """`Run(dir)`: .config, .metrics, and .model: the best checkpoint in eval mode, averaged if the run averages."""

    dir: Path

    def __post_init__(self) -> None:
        object.__setattr__(self, "dir", Path(self.dir))  # a caller may have said Run("runs/x")

    @cached_property
    def folder(self) -> RunFolder:
        return RunFolder(self.dir)

    @cached_property
    def config(self) -> Config:
        return self.folder.read_config()

    @property
    def metrics(self) -> list[Row]:
        return self.folder.read_metrics()

    @cached_property
    def model(self) -> Classifier:
        return self.load("best")[0]

    def load(self, checkpoint: str = "best") -> tuple[Classifier, Row]:
        """A checkpoint's model in eval mode, and its facts: its epoch, whether its weights are averaged or raw, ..."""
        config, path = self.config, self.folder.checkpoint(checkpoint)
        if not path.exists():
            there = sorted(file.stem for file in path.parent.glob("*.safetensors"))
            raise UserError(f"no checkpoint {checkpoint!r} in {self.dir}; there are: {', '.join(there) or 'none yet'}")
        return load_model(path, config)


def load_model(path: Path, config: Config) -> tuple[Classifier, Row]:
    """The model of a checkpoint of a run with this config, and the checkpoint's facts, as `Run.load` gives them."""
    tensors, facts = load_checkpoint(path)
    model = build_model(config)
    averaged = config.ema > 0
    prefix = "average." if averaged else "model."
    mine = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    fill(model.state_dict(), mine, source=path)
    if facts["config"] != config.hash():
        raise UserError(f"{path} belongs to another run: its config is {facts['config']}, not {config.hash()}")
    return model.eval(), facts | {"weights": "averaged" if averaged else "raw"}


def config_of(path: Path) -> Config:
    """The config that a checkpoint carries: with it the file stands alone, outside its run folder."""
    facts = read_facts(path)
    if not isinstance(facts, dict) or not facts.keys() >= {"config", "settings"}:
        raise UserError(f"{path} does not carry the config of its run; give the run folder instead")
    return config_from(facts["settings"], source=str(path))


def build_model(config: Config) -> Classifier:
    """The network that a config names, with the weights its seed gives."""
    known = data.SETS.get(config.dataset)
    if known is None and config.num_classes and config.size:  # a set of the user's own, which need not be at hand
        num_classes, size, mean, std = config.num_classes, config.size, data.folder.MEAN, data.folder.STD
    else:
        dataset = known or data.of_config(config)
        num_classes, size, mean, std = dataset.num_classes, dataset.size, dataset.mean, dataset.std
    scaling: dict[str, Any] = {"mean": mean, "std": std} if config.normalize else {}
    return models.build(
        config.model,
        num_classes=num_classes,
        size=size,
        generator=draws.generator(config.seed, "weights"),
        **scaling,
    )
