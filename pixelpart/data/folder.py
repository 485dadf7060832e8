"""A user's images in folders by class: PATH/train/CLASS/... and PATH/test/CLASS/..., or only PATH/CLASS/...

Without a test folder, about a fifth of each class is the test split, chosen by the names of the files: the same
whatever a run's seed, and also after other images were added. With a test folder only, there is no training split.
Training images are in the order of their classes, test images in a fixed random order.
"""

import functools
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from pixelpart.config import Size, height_width, write_size
from pixelpart.data.dataset import DataSet, Root
from pixelpart.data.image_cache import DecodedImages, bad_files_message, decode_images
from pixelpart.data.image_file import is_grey, read_image
from pixelpart.draws import generator
from pixelpart.errors import UserError, choose
from pixelpart.runtime.progress import Progress, silent

MEAN = (0.485, 0.456, 0.406)  # ImageNet's, known before any file is read
STD = (0.229, 0.224, 0.225)
GREY_MEAN, GREY_STD = (0.449,), (0.226,)
TRAIN_NAMES, TEST_NAMES = ("train", "training"), ("test", "testing", "val", "valid", "validation")  # first match
IGNORED = ("thumbs.db", "desktop.ini")  # left behind by file managers; hidden files are ignored too
SMALLEST, LARGEST = 8, 1024  # pixels per side
TEST_SHARE = 0.2


@dataclass(frozen=True)
class FolderListing:
    """Classes in the order of their labels, the files of each split with their labels, and bad folders."""

    classes: tuple[str, ...]
    files: dict[str, list[tuple[Path, int]]]
    bad: list[str]
    splits_off_test: bool


def scaling(channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of images with 1 or 3 channels."""
    return (GREY_MEAN, GREY_STD) if channels == 1 else (MEAN, STD)


def data_set(
    path: str,
    *,
    size: Size,
    skip_bad: bool = False,
    background: str = "white",
    channels: int = 0,
    classes: tuple[str, ...] = (),
) -> DataSet:
    """The folder as a data set; its files are listed now and decoded by the first `load`.

    `channels` 0 means 1 if all files hold grey pictures, else 3. `classes` are as in `list_folder`.
    """
    if not path:
        raise UserError("no folder is given; pass --data folder:PATH, and --size, such as --size 64")
    if not size:
        raise UserError(
            f"folder:{path} needs a size in pixels; pass --size 64, in Python size=64; or 64x96: height x width"
        )
    height, width = height_width(size)
    if not SMALLEST <= min(height, width) <= max(height, width) <= LARGEST:
        raise UserError(f"size {write_size(size)} of folder:{path} is out of range; choose {SMALLEST} to {LARGEST}")
    try:
        listing = list_folder(path, skip_bad=skip_bad, classes=classes)
    except OSError as error:
        raise UserError(f"cannot read {error.filename}: {error.strerror}") from None
    shape = (channels or (1 if _all_grey(listing) else 3), height, width)
    mean, std = scaling(shape[0])
    images = FolderImages(Path(path), listing, shape, background, skip_bad)
    return DataSet(
        classes=listing.classes,
        shape=shape,
        mean=mean,
        std=std,
        counts={split: len(items) for split, items in listing.files.items()},
        about=f"images of {len(listing.classes)} classes",
        load=images.load,
        files=images.files,
        check=images.check,
        names=images.names,
        skipped=images.skipped if skip_bad else None,
        transparent=images.transparent,
        splits_off_test=listing.splits_off_test,
        decodes=True,
    )


@dataclass(frozen=True)
class FolderImages:
    """The functions of a folder's `DataSet`."""

    path: Path
    listing: FolderListing
    shape: tuple[int, int, int]
    background: str
    skip_bad: bool

    def load(
        self, split: str, root: Root = None, progress: Progress = silent, *, again: bool = False
    ) -> tuple[Tensor, Tensor]:
        listing = self.listing
        if split == "train" and split not in listing.files:
            raise UserError(f"{self.path.expanduser()} has test images only; training needs a folder 'train'")
        items = choose(listing.files, split, "split")
        decoded = self._decode(split, root, progress, again=again)
        decoded.check(skip_bad=self.skip_bad)
        labels = decoded.select(torch.tensor([label for _, label in items]))
        empty = set(range(len(listing.classes))) - set(labels.tolist())
        if empty and split == "train":
            raise UserError(f"no image of class {listing.classes[min(empty)]!r} can be used")
        return decoded.images, labels

    def names(self, split: str, root: Root = None) -> list[str]:
        """The file of each image that `load` returns, relative to the folder."""
        files, base = [file for file, _ in self.listing.files[split]], self.path.expanduser()
        good = self._decode(split, root).select(torch.arange(len(files))).tolist()
        return [os.fsencode(files[i].relative_to(base).as_posix()).decode(errors="replace") for i in good]

    def check(self, root: Root = None, progress: Progress = silent) -> str:
        for split in self.listing.files:
            self.load(split, root, progress, again=True)
        return "verified"

    def files(self, root: Root = None) -> tuple[Path, list[Path]]:
        return self.path.expanduser(), [file for items in self.listing.files.values() for file, _ in items]

    def skipped(self, root: Root = None) -> list[str]:
        bad = [line for split in self.listing.files for line in self._decode(split, root).bad_files]
        return self.listing.bad + bad

    def transparent(self, root: Root = None) -> int:
        return sum(self._decode(split, root).transparent for split in self.listing.files)

    def _decode(self, split: str, root: Root, progress: Progress = silent, *, again: bool = False) -> DecodedImages:
        return decode_images(
            [file for file, _ in self.listing.files[split]],
            functools.partial(read_image, shape=self.shape, background=self.background),
            shape=self.shape,
            settings=self.background,
            name=f"folder-{self.path.name}-{split}".replace(" ", "_"),
            root=root,
            progress=progress,
            again=again,
        )


def list_folder(path: str, *, skip_bad: bool = False, classes: tuple[str, ...] = ()) -> FolderListing:
    """Classes and files of the folder; UserError if it cannot be used, or if a class is empty and not `skip_bad`.

    `classes` are those of a trained model in the order of its labels: the folder may hold only some, but no others.
    """
    base = Path(path).expanduser()
    if base.is_file():
        raise UserError(f"{base} is a file; folder:PATH names the folder with a folder of pictures per class")
    if not base.is_dir():
        raise UserError(f"no folder {base}; folder:PATH holds train/CLASS/*.jpg and test/CLASS/*.jpg, or CLASS/*.jpg")
    folders = {entry.name.casefold(): Path(entry) for entry in os.scandir(base) if entry.is_dir()}
    test = next((folders[name] for name in TEST_NAMES if name in folders), None)
    train = next((folders[name] for name in TRAIN_NAMES if name in folders), None if test else base)
    bad: list[str] = []
    splits = {"train": train, "test": test}
    by_split = {split: _files_by_class(folder, bad) for split, folder in splits.items() if folder is not None}
    if len(by_split) == 2:
        for label in sorted(set(by_split["test"]) - set(by_split["train"]) - set(classes)):
            bad.append(f"{test}/{label}: no such class in {train}")
            del by_split["test"][label]
    names = sorted({name for by_class in by_split.values() for name in by_class})
    for text in (path, *names):  # they are written to config.json
        if text.encode(errors="replace").decode() != text:
            raise UserError(f"the name {text!r} is not UTF-8; rename that folder")
    if classes and not set(names) <= set(classes):
        raise UserError(f"{base} has classes {', '.join(names)}; the model was trained on {', '.join(classes)}")
    if bad and not skip_bad:
        raise UserError(bad_files_message(bad))
    classes = classes or tuple(names)
    if len(classes) < 2:
        folder = train or test
        raise UserError(f"{folder} has {len(classes)} class{'es' * (not classes)} with images; two or more are needed")
    if test is None:
        assert train is not None
        by_split = _split_off_test(by_split["train"], train)
    files = {
        split: [(file, label) for label, name in enumerate(classes) for file in by_class.get(name, [])]
        for split, by_class in by_split.items()
    }
    # shuffled, so that the first n test images are of all classes
    order = torch.randperm(len(files["test"]), generator=generator(0, "folder order")).tolist()
    files["test"] = [files["test"][i] for i in order]
    if not files["test"]:
        raise UserError(f"{base} has no images to test on; put some into {base / 'test'}")
    return FolderListing(classes, files, bad, splits_off_test=test is None)


def _all_grey(listing: FolderListing) -> bool:
    """Whether all files that can be read hold grey pictures; the first in colour ends the search."""
    kinds = (is_grey(file) for items in listing.files.values() for file, _ in items)
    known = next((kind for kind in kinds if kind is not None), False)
    return known and all(kind is not False for kind in kinds)


def _files_by_class(folder: Path, bad: list[str]) -> dict[str, list[Path]]:
    """The sorted files of every class; classes without files are added to `bad`."""
    names = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))
    if not names:
        raise UserError(f"{folder} has no folders in it; each class is a folder of images")
    by_lower_case: dict[str, str] = {}
    for name in names:
        if (other := by_lower_case.setdefault(name.casefold(), name)) != name:
            raise UserError(f"{folder}: classes {other!r} and {name!r} differ only in case; rename or merge them")
    by_class = {}
    for name in names:
        if files := sorted(files_below(folder / name, bad)):
            by_class[name] = files
        else:
            bad.append(f"{folder / name}: a class without images")
    return by_class


