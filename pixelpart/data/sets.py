"""What a data set is to the rest of the code, and a line about one for people to read."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from pixelpart.data.download import Progress
from pixelpart.data.home import Root


@dataclass(frozen=True)
class DataSet:
    """Square images of `size` pixels in named classes; `load(split, root)` gives uint8 images and labels."""

    classes: tuple[str, ...]
    size: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    counts: Mapping[str, int]  # images of each split
    about: str
    load: Callable[..., tuple[Tensor, Tensor]]  # load(split, root), and `progress` for a set that is decoded
    get: Callable[[Root, Progress], Path] | None = None  # None: nothing to fetch
    source: str = ""  # where `get` first looks for it
    files: Callable[[Root], tuple[Path, list[Path]] | None] | None = None  # folder and files on disk, None if absent
    check: Callable[..., str | None] | None = None  # reads the files whole and gives a status, None: verified
    masks: Callable[[str], Tensor] | None = None  # where the object is, for sets that know: bool (n, h, w) of a split
    boxes: Callable[[str, Root], Tensor] | None = None  # the box around it: (n, 4), left, top, right, bottom
    skipped: Callable[[Root], list[str]] | None = None  # what was left out as bad, a line each
    decodes: bool = False  # whether the first `load` takes long, and `progress` shows it

    @property
    def num_classes(self) -> int:
        return len(self.classes)


@dataclass(frozen=True)
class Row:
    """One line of `data list` and `data verify`."""

    name: str
    where: str
    images: int
    bytes: int
    status: str  # generated | present (not yet read) | verified | unofficial | missing | broken: why
    about: str
    source: str = ""  # where it is fetched from, if it is
    skipped: int = 0  # files left out as bad
