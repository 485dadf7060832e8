"""Where pixels come from: one file per set, one table of sets. A new set is one file and one entry here."""

from torch import Tensor

from pixelpart.data import augment, cifar10, loader, shapes
from pixelpart.data.check import check_images, check_labels, check_pixels
from pixelpart.data.download import Progress, quiet
from pixelpart.data.home import Root, home
from pixelpart.data.loader import Batch, Loader, as_float, split_holdout
from pixelpart.data.sets import DataSet, Row
from pixelpart.errors import UserError, choose

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
        files=cifar10.present,
        check=cifar10.check,
    ),
}


def load(name: str, *, split: str = "train", root: Root = None) -> tuple[Tensor, Tensor]:
    """uint8 images (n, 3, h, w) and int64 labels (n,) of a split; UserError where files are absent or wrong."""
    return choose(SETS, name, "data set").load(split, root)


def get(name: str, *, root: Root = None, progress: Progress = quiet) -> Row:
    """Fetch a set unless it is there already; what is then on disk has been verified."""
    fetch = choose(SETS, name, "data set").get
    if fetch is not None:
        fetch(root, progress)
    return _row(name, root, "generated" if fetch is None else "verified")


def verify(name: str, *, root: Root = None) -> Row:
    """Read a set's files whole and compare their hash; UserError where they are absent or wrong."""
    check = choose(SETS, name, "data set").check
    if check is not None:
        check(root)
    return _row(name, root, "generated" if check is None else "verified")


def listing(*, root: Root = None) -> list[Row]:
    """Every set and whether it is at hand; quick: files are looked for, not read."""
    return [_row(name, root, "generated" if entry.files is None else "present") for name, entry in SETS.items()]


def _row(name: str, root: Root, status: str) -> Row:
    entry = SETS[name]
    images, size, where = sum(entry.counts.values()), 0, "built in"
    if entry.files is not None:
        try:
            found, absent = entry.files(root), "missing"
        except UserError as error:
            found, absent = None, f"broken: {error}"
        if found is None:
            images, where, status = 0, str(home(root)), absent
        else:
            where, size = str(found[0]), sum(path.stat().st_size for path in found[1])
    return Row(name, where, images, size, status, entry.about)


__all__ = [
    "SETS", "Batch", "DataSet", "Loader", "Row", "as_float", "augment", "check_images", "check_labels",
    "check_pixels", "cifar10", "get", "home", "listing", "load", "loader", "shapes", "split_holdout", "verify",
]  # fmt: skip
