"""CIFAR-100 by its fine labels, from the official binary or pickled files.

Krizhevsky, "Learning multiple layers of features from tiny images", 2009.
"""

from pathlib import Path

from torch import Tensor

from pixelpart.data.cifar_files import PIXELS, as_tensors, read_rows
from pixelpart.data.dataset import Root, find_files, home, missing
from pixelpart.data.download import digest, downloading, fetched_archive, new_folder, read_members
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
URL = "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz"
URL_MD5 = "03b5dce01913d631647c71ecec9e9cb8"
FOLDER = "cifar-100-binary"
MD5 = {
    "train.bin": "6172c7755cfe09b2fe270c85cebc1b15",
    "test.bin": "4499cfba6c016c1be1438163640a0898",
    "train": "16019d7e3df5f24257cddd939b257f8d",
    "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
}


def present(root: Root = None) -> tuple[Path, list[Path]] | None:
    """The folder and its two files, binary first; UserError if one is missing or has the wrong size."""
    binary = {f"{split}.bin": n * (2 + PIXELS) for split, n in COUNTS.items()}
    return find_files(root, {FOLDER: binary, "cifar-100-python": dict.fromkeys(COUNTS)})


def load(split: str, root: Root = None, progress: Progress = silent) -> tuple[Tensor, Tensor]:
    """uint8 images (n, 3, 32, 32) and fine labels (n,) of a split; UserError if the file is not CIFAR-100's."""
    n = choose(COUNTS, split, "split")
    if (files := present(root)) is None:
        raise missing("cifar100", root, _by_hand(home(root)))
    path = {path.stem: path for path in files[1]}[split]
    images, labels = as_tensors(read_rows(path, n, labels="fine_labels"))
    each = n // len(CLASSES)
    if (labels.bincount(minlength=len(CLASSES)) != each).any():
        raise UserError(f"{path} is not CIFAR-100's: it does not have {each} images of each of 100 classes")
    return images, labels


def check(root: Root = None, progress: Progress = silent) -> str:
    """`verified` if the checksums are those of the official files; `unofficial` if only the counts are right."""
    for split in COUNTS:
        load(split, root)
    files = present(root)
    assert files is not None
    return "verified" if all(digest(path, "md5") == MD5[path.name] for path in files[1]) else "unofficial"


def get(root: Root = None, progress: Progress = silent) -> None:
    """Downloads CIFAR-100's binary files."""
    base, names = home(root), [f"{split}.bin" for split in COUNTS]
    with (
        downloading("cifar100", base, _by_hand(base)),
        fetched_archive(URL, base, md5=URL_MD5, progress=progress) as archive,
        new_folder(base / FOLDER) as folder,
    ):
        contents = read_members(archive, [f"{FOLDER}/{name}" for name in names], progress)
        for name, content in zip(names, contents, strict=True):
            (folder / name).write_bytes(content)


def _by_hand(base: Path) -> str:
    return (
        f"put train.bin and test.bin into {base / FOLDER}, or torchvision's folder cifar-100-python into {base}, "
        f"or {URL.rsplit('/', 1)[1]} into {base} and run `data get` again"
    )
