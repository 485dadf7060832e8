"""The images of a run: for training, and for the evaluation after every epoch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pixelpart import data, draws
from pixelpart.config import Config, is_user_code
from pixelpart.data.loader import Loader, as_float, split_holdout
from pixelpart.errors import UserError
from pixelpart.recipes import fill_in
from pixelpart.runtime.progress import Screen
from pixelpart.runtime.world import World
from pixelpart.types import Images, Labels

Probes = dict[str, tuple[Images, Labels]]


@dataclass(frozen=True)
class Objects:
    """Object masks, bool (n, h, w); None if the run's mask needs none."""

    training: Tensor | None = None  # in the order of the loader's images
    probe: Tensor | None = None  # of the probe "train"


def with_data_fields(config: Config) -> Config:
    """The config with size, num_classes and classes of a user's data set, so that the run can be opened without it.

    Also with the fields that follow from the number of training images.
    """
    folder = config.dataset.startswith("folder:")
    if config.auto and config.dataset in data.SETS:
        flags = "--data folder:PATH or --data module:function"
        raise UserError(f"{config.recipe} needs pictures of your own: pass {flags}, not {config.dataset}")
    entry = data.of_config(config)
    if config.dataset in data.SETS:
        if config.num_classes or config.classes:
            raise UserError(f"num_classes and classes are for data sets of your own, not for {config.dataset}")
        return config
    fields: dict[str, Any] = {
        "size": entry.size,
        "num_classes": entry.num_classes,
        "classes": entry.classes if folder else (),
    }
    if entry.shape[0] == 1:
        fields["channels"] = 1
    for field, value in fields.items():
        if getattr(config, field) not in (0, (), value):
            raise UserError(f"{config.dataset} has {field} {value}, but the config says {getattr(config, field)}")
    return fill_in(config.model_copy(update=fields), entry.counts["train"])


def load(
    config: Config,
    root: Path | str | None,
    *,
    device: torch.device,
    world: World,
    screen: Screen,
    layout: torch.memory_format = torch.channels_last,
) -> tuple[Loader, Probes, Objects]:
    """The loader of the training images, the probes by name ("train" and "held-out", else "test"), and object masks."""
    images, labels = load_checked(config, "train", root, screen=screen)
    kept, held = split_holdout(len(images), config.holdout, config.split_seed)
    loader = Loader(
        images, labels, rows=kept, batch_size=config.batch_size, seed=config.seed, device=device, world=world
    )
    some = torch.randperm(len(kept), generator=draws.generator(config.seed, "probe images"))[: config.probe]
    probes = {"train": to_device(images[kept[some]], labels[kept[some]], device=device, layout=layout)}
    if config.holdout:
        probes["held-out"] = to_device(images[held], labels[held], device=device, layout=layout)
    else:
        x, y = load_checked(config, "test", root, screen=screen)
        first = torch.arange(len(x))
        if is_user_code(config.dataset):  # may be sorted by class
            first = torch.randperm(len(x), generator=draws.generator(config.seed, "test images"))
        probes["test"] = to_device(x[first[: config.probe]], y[first[: config.probe]], device=device, layout=layout)
    objects = Objects()
    if config.mask.source == "object" and config.mask.rule != "none":
        masks = data.object_masks(config.dataset, root=root, **config.data_options)
        assert len(masks) == len(images)
        objects = Objects(masks[kept].to(device), masks[kept[some]].to(device))
    return loader, probes, objects


def notes(config: Config, root: Path | str | None, *, images: int) -> list[str]:
    """What the user should know about the files and the start of a run on this number of images."""
    entry, lines = data.of_config(config), []
    if config.init_from and not config.fork_source[1]:
        lines.append(f"the initial weights are those of {config.init_from}")
    if images < config.batch_size:
        lines.append(
            f"--batch-size {config.batch_size} exceeds the {images} training images: an epoch is a single step, and "
            "accuracy may stay near chance; try --batch-size 32"
        )
    if entry.splits_off_test:
        kept = len(entry.load("test", root)[1]) if entry.skipped else entry.counts["test"]
        lines.append(f"{kept} other images of the folder are kept for testing, which `pixelpart evaluate` uses")
    if files := entry.skipped(root) if entry.skipped else []:
        more = f"; and {len(files) - 3} more" if len(files) > 3 else ""
        lines.append(f"bad files skipped ({len(files)}): {'; '.join(files[:3])}{more}")
    if n := entry.transparent(root) if entry.transparent else 0:
        lines.append(f"transparent pictures ({n}) are put on {config.background} (--background)")
    return lines


def to_device(
    images: Tensor, labels: Tensor, *, device: torch.device, layout: torch.memory_format
) -> tuple[Images, Labels]:
    """Images as floats in [0,1] with this memory layout, and labels, on the device."""
    return as_float(images.to(device)).contiguous(memory_format=layout), labels.to(device)


def load_checked(config: Config, split: str, root: Path | str | None, *, screen: Screen) -> tuple[Tensor, Tensor]:
    """A split of the run's data set; UserError if pixels or labels do not fit the set's size and classes."""
    with screen.bars() as progress:
        images, labels = data.load(config.dataset, split=split, root=root, progress=progress, **config.data_options)
    entry = data.of_config(config)
    data.check_images(images, labels, entry.num_classes, shape=entry.shape)
    return images, labels