def files_below(folder: Path, bad: list[str]) -> list[Path]:
    """All files in the folder and below; folders that cannot be read, or are links, are added to `bad`."""

    def failed(error: OSError) -> None:
        bad.append(f"{error.filename}: cannot be read: {error.strerror}")

    files = []
    for place, folders, names in os.walk(folder, onerror=failed):
        bad += [f"{Path(place) / name}: a link to a folder" for name in folders if (Path(place) / name).is_symlink()]
        files += [Path(place) / name for name in names if not name.startswith(".") and name.lower() not in IGNORED]
    bad += [f"{file}: not a regular file" for file in files if file.exists() and not file.is_file()]
    return [file for file in files if file.is_file() or not file.exists()]  # a broken link is reported when it is read


def _split_off_test(by_class: dict[str, list[Path]], base: Path) -> dict[str, dict[str, list[Path]]]:
    """About a fifth of each class as the test split; of two images or more, at least one and never all.

    The file's name decides, so that no image changes sides when others are added or deleted, or when it gets another
    class, and images that a model was trained on do not become its test images. Except in a class of a few images, in
    which the names would hold out none or all: there one image is moved.
    """
    train: dict[str, list[Path]] = {}
    test: dict[str, list[Path]] = {}
    for name, files in by_class.items():
        numbers = {file: _number_of(file.relative_to(base / name)) for file in files}
        held = {file for file in files if numbers[file] < TEST_SHARE}
        if not held:
            held = {min(files, key=lambda file: numbers[file])}
        if len(held) == len(files):
            held.remove(max(files, key=lambda file: numbers[file]))
        test[name] = [file for file in files if file in held]
        train[name] = [file for file in files if file not in held]
    return {"train": train, "test": test}


def _number_of(file: Path) -> float:
    """A number in [0, 1) that looks random and depends on the name only."""
    return int.from_bytes(hashlib.sha256(os.fsencode(file.as_posix())).digest()[:6]) / 2**48
