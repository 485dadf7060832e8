"""A run that is on disk, opened for use: its config, its metrics, its model."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pixelpart import data, draws, models
from pixelpart.config import Config, config_from
from pixelpart.dataname import SKIP_BAD
from pixelpart.errors import UserError
from pixelpart.models import Classifier
from pixelpart.runfolder import Row, RunFolder, fill, load_checkpoint, read_facts


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
    known = data.SETS.get(config.dataset.removesuffix(SKIP_BAD))
    if known is None and config.num_classes and config.size:  # a set of the user's own, which need not be at hand
        num_classes, size, mean, std = config.num_classes, config.size, data.folder.MEAN, data.folder.STD
    else:
        dataset = known or data.find(config.dataset)
        num_classes, size, mean, std = dataset.num_classes, dataset.size, dataset.mean, dataset.std
    scaling: dict[str, Any] = {"mean": mean, "std": std} if config.normalize else {}
    return models.build(
        config.model,
        num_classes=num_classes,
        size=size,
        generator=draws.generator(config.seed, "weights"),
        **scaling,
    )
