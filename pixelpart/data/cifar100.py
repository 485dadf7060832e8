"""CIFAR-100 by its fine labels, from the official binary or pickled files.

Krizhevsky, "Learning multiple layers of features from tiny images", 2009. A row of the binary files is a coarse label,
a fine label and 3,072 pixels: red, green and blue planes of 32x32.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pixelpart.data.dataset import Root, find_files, home
from pixelpart.data.download import digest, downloading, fetched_archive, read_members, write_folder
from pixelpart.data.safe_pickle import read_batch
from pixelpart.errors import UserError, choose
from pixelpart.runtime.progress import Progress, silent

NAMES = """
    apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can
    castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin
    elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster
    man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck
    pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk
    skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank telephone television tiger
    tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm
"""
CLASSES = tuple(NAMES.split())
MEAN = (0.5071, 0.4865, 0.4409)
STD = (0.2673, 0.2564, 0.2762)
COUNTS = {"train": 50_000, "test": 10_000}
PIXELS = 3 * 32 * 32
URL = "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz"
URL_MD5 = "03b5dce01913d631647c71ecec9e9cb8"
FOLDER = "cifar-100-binary"
MD5 = {
    "train.bin": "6172c7755cfe09b2fe270c85cebc1b15",
    "test.bin": "4499cfba6c016c1be1438163640a0898",
    "train": "16019d7e3df5f24257cddd939b257f8d",
    "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
}
Rows = NDArray[np.uint8]  # (n, 1 + 3072), a fine label and pixels


def _read_bin(path: Path, n: int) -> Rows:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    if len(content) != (expected := n * (2 + PIXELS)):
        raise UserError(f"{path} has {len(content):,} bytes, not the {expected:,} of CIFAR-100")
    return np.frombuffer(content, np.uint8).reshape(n, 2 + PIXELS)[:, 1:]


def _read_py(path: Path, n: int) -> Rows:
    return read_batch(path, images=n, pixels=PIXELS, labels="fine_labels")


FORMATS: dict[str, tuple[str, Callable[[Path, int], Rows]]] = {
    FOLDER: (".bin", _read_bin),
    "cifar-100-python": ("", _read_py),
}


def present(root: Root = None) -> tuple[Path, list[Path]] | None:
    """The folder and its two files, binary first; UserError if one is missing."""
    return find_files(root, {name: [split + suffix for split in COUNTS] for name, (suffix, _) in FORMATS.items()})


def load(split: str, root: Root = None) -> tuple[Tensor, Tensor]:
    """uint8 images (n, 3, 32, 32) and fine labels (n,) of a split; UserError if the file is not CIFAR-100's."""
    number = list(COUNTS).index(split) if split in COUNTS else choose(COUNTS, split, "split")
    if (found := present(root)) is None:
        raise UserError(f"no cifar100 under {home(root)}; run `pixelpart data get cifar100`, or {_by_hand(home(root))}")
    folder, paths = found
    rows = FORMATS[folder.name][1](paths[number], COUNTS[split])
    labels = rows[:, 0].astype(np.int64)
    each = COUNTS[split] // len(CLASSES)
    if (np.bincount(labels, minlength=len(CLASSES)) != each).any():
        raise UserError(f"{paths[number]} is not CIFAR-100's: it does not have {each} images of each of 100 classes")
    return torch.from_numpy(np.ascontiguousarray(rows[:, 1:]).reshape(-1, 3, 32, 32)), torch.from_numpy(labels)


def check(root: Root = None) -> str:
    """`verified` if the checksums are those of the official files; `unofficial` if only the counts are right."""
    for split in COUNTS:
        load(split, root)
    found = present(root)
    assert found is not None
    return "verified" if all(digest(path, "md5") == MD5[path.name] for path in found[1]) else "unofficial"


def get(root: Root = None, progress: Progress = silent) -> Path:
    """The folder with CIFAR-100's files, downloaded unless it is there."""
    if (found := present(root)) is not None:
        return found[0]
    base, names = home(root), [f"{split}.bin" for split in COUNTS]
    with (
        downloading("cifar100", base, _by_hand(base)),
        fetched_archive(URL, base, md5=URL_MD5, progress=progress) as archive,
    ):
        contents = read_members(archive, [f"{FOLDER}/{name}" for name in names], progress)
        write_folder(dict(zip(names, contents, strict=True)), base / FOLDER)
    return base / FOLDER


def _by_hand(base: Path) -> str:
    return (
        f"put train.bin and test.bin into {base / FOLDER}, or torchvision's folder cifar-100-python into {base}, "
        f"or {URL.rsplit('/', 1)[1]} into {base} and run `data get` again"
    )
