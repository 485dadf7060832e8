"""A run opened for use: its config, metrics and model. torch is imported late."""

import os
import shlex
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pixelpart.config import Config, code_flags, config_from
from pixelpart.errors import UserError
from pixelpart.runs.checkpoints import Facts, fill, load_checkpoint, read_facts
from pixelpart.runs.folder import MetricsRow, RunFolder
from pixelpart.runtime.tables import html_table

if TYPE_CHECKING:
    from pixelpart.models import Classifier


@dataclass(frozen=True)
class Run:
    """A trained run: `Run("runs/part")` has .config, .metrics and .model.

    The model is the best checkpoint in eval mode, with averaged weights if the run averages them.
    """

    dir: Path

    def __post_init__(self) -> None:
        if not isinstance(self.dir, str | os.PathLike):
            raise UserError(f"a run is named by its folder, not by a {type(self.dir).__name__}")
        object.__setattr__(self, "dir", Path(self.dir))

    @classmethod
    def of(cls, run: "Run | Path | str") -> "Run":
        """The run itself, or the one in the folder of that name."""
        return run if isinstance(run, Run) else cls(Path(run) if isinstance(run, str) else run)

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
        _, saved = self.config, sorted(file.stem for file in self.dir.glob("checkpoints/*.safetensors"))
        if checkpoint not in saved:
            hint = f"choose from {', '.join(saved)}" if saved else "none is saved yet"
            raise UserError(f"no checkpoint {checkpoint!r} in {self.dir}; {hint}")
        return self.folder.checkpoint(checkpoint)

    def command(self, name: str) -> str:
        """`pixelpart NAME RUN`, with the flags that name the run's user code."""
        return shlex.join(["pixelpart", name, str(self.dir), *code_flags(self.config)])

    def describe(self) -> dict[str, str]:
        """What it is and how far it is, each in a few words."""
        try:
            config, rows = self.config, self.metrics
        except UserError as error:
            return {"run": str(error)}
        facts = {"recipe": config.recipe, "model": config.model, "data": config.data_label, "seed": str(config.seed)}
        facts["epochs"] = f"{rows[-1]['epoch'] if rows else 0} of {config.epochs}"
        if rows:
            pgd = ", pgd {pgd:.1%}" if config.eps else ""
            last = f"natural {{natural:.1%}}{pgd} ({{measured_on}} images)"
            facts["last epoch"] = last.format_map(rows[-1])
        return facts

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
