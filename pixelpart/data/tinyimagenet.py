"""TinyImageNet-200 from the official folder: 64x64 JPEGs, some of them grey; the validation images are its test split.

Le and Yang, "Tiny ImageNet visual recognition challenge", 2015. Labels number the classes in the order of their WordNet
numbers. The official test images have no labels and are not used.
"""

import dataclasses
import functools
import hashlib
import os
import shutil
import zipfile
from pathlib import Path

import torch
from jaxtyping import Int64
from torch import Tensor

from pixelpart.data.decoded import Decoded, decoded, told
from pixelpart.data.download import Progress, Unavailable, fetch, quiet
from pixelpart.data.home import Root, home
from pixelpart.data.picture import read_picture
from pixelpart.data.sets import DataSet
from pixelpart.data.tinyimagenet_classes import NAMES, WNIDS
from pixelpart.errors import UserError, choose

CLASSES = NAMES
SIZE = 64
MEAN = (0.4802, 0.4481, 0.3975)
STD = (0.2764, 0.2689, 0.2816)
COUNTS = {"train": 100_000, "test": 10_000}
FOLDER = "tiny-imagenet-200"
URL = "http://cs231n.stanford.edu/tiny-imagenet-200.zip"
URL_MD5 = "90528d7ca1a48142e341f4ef8d21d0de"
LISTS = "cb934ea49c4bf246439e9b15dee0d9a7736f0e6d909d224a439cdb0111ab9c42"
Box = tuple[int, int, int, int]  # left, top, right, bottom, in pixels
Item = tuple[Path, int, Box]


def locate(root: Root = None) -> Path | None:
    """The folder with the set under `root`, or `root` itself if it is one."""
    base = home(root)
    return next((place for place in (base / FOLDER, base) if (place / "wnids.txt").is_file()), None)


def present(root: Root = None) -> tuple[Path, list[Path]] | None:
    """The folder and the files of both splits that are in it; they are not opened."""
    if (folder := locate(root)) is None:
        return None
    lists = [folder / "wnids.txt", folder / "val" / "val_annotations.txt"]
    if missing := [str(path.relative_to(folder)) for path in lists if not path.is_file()]:
        raise UserError(f"{folder} lacks {', '.join(missing)}")
    pictures = [folder / "train" / wnid / "images" for wnid in WNIDS] + [folder / "val" / "images"]
    if missing := [str(path.relative_to(folder)) for path in pictures if not path.is_dir()]:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise UserError(f"{folder} lacks {', '.join(missing[:3])}{more}")
    return folder, lists + [Path(entry.path) for place in pictures for entry in os.scandir(place)]


def listed(split: str, root: Root = None) -> list[Item]:
    """Every image of a split with its label and its box, as the official lists have them; nothing is decoded."""
    read = choose({"train": _train, "test": _validation}, split, "split")
    if (folder := locate(root)) is None:
        raise UserError(
            f"no tinyimagenet under {home(root)}; run `pixelpart data get tinyimagenet`, or {_by_hand(home(root))}"
        )
    present(folder)
    items = read(folder)
    each = COUNTS[split] // len(WNIDS)
    counts = torch.bincount(torch.tensor([label for _, label, _ in items]), minlength=len(WNIDS))
    if (wrong := (counts != each).nonzero().flatten().tolist()) != []:
        wnid, n = WNIDS[wrong[0]], int(counts[wrong[0]])
        raise UserError(f"{folder} is not TinyImageNet-200: {split} lists {n} images of {wnid}, not {each}")
    return items


def _train(folder: Path) -> list[Item]:
    """train/WNID/WNID_boxes.txt: file, left, top, right, bottom."""
    return [
        (folder / "train" / wnid / "images" / name, label, _box(box, source))
        for label, wnid in enumerate(WNIDS)
        for source in [folder / "train" / wnid / f"{wnid}_boxes.txt"]
        for name, *box in _lines(source, 5)
    ]


def _validation(folder: Path) -> list[Item]:
    """val/val_annotations.txt: file, WNID, left, top, right, bottom. One public copy has two classes more: left out."""
    labels = {wnid: label for label, wnid in enumerate(WNIDS)}
    source = folder / "val" / "val_annotations.txt"
    return [
        (folder / "val" / "images" / name, labels[wnid], _box(box, source))
        for name, wnid, *box in _lines(source, 6)
        if wnid in labels
    ]


