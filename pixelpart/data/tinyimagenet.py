"""TinyImageNet-200 from the official folder: 64x64 JPEGs, some of them grey; the validation images are the test split.

Le and Yang, "Tiny ImageNet visual recognition challenge", 2015. Labels number the classes in the order of their WordNet
numbers. The official test images have no labels and are not used.
"""

import dataclasses
import functools
import hashlib
import os
import zipfile
from pathlib import Path

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from pixelpart.data.dataset import DataSet, Root, home, missing
from pixelpart.data.download import Unavailable, downloading, fetched_archive, new_folder
from pixelpart.data.image_cache import DecodedImages, decode_images
from pixelpart.data.image_file import read_image
from pixelpart.data.tinyimagenet_classes import NAMES, WNIDS
from pixelpart.errors import UserError, choose
from pixelpart.runtime.progress import Progress, silent

CLASSES = NAMES
SIZE = 64
MEAN = (0.4802, 0.4481, 0.3975)
STD = (0.2764, 0.2689, 0.2816)
COUNTS = {"train": 100_000, "test": 10_000}
FOLDER = "tiny-imagenet-200"
URL = "http://cs231n.stanford.edu/tiny-imagenet-200.zip"
URL_MD5 = "90528d7ca1a48142e341f4ef8d21d0de"
LISTS_SHA256 = "cb934ea49c4bf246439e9b15dee0d9a7736f0e6d909d224a439cdb0111ab9c42"
Box = tuple[int, int, int, int]  # left, top, right, bottom, in pixels
Item = tuple[Path, int, Box]


def present(root: Root = None) -> tuple[Path, list[Path]] | None:
    """The folder, under `root` or `root` itself, and the files of both splits in it; they are not opened."""
    base = home(root)
    folder = next((candidate for candidate in (base / FOLDER, base) if (candidate / "wnids.txt").is_file()), None)
    if folder is None:
        return None
    lists = [folder / "wnids.txt", folder / "val" / "val_annotations.txt"]
    pictures = [folder / "train" / wnid / "images" for wnid in WNIDS] + [folder / "val" / "images"]
    if lacking := [str(path.relative_to(folder)) for path in lists + pictures if not path.exists()]:
        more = f" and {len(lacking) - 3} more" if len(lacking) > 3 else ""
        raise UserError(f"{folder} lacks {', '.join(lacking[:3])}{more}")
    return folder, lists + [Path(entry.path) for images in pictures for entry in os.scandir(images)]


def list_images(split: str, root: Root = None) -> list[Item]:
    """Path, label and box of every image of a split, from the official lists; nothing is decoded."""
    read = choose({"train": _train, "test": _validation}, split, "split")
    if (files := present(root)) is None:
        raise missing("tinyimagenet", root, _by_hand(home(root)))
    folder, _ = files
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
        (folder / "train" / wnid / "images" / name, label, box)
        for label, wnid in enumerate(WNIDS)
        for (name,), box in _lines(folder / "train" / wnid / f"{wnid}_boxes.txt", 5)
    ]


def _validation(folder: Path) -> list[Item]:
    """val/val_annotations.txt: file, WNID, left, top, right, bottom. Other classes are left out."""
    labels = {wnid: label for label, wnid in enumerate(WNIDS)}
    return [
        (folder / "val" / "images" / name, labels[wnid], box)
        for (name, wnid), box in _lines(folder / "val" / "val_annotations.txt", 6)
        if wnid in labels
    ]


