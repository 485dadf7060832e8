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
    load: Callable[[str, Root], tuple[Tensor, Tensor]]
    get: Callable[[Root, Progress], Path] | None = None  # None: nothing to fetch
    files: Callable[[Root], tuple[Path, list[Path]] | None] | None = None  # folder and files on disk, None if absent
    check: Callable[[Root], None] | None = None  # hashes the files; UserError where they are absent or wrong
    masks: Callable[[str], Tensor] | None = None  # where the object is, for sets that know: bool (n, h, w) of a split

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
    status: str  # generated | present (sizes not yet summed) | verified | missing | broken: why
    about: str
