"""What a data set is, where data sets are on disk, and the status of one."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from pixelpart.config import Size
from pixelpart.errors import UserError
from pixelpart.runtime.progress import Progress

VARIABLE = "PIXELPART_DATA"
AGAIN = "move its files away to download it again"
Root = str | os.PathLike[str] | None


def home(root: Root = None) -> Path:
    """The folder of all data sets: `root`, else $PIXELPART_DATA, else ~/.cache/pixelpart. It is not created."""
    if root is not None and os.fspath(root):
        return Path(root).expanduser()
    named = os.environ.get(VARIABLE)
    return Path(named).expanduser() if named else Path.home() / ".cache" / "pixelpart"


def find_files(root: Root, layouts: Mapping[str, Mapping[str, int | None]]) -> tuple[Path, list[Path]] | None:
    """The first folder of `layouts` under `root`, or `root` itself, that has one of its files; and all its files.

    A layout has the bytes of each file, or None; UserError if a file is missing or has another size.
    """
    base = home(root)
    for folder, files in ((candidate, files) for name, files in layouts.items() for candidate in (base / name, base)):
        sizes = {folder / name: size for name, size in files.items()}
        lacking = [path.name for path in sizes if not path.is_file()]
        if len(lacking) == len(sizes):
            continue
        if lacking:
            raise UserError(f"{folder} lacks {', '.join(lacking)}; {AGAIN}")
        for path, expected in sizes.items():
            size = path.stat().st_size
            if expected is not None and size != expected:
                raise UserError(f"{path} has {size:,} bytes, not the {expected:,} of the official file; {AGAIN}")
        return folder, list(sizes)
    return None


def missing(name: str, root: Root, by_hand: str) -> UserError:
    """The error that says how to get a data set that is not there."""
    return UserError(f"no {name} under {home(root)}; run `pixelpart data get {name}`, or {by_hand}")


@dataclass(frozen=True)
class DataSet:
    """Images of one shape in named classes."""

    classes: tuple[str, ...]
    shape: tuple[int, int, int]  # channels, height, width
    mean: tuple[float, ...]  # of each channel
    std: tuple[float, ...]
    counts: Mapping[str, int]  # images of each split
    about: str
    load: Callable[..., tuple[Tensor, Tensor]]  # load(split, root=None, progress=silent): uint8 images, labels
    get: Callable[[Root, Progress], None] | None = None  # downloads the set; None: nothing to download
    source: str = ""  # the first address that `get` tries
    files: Callable[[Root], tuple[Path, list[Path]] | None] | None = None  # folder and files on disk, None if absent
    check: Callable[[Root, Progress], str] | None = None  # reads all files; returns a status, such as verified
    masks: Callable[..., Tensor] | None = None  # masks(split, root): object masks of a split, bool (n, h, w)
    names: Callable[[str, Root], list[str]] | None = None  # names(split, root): the file of each image of a split
    skipped: Callable[[Root], list[str]] | None = None  # files left out by skip_bad, each with the reason
    transparent: Callable[[Root], int] | None = None  # how many pictures were put on the background
    splits_off_test: bool = False  # the test split is a fifth of a folder without a test folder
    decodes: bool = False  # files are image files, which the first `load` decodes

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    @property
    def size(self) -> Size:
        """The side of square images, else (height, width)."""
        return self.shape[1] if self.shape[1] == self.shape[2] else self.shape[1:]


@dataclass(frozen=True)
class DataSetStatus:
    """One line of `data list` and `data verify`."""

    name: str
    where: str
    images: int
    bytes: int
    status: str  # generated | present (not yet read) | verified | unofficial | missing | broken: reason
    about: str
    source: str = ""  # where it can be downloaded
    skipped: int = 0  # files left out by skip_bad
    skipped_files: tuple[str, ...] = ()  # each with the reason
    classes: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # verify: images of each split by class