def _lines(path: Path, fields: int) -> list[tuple[list[str], Box]]:
    """The words of each line before its last four, and those four as a box."""
    try:
        lines = [line.split("\t") for line in path.read_text().splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
    parsed = []
    for number, line in enumerate(lines, start=1):
        if len(line) != fields or "/" in line[0] or not all(word.isdecimal() for word in line[-4:]):
            raise UserError(f"{path}, line {number}: not {fields} tab-separated fields, the last four of them integers")
        left, top, right, bottom = map(int, line[-4:])
        parsed.append((line[:-4], (left, top, right, bottom)))
    return parsed


def load(
    split: str, root: Root = None, progress: Progress = silent, *, again: bool = False, skip_bad: bool = False
) -> tuple[Tensor, Tensor]:
    """uint8 images (n, 3, 64, 64), mapped from a file that the first call writes, and labels (n,)."""
    items = list_images(split, root)
    decoded = _decode(items, split, root, progress, again=again)
    decoded.check(skip_bad=skip_bad)
    return decoded.images, decoded.select(torch.tensor([label for _, label, _ in items]))


def boxes(split: str, root: Root = None, *, skip_bad: bool = False) -> Int64[Tensor, "n 4"]:
    """The box around the object of each image, in the order of `load`: left, top, right, bottom, in pixels."""
    items = list_images(split, root)
    all_boxes = torch.tensor([box for _, _, box in items])
    return _decode(items, split, root).select(all_boxes) if skip_bad else all_boxes


def object_masks(split: str, root: Root = None, *, skip_bad: bool = False) -> Bool[Tensor, "n 64 64"]:
    """Whether each pixel is in the box around the object, whose corners belong to it, in the order of `load`."""
    left, top, right, bottom = boxes(split, root, skip_bad=skip_bad)[:, :, None].unbind(1)
    position = torch.arange(SIZE)
    rows, columns = (position >= top) & (position <= bottom), (position >= left) & (position <= right)
    return rows[:, :, None] & columns[:, None, :]


def check(root: Root = None, progress: Progress = silent, *, skip_bad: bool = False) -> str:
    """Decodes all images again; UserError if a list, a count or a file is wrong. `unofficial`: the lists differ."""
    for split in COUNTS:
        load(split, root, progress, again=True, skip_bad=skip_bad)
    return "verified" if lists_hash(root) == LISTS_SHA256 else "unofficial"


def lists_hash(root: Root = None) -> str:
    """sha256 of the name, label and box of every image in the order of `load`, training images first."""
    total = hashlib.sha256()
    for split in COUNTS:
        for path, label, box in list_images(split, root):
            total.update(f"{path.name} {label} {' '.join(map(str, box))}\n".encode())
    return total.hexdigest()


def without_bad(entry: DataSet) -> DataSet:
    """The data set without the files that cannot be used."""
    return dataclasses.replace(
        entry,
        load=functools.partial(load, skip_bad=True),
        check=functools.partial(check, skip_bad=True),
        masks=functools.partial(object_masks, skip_bad=True),
        skipped=skipped,
    )


def skipped(root: Root = None) -> list[str]:
    """The files that cannot be used, each with the reason."""
    return [line for split in COUNTS for line in _decode(list_images(split, root), split, root).bad_files]


def _decode(
    items: list[Item], split: str, root: Root, progress: Progress = silent, *, again: bool = False
) -> DecodedImages:
    return decode_images(
        [path for path, _, _ in items],
        functools.partial(read_image, shape=(3, SIZE, SIZE), exact=True),
        shape=(3, SIZE, SIZE),
        name=f"tinyimagenet-{split}",
        root=root,
        progress=progress,
        again=again,
    )


def get(root: Root = None, progress: Progress = silent) -> None:
    """Downloads and unpacks the official archive."""
    base = home(root)
    with (
        downloading("tinyimagenet", base, _by_hand(base)),
        fetched_archive(URL, base, md5=URL_MD5, progress=progress) as archive,
        new_folder(base / FOLDER) as folder,
    ):
        try:
            with zipfile.ZipFile(archive) as zipped:
                files = [file for file in zipped.infolist() if not file.is_dir()]
                members = [file for file in files if file.filename.startswith(f"{FOLDER}/")]
                for done, member in enumerate(members, start=1):
                    member.filename = member.filename.removeprefix(f"{FOLDER}/")
                    zipped.extract(member, folder)
                    progress("unpacking", done, len(members), "")
        except zipfile.BadZipFile as error:
            raise Unavailable(f"{archive.name} cannot be unpacked: {error}") from None


def _by_hand(base: Path) -> str:
    return f"put the folder {FOLDER} into {base}, or {URL.rsplit('/', 1)[1]} into {base} and run `data get` again"
