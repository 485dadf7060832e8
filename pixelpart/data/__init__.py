"""Data sets: one file each, one table of all. A new data set is one file and one entry in `SETS`."""

from torch import Tensor

from pixelpart.config import Config, is_user_code
from pixelpart.data import augment, cifar10, cifar100, folder, loader, shapes, svhn, tinyimagenet, user_set
from pixelpart.data.dataset import DataSet, DataSetStatus, Root, home
from pixelpart.data.image_checks import check_images, check_labels, check_pixels
from pixelpart.data.loader import Batch, Loader, as_float, split_holdout
from pixelpart.errors import UserError, choose
from pixelpart.runtime.progress import Progress, silent

SETS: dict[str, DataSet] = {
    "shapes": DataSet(
        classes=shapes.CLASSES,
        size=shapes.SIZE,
        mean=shapes.MEAN,
        std=shapes.STD,
        counts=shapes.COUNTS,
        about="ten classes of shapes and textures on clutter, drawn from a seed, with the object's mask",
        load=lambda split, root: shapes.generate(split),
        masks=shapes.object_masks,
    ),
    "cifar10": DataSet(
        classes=cifar10.CLASSES,
        size=32,
        mean=cifar10.MEAN,
        std=cifar10.STD,
        counts=cifar10.COUNTS,
        about="CIFAR-10: small photographs of animals and vehicles",
        load=cifar10.load,
        get=cifar10.get,
        source=cifar10.URL,
        files=cifar10.present,
        check=cifar10.check,
    ),
    "cifar100": DataSet(
        classes=cifar100.CLASSES,
        size=32,
        mean=cifar100.MEAN,
        std=cifar100.STD,
        counts=cifar100.COUNTS,
        about="CIFAR-100: small photographs of a hundred kinds of things",
        load=cifar100.load,
        get=cifar100.get,
        source=cifar100.URL,
        files=cifar100.present,
        check=cifar100.check,
    ),
    "svhn": DataSet(
        classes=svhn.CLASSES,
        size=32,
        mean=svhn.MEAN,
        std=svhn.STD,
        counts=svhn.COUNTS,
        about="SVHN: digits of house numbers; for non-commercial use",
        load=svhn.load,
        get=svhn.get,
        source=svhn.URL,
        files=svhn.present,
        check=svhn.check,
    ),
    "tinyimagenet": DataSet(
        classes=tinyimagenet.CLASSES,
        size=tinyimagenet.SIZE,
        mean=tinyimagenet.MEAN,
        std=tinyimagenet.STD,
        counts=tinyimagenet.COUNTS,
        about="TinyImageNet-200: photographs of 200 classes, tested on its validation images",
        load=tinyimagenet.load,
        get=tinyimagenet.get,
        source=tinyimagenet.URL,
        files=tinyimagenet.present,
        check=tinyimagenet.check,
        boxes=tinyimagenet.boxes,
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


def find(name: str, *, size: int = 0, skip_bad: bool = False) -> DataSet:
    """The data set of that name: one of `SETS`, folder:PATH, or a module:function that `use` was called with.

    `size`, of a folder: width and height of the images. `skip_bad`, of a folder and of tinyimagenet: leave out files
    that cannot be read.
    """
    if name.startswith("folder:"):
        return folder.data_set(name.removeprefix("folder:"), size=size, skip_bad=skip_bad)
    if is_user_code(name) and name not in USER_SETS:
        raise UserError(
            f"data set {name!r} is user code and is never loaded from a config; pass --data {name} or call "
            f"pp.data.use({name!r})"
        )
    entry = USER_SETS[name] if name in USER_SETS else choose(SETS, name, "data set")
    if size:
        raise UserError(f"--size is for folder:PATH, not for {name!r}")
    if skip_bad and name != "tinyimagenet":
        raise UserError(f"--skip-bad is for folder:PATH and tinyimagenet, not for {name!r}")
    return tinyimagenet.without_bad(entry) if skip_bad else entry


def of_config(config: Config) -> DataSet:
    """The data set that a run is trained on."""
    return find(config.dataset, **config.data_options)


def load(
    name: str,
    *,
    split: str = "train",
    root: Root = None,
    size: int = 0,
    skip_bad: bool = False,
    progress: Progress = silent,
) -> tuple[Tensor, Tensor]:
    """uint8 images (n, 3, h, w) and int64 labels (n,) of a split; UserError if files are missing or wrong."""
    entry = find(name, size=size, skip_bad=skip_bad)
    return entry.load(split, root, progress) if entry.decodes else entry.load(split, root)


def get(
    name: str, *, root: Root = None, size: int = 0, skip_bad: bool = False, progress: Progress = silent
) -> DataSetStatus:
    """Downloads a data set unless it is there, then verifies it; a set of image files is decoded too."""
    entry = find(name, size=size, skip_bad=skip_bad)
    if entry.get is not None:
        entry.get(root, progress)
    return verify(name, root=root, size=size, skip_bad=skip_bad, progress=progress)


def verify(
    name: str, *, root: Root = None, size: int = 0, skip_bad: bool = False, progress: Progress = silent
) -> DataSetStatus:
    """Reads all files of a data set and checks counts, labels and checksums; UserError if they are missing or wrong."""
    entry = find(name, size=size, skip_bad=skip_bad)
    if entry.check is None:
        return _status(name, entry, root, "generated")
    status = entry.check(root, progress) if entry.decodes else entry.check(root)
    return _status(name, entry, root, status or "verified")


def listing(*, root: Root = None) -> list[DataSetStatus]:
    """The status of every data set; files are only looked for, not read."""
    found = {name: "generated" if entry.files is None else "present" for name, entry in SETS.items()}
    return [_status(name, SETS[name], root, status) for name, status in found.items()]


def _status(name: str, entry: DataSet, root: Root, status: str) -> DataSetStatus:
    images, size, where = sum(entry.counts.values()), 0, "user code" if is_user_code(name) else "built in"
    if entry.files is not None:
        try:
            found, problem = entry.files(root), "missing"
        except UserError as error:
            found, problem = None, f"broken: {error}"
        if found is None:
            images, where, status = 0, str(home(root)), problem
        else:
            where, size = str(found[0]), sum(path.stat().st_size for path in found[1] if path.exists())
    skipped = 0 if entry.skipped is None else len(entry.skipped(root))
    if skipped:
        images = sum(len(entry.load(split, root)[1]) for split in entry.counts)
    return DataSetStatus(name, where, images, size, status, entry.about, entry.source, skipped)


__all__ = [
    "SETS", "Batch", "DataSet", "DataSetStatus", "Loader", "as_float", "augment", "check_images", "check_labels",
    "check_pixels", "cifar10", "cifar100", "find", "folder", "get", "home", "listing", "load", "loader", "of_config",
    "shapes", "split_holdout", "svhn", "tinyimagenet", "use", "user_set", "verify",
]  # fmt: skip