def _lines(path: Path, fields: int) -> list[list[str]]:
    try:
        lines = [line.split("\t") for line in path.read_text().splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
    for number, line in enumerate(lines, start=1):
        if len(line) != fields or "/" in line[0]:
            raise UserError(f"{path}, line {number}: not {fields} fields with tabs between them")
    return lines


def _box(words: list[str], source: Path) -> Box:
    try:
        left, top, right, bottom = map(int, words)
    except ValueError:
        raise UserError(f"{source}: {words} is not a box of four whole numbers") from None
    return left, top, right, bottom


def load(
    split: str, root: Root = None, progress: Progress = quiet, *, again: bool = False, skip_bad: bool = False
) -> tuple[Tensor, Tensor]:
    """uint8 images (n, 3, 64, 64), mapped from a file that the first call makes, and labels (n,)."""
    items = listed(split, root)
    found = _decode(items, split, root, progress, again=again)
    if found.bad and not skip_bad:
        raise UserError(told(_reasons(items, found)))
    return found.images, found.kept(torch.tensor([label for _, label, _ in items]))


def boxes(split: str, root: Root = None, *, skip_bad: bool = False) -> Int64[Tensor, "n 4"]:
    """Where the object is in each image, in the order of `load`: left, top, right, bottom, in pixels."""
    items = listed(split, root)
    every = torch.tensor([box for _, _, box in items])
    return _decode(items, split, root).kept(every) if skip_bad else every


def check(root: Root = None, progress: Progress = quiet, *, skip_bad: bool = False) -> str:
    """Decodes every image anew; UserError where a list, a count or a file is wrong. `unofficial`: by other lists."""
    for split in COUNTS:
        load(split, root, progress, again=True, skip_bad=skip_bad)
    return "verified" if lists_hash(root) == LISTS else "unofficial"


def lists_hash(root: Root = None) -> str:
    """sha256 of the name, label and box of every image, in the order of `load`; training images first."""
    total = hashlib.sha256()
    for split in COUNTS:
        for path, label, box in listed(split, root):
            total.update(f"{path.name} {label} {' '.join(map(str, box))}\n".encode())
    return total.hexdigest()


def without_bad(entry: DataSet) -> DataSet:
    """The set without the files that cannot be used."""
    return dataclasses.replace(
        entry,
        load=functools.partial(load, skip_bad=True),
        check=functools.partial(check, skip_bad=True),
        boxes=functools.partial(boxes, skip_bad=True),
        skipped=skipped,
    )


def skipped(root: Root = None) -> list[str]:
    """The files that cannot be used, each with the reason."""
    splits = {split: listed(split, root) for split in COUNTS}
    return [line for split, items in splits.items() for line in _reasons(items, _decode(items, split, root))]


def _decode(items: list[Item], split: str, root: Root, progress: Progress = quiet, *, again: bool = False) -> Decoded:
    return decoded(
        [path for path, _, _ in items],
        functools.partial(read_picture, size=SIZE, exact=True),
        size=SIZE,
        name=f"tinyimagenet-{split}",
        root=root,
        progress=progress,
        again=again,
    )


def _reasons(items: list[Item], found: Decoded) -> list[str]:
    return [f"{items[number][0]} {why}" for number, why in found.bad.items()]


def get(root: Root = None, progress: Progress = quiet) -> Path:
    """The folder with the set, fetched unless it is there."""
    if (there := locate(root)) is not None:
        present(there)
        return there
    base = home(root)
    archive, aside = base / URL.rsplit("/", 1)[1], base / f".{FOLDER}.{os.getpid()}.part"
    try:
        base.mkdir(parents=True, exist_ok=True)
        brought = archive.exists()  # by the user, so it stays
        fetch(URL, archive, md5=URL_MD5, progress=progress)
        with zipfile.ZipFile(archive) as held:
            names = [name for name in held.namelist() if name.startswith(f"{FOLDER}/")]
            for done, name in enumerate(names, start=1):
                held.extract(name, aside)
                progress(done, len(names), "unpacking")
        os.rename(aside / FOLDER, base / FOLDER)
        if not brought:
            archive.unlink(missing_ok=True)
    except Unavailable as error:
        raise UserError(f"cannot get tinyimagenet: {error}. Instead, {_by_hand(base)}") from None
    except (OSError, zipfile.BadZipFile) as error:
        raise UserError(f"cannot write tinyimagenet under {base}: {error}") from None
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return base / FOLDER


def _by_hand(base: Path) -> str:
    return f"put the folder {FOLDER} into {base}, or {URL.rsplit('/', 1)[1]} into {base} and get again"
