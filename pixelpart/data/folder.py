"""A user's pictures in folders by class: PATH/train/CLASS/... with PATH/test/CLASS/..., or PATH/CLASS/... alone.

Where there is no test folder, a fifth of each class is the test split: always the same fifth, whatever a run's seed.
Training pictures lie class by class, test pictures in an order of their own, which is always the same.
"""

import functools
import os
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from pixelpart.data.decoded import Decoded, decoded, told
from pixelpart.data.download import Progress, quiet
from pixelpart.data.home import Root
from pixelpart.data.picture import read_picture
from pixelpart.data.sets import DataSet
from pixelpart.draws import generator
from pixelpart.errors import UserError, choose

MEAN = (0.485, 0.456, 0.406)  # of ImageNet's photographs: known before a single file is read
STD = (0.229, 0.224, 0.225)
TRAINS, TESTS = ("train", "training"), ("test", "testing", "val", "valid", "validation")  # the first that is there
NOT_PICTURES = ("thumbs.db", "desktop.ini")  # what file managers leave behind; hidden files too


SMALLEST, LARGEST = 8, 1024  # pixels a side


@dataclass(frozen=True)
class Listing:
    """Classes in the order of their labels, the files of each split with their labels, and what cannot be used."""

    classes: tuple[str, ...]
    files: dict[str, list[tuple[Path, int]]]
    bad: list[str]


def data_set(path: str, *, size: int, skip_bad: bool = False) -> DataSet:
    """The folder as a data set; its files are listed now and decoded when they are first loaded."""
    if not path:
        raise UserError("folder: needs a path; write folder:PATH")
    if not size:
        raise UserError(f"folder:{path} needs the images' width and height in pixels; pass --size, such as --size 64")
    if not SMALLEST <= size <= LARGEST:
        raise UserError(f"size {size} of folder:{path} is out of range; choose {SMALLEST} to {LARGEST}")
    held = listing(path, skip_bad=skip_bad)

    def decode(split: str, root: Root, progress: Progress, *, again: bool = False) -> Decoded:
        return decoded(
            [file for file, _ in held.files[split]],
            functools.partial(read_picture, size=size),
            size=size,
            name=f"folder-{Path(path).name}-{split}".replace(" ", "_"),
            root=root,
            progress=progress,
            again=again,
        )

    def load(split: str, root: Root, progress: Progress = quiet, *, again: bool = False) -> tuple[Tensor, Tensor]:
        items = choose(held.files, split, "split")
        found = decode(split, root, progress, again=again)
        if found.bad and not skip_bad:
            raise UserError(told(_reasons(items, found)))
        labels = found.kept(torch.tensor([label for _, label in items]))
        lost = set(range(len(held.classes))) - set(labels.tolist())
        if lost and split == "train":
            raise UserError(f"no picture of class {held.classes[min(lost)]!r} can be used; skipping cannot help")
        return found.images, labels

    def check(root: Root, progress: Progress = quiet) -> str:
        for split in held.files:
            load(split, root, progress, again=True)
        return "verified"

    def files(root: Root) -> tuple[Path, list[Path]]:
        return Path(path).expanduser(), [file for items in held.files.values() for file, _ in items]

    def skipped(root: Root) -> list[str]:
        of_files = [_reasons(items, decode(split, root, quiet)) for split, items in held.files.items()]
        return held.bad + [line for lines in of_files for line in lines]

    return DataSet(
        classes=held.classes,
        size=size,
        mean=MEAN,
        std=STD,
        counts={split: len(items) for split, items in held.files.items()},
        about=f"pictures of {len(held.classes)} classes",
        load=load,
        files=files,
        check=check,
        skipped=skipped if skip_bad else None,
        decodes=True,
    )


def listing(path: str, *, skip_bad: bool = False) -> Listing:
    """Classes and files of the folder; UserError if it cannot be used, or if a class is empty and not `skip_bad`."""
    base = Path(path).expanduser()
    if not base.is_dir():
        raise UserError(f"no folder {base}; folder:PATH holds train/CLASS/*.jpg and test/CLASS/*.jpg, or CLASS/*.jpg")
    folders = {entry.name.casefold(): Path(entry) for entry in os.scandir(base) if entry.is_dir()}
    train = next((folders[name] for name in TRAINS if name in folders), base)
    test = next((folders[name] for name in TESTS if name in folders), None)
    if test is not None and train == base:
        raise UserError(f"{base} has a folder {test.name!r}, but none called 'train' beside it")
    bad: list[str] = []
    found = {"train": _by_class(train, bad)}
    if test is not None:
        found["test"] = _by_class(test, bad)
    classes = tuple(sorted(found["train"]))
    for text in (path, *classes):  # a run's config holds them
        if text.encode(errors="replace").decode() != text:
            raise UserError(f"the name {text!r} is not in UTF-8; rename that folder")
    for label in sorted(set(found.get("test", {})) - set(classes)):
        bad.append(f"{test}/{label}: no such class in {train}")
        del found["test"][label]
    if bad and not skip_bad:
        raise UserError(told(bad))
    if len(classes) < 2:
        raise UserError(
            f"{train} has pictures of {len(classes)} class{'es' * (not classes)}; training needs two or more"
        )
    if test is None:
        found = _held_out(found["train"])
    files = {
        split: [(path, label) for label, name in enumerate(classes) for path in held.get(name, [])]
        for split, held in found.items()
    }
    # "The first so many" test pictures are to be of all classes.
    order = torch.randperm(len(files["test"]), generator=generator(0, "folder order")).tolist()
    files["test"] = [files["test"][i] for i in order]
    if not all(files.values()):
        raise UserError(f"{base} has no pictures to {'test on' if files['train'] else 'train on'}")
    return Listing(classes, files, bad)


def _by_class(folder: Path, bad: list[str]) -> dict[str, list[Path]]:
    """The files of every class, sorted; classes without any are added to `bad`."""
    names = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))
    if not names:
        raise UserError(f"{folder} has no folders in it; each class is a folder of pictures")
    alike: dict[str, str] = {}
    for name in names:
        if (other := alike.setdefault(name.casefold(), name)) != name:
            raise UserError(f"{folder}: classes {other!r} and {name!r} differ by case alone; rename or merge them")
    found = {}
    for name in names:
        files = sorted(_pictures(folder / name))
        if files:
            found[name] = files
        else:
            bad.append(f"{folder / name}: a class without pictures")
    return found


def _pictures(folder: Path) -> list[Path]:
    """Every file below the folder, but for hidden ones and what file managers leave behind."""
    return [
        Path(place) / name
        for place, _, names in os.walk(folder)
        for name in names
        if not name.startswith(".") and name.lower() not in NOT_PICTURES
    ]


def _held_out(found: dict[str, list[Path]]) -> dict[str, dict[str, list[Path]]]:
    """A fifth of each class as the test split; of two pictures or more, at least one and never all."""
    train: dict[str, list[Path]] = {}
    test: dict[str, list[Path]] = {}
    for number, (name, files) in enumerate(sorted(found.items())):
        order = torch.randperm(len(files), generator=generator(0, "folder", number)).tolist()
        kept = max(len(files) // 5, min(1, len(files) - 1))
        test[name] = [files[i] for i in sorted(order[:kept])]
        train[name] = [files[i] for i in sorted(order[kept:])]
    return {"train": train, "test": test}


def _reasons(items: list[tuple[Path, int]], found: Decoded) -> list[str]:
    return [f"{items[number][0]} {why}" for number, why in found.bad.items()]
