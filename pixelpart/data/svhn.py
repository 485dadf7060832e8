"""SVHN's cropped digits from the official .mat files, recognised by the number of images of each digit.

Netzer et al., "Reading digits in natural images with unsupervised feature learning", 2011. X is (32, 32, 3, n) uint8, y
is (n, 1) with the digit 0 as 10.
"""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pixelpart.data.dataset import Root, find_files, home, missing
from pixelpart.data.download import digest, downloading, fetch
from pixelpart.errors import UserError, choose
from pixelpart.runtime.progress import Progress, silent

CLASSES = tuple("0123456789")
MEAN = (0.4377, 0.4438, 0.4728)
STD = (0.1980, 0.2010, 0.1970)
COUNTS = {"train": 73_257, "test": 26_032}
DIGITS = {  # images of each digit, from 0
    "train": (4948, 13861, 10585, 8497, 7458, 6882, 5727, 5595, 5045, 4659),
    "test": (1744, 5099, 4149, 2882, 2523, 2384, 1977, 2019, 1660, 1595),
}
FILES = {"train": "train_32x32.mat", "test": "test_32x32.mat"}
MD5 = {"train": "e26dedcc434d2e4c54c9b2d4a06d8373", "test": "eb5a983be6a315427106f1b164d9cef3"}
URL = "http://ufldl.stanford.edu/housenumbers/"


def present(root: Root = None) -> tuple[Path, list[Path]] | None:
    """The folder and its two files: the data root, or `svhn` or `SVHN` in it; UserError if one is missing."""
    return find_files(root, dict.fromkeys(("svhn", "SVHN"), dict.fromkeys(FILES.values())))


def load(split: str, root: Root = None, progress: Progress = silent) -> tuple[Tensor, Tensor]:
    """uint8 images (n, 3, 32, 32) and labels (n,) of a split, digit 0 as 0; UserError if the file is not SVHN's."""
    name = choose(FILES, split, "split")
    if (files := present(root)) is None:
        raise missing("svhn", root, _by_hand(home(root)))
    path = files[0] / name
    x, y = _arrays(path, official=digest(path, "md5") == MD5[split])
    n, wrong = COUNTS[split], f"{path} is not SVHN's {name}:"
    if x.dtype != np.uint8 or x.shape != (32, 32, 3, n) or y.size != n or y.dtype.kind not in "iuf":
        shapes = f"X is {x.dtype} {x.shape} and y {y.dtype} {y.shape}, not uint8 (32, 32, 3, {n}) and ({n}, 1)"
        raise UserError(f"{wrong} {shapes}")
    labels = y.reshape(-1).astype(np.int64)
    if labels.min() < 1 or labels.max() > 10:
        raise UserError(f"{wrong} labels from {labels.min()} to {labels.max()}, not 1 to 10")
    labels %= 10
    if (digits := tuple(np.bincount(labels, minlength=10).tolist())) != DIGITS[split]:
        raise UserError(f"{wrong} images of each digit are {digits}, not {DIGITS[split]}")
    return torch.from_numpy(np.ascontiguousarray(x.transpose(3, 2, 0, 1))), torch.from_numpy(labels)


def _arrays(path: Path, *, official: bool) -> tuple[Any, Any]:
    """X and y of a .mat file. One that is not official is first parsed in a process of its own.

    scipy's parser may crash on a corrupt file.
    """
    from scipy.io import loadmat

    if not official:
        done = subprocess.run([sys.executable, "-c", PARSE, path], capture_output=True, text=True, errors="replace")
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or [""])[-1].partition(": ")[2]
            raise UserError(f"{path} is not a readable .mat file: {reason or 'the parser crashed'}")
    arrays = loadmat(path, variable_names=["X", "y"])
    if lacking := [name for name in ("X", "y") if name not in arrays]:
        raise UserError(f"{path} has no array {' and no array '.join(lacking)}")
    return arrays["X"], arrays["y"]


PARSE = "import sys, scipy.io; scipy.io.loadmat(sys.argv[1], variable_names=['X', 'y'])"


def check(root: Root = None, progress: Progress = silent) -> str:
    """`verified` if the checksums are those of the official files; `unofficial` if only the counts are right."""
    for split in FILES:
        load(split, root)
    files = present(root)
    assert files is not None
    official = all(digest(path, "md5") == MD5[split] for split, path in zip(FILES, files[1], strict=True))
    return "verified" if official else "unofficial"


def get(root: Root = None, progress: Progress = silent) -> None:
    """Downloads SVHN's two files into a folder that gets its name once it has both."""
    base = home(root)
    part = base / "svhn.part"
    with downloading("svhn", part, _by_hand(base)):
        for split, name in FILES.items():
            fetch(URL + name, part / name, md5=MD5[split], progress=progress)
        part.rename(base / "svhn")


def _by_hand(base: Path) -> str:
    return f"put {' and '.join(FILES.values())} into {base / 'svhn'}"
