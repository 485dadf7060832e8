"""A run that is on disk, opened for use: its config, its metrics, its model."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pixelpart import data, draws, models
from pixelpart.config import Config
from pixelpart.errors import UserError, choose
from pixelpart.models import Classifier
from pixelpart.runfolder import Row, RunFolder, fill, load_checkpoint


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
        averaged = self.config.ema > 0
        path = self.folder.checkpoint(checkpoint)
        if not path.exists():
            there = sorted(file.stem for file in path.parent.glob("*.safetensors"))
            raise UserError(f"no checkpoint {checkpoint!r} in {self.dir}; there are: {', '.join(there) or 'none yet'}")
        tensors, facts = load_checkpoint(path)
        model = build_model(self.config)
        prefix = "average." if averaged else "model."
        mine = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
        fill(model.state_dict(), mine, source=path)
        if facts["config"] != self.config.hash():
            raise UserError(f"{path} belongs to another run: its config is {facts['config']}, not {self.config.hash()}")
        return model.eval(), facts | {"weights": "averaged" if averaged else "raw"}


def build_model(config: Config) -> Classifier:
    """The network that a config names, with the weights its seed gives."""
    dataset = choose(data.SETS, config.dataset, "data set")
    scaling: dict[str, Any] = {"mean": dataset.mean, "std": dataset.std} if config.normalize else {}
    return models.build(
        config.model, num_classes=len(dataset.classes), generator=draws.generator(config.seed, "weights"), **scaling
    )
