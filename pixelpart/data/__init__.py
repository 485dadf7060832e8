"""Data sets: one file each, one table of all. A new data set is one file and one entry in `SETS`."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pixelpart.config import Config, Size, check_colour, height_width, is_user_code, parse_size
from pixelpart.data import augment, cifar10, cifar100, folder, loader, shapes, svhn, tinyimagenet, user_set
from pixelpart.data.dataset import DataSet, DataSetStatus, Root, home
from pixelpart.data.image_checks import check_images, check_labels, check_pixels
from pixelpart.data.image_file import read_image
from pixelpart.data.loader import Batch, Loader, as_float, split_holdout
from pixelpart.errors import UserError, unknown
from pixelpart.runtime.progress import Progress, silent


def _downloaded(module: Any, about: str, *, size: int = 32, decodes: bool = False) -> DataSet:
    return DataSet(
        classes=module.CLASSES,
        shape=(3, size, size),
        mean=module.MEAN,
        std=module.STD,
        counts=module.COUNTS,
        about=about,
        load=module.load,
        get=module.get,
        source=module.URL,
        files=module.present,
        check=module.check,
        decodes=decodes,
        masks=getattr(module, "object_masks", None),
    )


SETS: dict[str, DataSet] = {
    "shapes": DataSet(
        classes=shapes.CLASSES,
        shape=(3, shapes.SIZE, shapes.SIZE),
        mean=shapes.MEAN,
        std=shapes.STD,
        counts=shapes.COUNTS,
        about="ten classes of shapes and textures on clutter, generated, with object masks",
        load=shapes.generate,
        masks=shapes.object_masks,
    ),
    "cifar10": _downloaded(cifar10, "CIFAR-10: small photographs of animals and vehicles"),
    "cifar100": _downloaded(cifar100, "CIFAR-100: small photographs of 100 classes"),
    "svhn": _downloaded(svhn, "SVHN: digits of house numbers; for non-commercial use"),
    "tinyimagenet": _downloaded(
        tinyimagenet,
        "TinyImageNet-200: photographs of 200 classes; the validation images are the test split",
        size=tinyimagenet.SIZE,
        decodes=True,
    ),
}
USER_SETS: dict[str, DataSet] = {}  # data sets of user code by module:function, filled by `use`


def use(name: str) -> str:
    """Runs the user code of that name, so that `find` and `load` know it, and returns the name.

    Other names are returned as they are. Call it only with a name from the command line or from the caller's own code,
    never with one from a file.
    """
    if is_user_code(name) and name not in USER_SETS:
        USER_SETS[name] = user_set.data_set(name)
    return name


def find(
    name: str,
    *,
    size: Size | str = 0,
    skip_bad: bool = False,
    background: str = "white",
    channels: int = 0,
    classes: tuple[str, ...] = (),
) -> DataSet:
    """The data set of that name: one of `SETS`, folder:PATH, or a module:function that `use` was called with.

    Of a folder: `size` of the images, 64 or (height, width); `background`, the colour behind transparent pictures;
    `channels`, 3, 1, or 0 for 1 if all pictures are grey; `classes`, those of a trained model in the order of its
    labels, of which the folder may hold only some. `skip_bad`, of a folder and of tinyimagenet: leave out files that
    cannot be read.
    """
    if name.startswith("folder:"):
        try:
            size, background = parse_size(size), check_colour(background)
        except ValueError as error:
            raise UserError(str(error)) from None
        path = name.removeprefix("folder:")
        return folder.data_set(
            path, size=size, skip_bad=skip_bad, background=background, channels=channels, classes=classes
        )
    if is_user_code(name) and name not in USER_SETS:
        raise UserError(
            f"data set {name!r} is user code and is never loaded from a config; pass --data {name} or call "
            f"pp.data.use({name!r})"
        )
    if name not in SETS | USER_SETS:
        if os.path.isdir(os.path.expanduser(name)):  # of any length
            raise UserError(f"unknown data set {name!r}; did you mean folder:{name}?")
        raise unknown("data set", name, [*SETS, "folder:PATH", "module:function"])
    entry = (SETS | USER_SETS)[name]
    for flag, given in {"size": size, "background": background != "white", "channels": channels}.items():
        if given:
            raise UserError(f"--{flag} is for folder:PATH, not for {name!r}")
    if skip_bad and name != "tinyimagenet":
        raise UserError(f"--skip-bad is for folder:PATH and tinyimagenet, not for {name!r}")
    return tinyimagenet.without_bad(entry) if skip_bad else entry


def of_config(config: Config) -> DataSet:
    """The data set that a run is trained on; UserError if it has no training images."""
    entry = find(config.dataset, **config.data_options)
    if "train" not in entry.counts:
        entry.load("train")  # says so
    return entry


def classes_of(config: Config) -> tuple[str, ...]:
    """The names of the classes that a run was trained on, in the order of its labels; () if they have none."""
    known = SETS.get(config.dataset)
    return known.classes if known else config.classes


def load(
    name: str,
    *,
    split: str = "train",
    root: Root = None,
    progress: Progress = silent,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    """uint8 images (n, channels, h, w) and int64 labels (n,) of a split; UserError if files are missing or wrong.

    The options are those of `find`: of a folder, `size` is needed.
    """
    return find(name, **options).load(split, root, progress)


def read_picture(path: str | os.PathLike[str], config: Config) -> Tensor:
    """One picture as a run with this config reads those of its folder: uint8 (channels, h, w), like an image of `load`.

    Upright, cropped around its centre, resized, on the run's background. UserError if the file cannot be used.
    """
    try:
        return torch.tensor(read_image(Path(path), shape_of(config), background=config.background)[0])
    except UserError as error:
        raise UserError(f"{path} {error}") from None


def shape_of(config: Config) -> tuple[int, int, int]:
    """Channels, height and width of the images of a run with this config; its data set need not be at hand."""
    known = SETS.get(config.dataset)
    return known.shape if known else (config.channels or 3, *height_width(config.size))


def object_masks(name: str, *, split: str = "train", root: Root = None, **options: Any) -> Tensor:
    """bool masks (n, h, w) of the objects in the images that `load` returns; UserError if the data set has none."""
    return require_masks(find(name, **options), name)(split, root)


def require_masks(entry: DataSet, name: str) -> Callable[..., Tensor]:
    """The function behind `object_masks`; UserError if the data set has none."""
    if entry.masks is None:
        known = ", ".join(sorted(other for other, one in SETS.items() if one.masks is not None))
        raise UserError(f"mask.source 'object' needs object masks, and {name} has none; choose from {known}")
    return entry.masks


def get(name: str, *, root: Root = None, progress: Progress = silent, **options: Any) -> DataSetStatus:
    """Downloads a data set unless it is there, then verifies it; a set of image files is decoded too."""
    entry = find(name, **options)
    if entry.get is not None and entry.files is not None and entry.files(root) is None:
        entry.get(root, progress)
    return verify(name, root=root, progress=progress, **options)


def verify(name: str, *, root: Root = None, progress: Progress = silent, **options: Any) -> DataSetStatus:
    """Reads all files of a data set and checks counts, labels and checksums; UserError if they are missing or wrong."""
    entry = find(name, **options)
    row = _status(name, entry, root, entry.check(root, progress) if entry.check else "generated")
    if name in SETS:
        return row
    counts = {
        split: torch.bincount(entry.load(split, root)[1], minlength=entry.num_classes).tolist()
        for split in entry.counts
    }
    by_class = {label: {split: counts[split][i] for split in counts} for i, label in enumerate(entry.classes)}
    return replace(row, classes=by_class)


def listing(*, root: Root = None) -> list[DataSetStatus]:
    """The status of every data set; files are only looked for, not read."""
    return [
        _status(name, entry, root, "generated" if entry.files is None else "present") for name, entry in SETS.items()
    ]


def _status(name: str, entry: DataSet, root: Root, status: str) -> DataSetStatus:
    images, size, where = sum(entry.counts.values()), 0, "user code" if is_user_code(name) else "built in"
    if entry.files is not None:
        try:
            files, problem = entry.files(root), "missing"
        except UserError as error:
            files, problem = None, f"broken: {error}"
        if files is None:
            images, where, status = 0, str(home(root)), problem
        else:
            where, size = str(files[0]), sum(path.stat().st_size for path in files[1] if path.exists())
    skipped = () if entry.skipped is None else tuple(entry.skipped(root))
    if skipped:
        images = sum(len(entry.load(split, root)[1]) for split in entry.counts)
    return DataSetStatus(name, where, images, size, status, entry.about, entry.source, len(skipped), skipped)


__all__ = [
    "SETS", "Batch", "DataSet", "DataSetStatus", "Loader", "as_float", "augment", "check_images", "check_labels",
    "check_pixels", "cifar10", "cifar100", "find", "folder", "get", "home", "listing", "load", "loader", "object_masks",
    "of_config", "read_picture",
    "require_masks", "shapes", "split_holdout", "svhn", "tinyimagenet", "use", "user_set", "verify",
]  # fmt: skip


def __dir__() -> list[str]:
    return __all__
