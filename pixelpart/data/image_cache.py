"""Image files decoded once, in parallel, into one .npy file that is then mapped into memory.

It is in the folder `decoded` under the data root. A hash over the names, sizes and modification times of all image
files and over the settings of the decoder is part of its name, so that a changed file leads to another cache file. A
.json file next to it lists the bad files and has a hash over everything, which is checked before use: if it does not
match, the images are decoded again.
"""

import hashlib
import json
import os
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pixelpart.data.dataset import Root, home
from pixelpart.errors import UserError
from pixelpart.files import atomic_write, exclusive_lock, parse_json, read_text
from pixelpart.runtime.progress import Progress, silent

VERSION = 3  # to be raised when a decoder's pixels change
SHOWN = 3  # bad files that an error message lists
Shape = tuple[int, int, int]  # channels, height, width
_verified: set[tuple[Any, ...]] = set()  # cache files that this process has hashed
Decoder = Callable[[Path], tuple[NDArray[np.uint8], bool]]  # pixels, and whether some were transparent; or UserError


@dataclass(frozen=True)
class DecodedImages:
    """The good images in order, uint8 (n, channels, h, w), and why each of the other files is bad."""

    paths: Sequence[Path]
    images: Tensor
    bad: dict[int, str]  # position in `paths`: reason
    transparent: int  # number of good images that had transparent pixels

    def select(self, values: Tensor) -> Tensor:
        """The entries of `values`, which has one per file, that belong to good files."""
        good = torch.ones(len(values), dtype=torch.bool)
        good[list(self.bad)] = False
        return values[good]

    @property
    def bad_files(self) -> list[str]:
        """The bad files, each with the reason."""
        return [f"{self.paths[number]} {reason}" for number, reason in self.bad.items()]

    def check(self, *, skip_bad: bool) -> None:
        """UserError if there are bad files and they are not to be skipped."""
        if self.bad and not skip_bad:
            raise UserError(bad_files_message(self.bad_files))


def decode_images(
    paths: Sequence[Path],
    decode: Decoder,
    *,
    shape: Shape,
    name: str,
    settings: str = "",
    root: Root = None,
    progress: Progress = silent,
    again: bool = False,
) -> DecodedImages:
    """The images as `decode` returns them, from the cache file if there is one, unless `again`.

    `settings` names what the pixels depend on besides the files and the shape.
    """
    folder = home(root) / "decoded"
    target = folder / f"{name}-{shape[1]}x{shape[2]}-{_key(paths, shape, settings)}.npy"
    decoded = None if again else _open(target, paths, shape)
    if decoded is None:
        try:
            with exclusive_lock(folder / ".lock", wait=True):  # one of several processes decodes; the others wait
                decoded = None if again else _open(target, paths, shape)
                if decoded is None:
                    _write(paths, decode, shape, target, progress, title=f"decoding {name}")
                    decoded = _open(target, paths, shape)
        except OSError as error:
            raise UserError(f"cannot write {target}: {error.strerror or error}") from None
    if decoded is None:
        raise UserError(f"{target} is not what was written; is the disk faulty?")
    return decoded


def _open(target: Path, paths: Sequence[Path], shape: Shape) -> DecodedImages | None:
    """The images of a cache file; None if it is missing, corrupt or incomplete."""
    try:
        images = np.load(target, mmap_mode="c")  # copy on write: torch has no read-only tensors
        if images.dtype != np.uint8 or images.shape != (len(paths), *shape):
            return None
        text, state = read_text(target.with_suffix(".json")), target.stat()
        facts = parse_json(text)
        key = (str(target.resolve()), state.st_size, state.st_mtime_ns, text)
        if key not in _verified and facts.pop("sha256") != _sum(facts, images):
            return None
        _verified.add(key)
        bad = {int(number): reason for number, reason in facts["bad"].items()}
        return DecodedImages(paths, torch.from_numpy(images)[: len(paths) - len(bad)], bad, facts["transparent"])
    except Exception:  # numpy parses the header as Python: a corrupt byte there can raise anything
        return None


def _sum(facts: dict[str, Any], images: NDArray[np.uint8]) -> str:
    total = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    total.update(images.data)
    return total.hexdigest()


def _key(paths: Sequence[Path], shape: Shape, settings: str) -> str:
    total = hashlib.sha256(f"{VERSION} {shape} {settings}\n".encode())
    for path in paths:
        try:
            facts = path.stat()
            state = f"{facts.st_size} {facts.st_mtime_ns}"
        except OSError:
            state = "none"  # the decoder reports why
        total.update(f"{path}\0{state}\n".encode(errors="surrogateescape"))
    return total.hexdigest()[:16]


def _write(
    paths: Sequence[Path], decode: Decoder, shape: Shape, target: Path, progress: Progress, *, title: str
) -> None:
    """Both files, each written under another name and then renamed; the array last."""
    part = target.with_name(f".{target.name}.part")
    bad: dict[int, str] = {}
    transparent: set[int] = set()
    try:
        images = np.lib.format.open_memmap(part, mode="w+", dtype=np.uint8, shape=(len(paths), *shape))
        with part.open("rb+") as file:  # a full disk is an error now instead of a bus error later
            os.posix_fallocate(file.fileno(), 0, part.stat().st_size)

        def fill(number: int) -> None:
            try:
                images[number], see_through = decode(paths[number])
                if see_through:
                    transparent.add(number)
            except UserError as error:
                bad[number] = str(error)

        with (
            warnings.catch_warnings(),
            ThreadPoolExecutor(min(32, os.cpu_count() or 1)) as pool,  # Pillow decodes without the GIL
        ):
            warnings.simplefilter("ignore")  # Pillow warns about metadata
            for done, _ in enumerate(pool.map(fill, range(len(paths))), start=1):
                progress(title, done, len(paths), "")
        for position, number in enumerate(i for i in range(len(paths)) if i not in bad):
            if position != number:
                images[position] = images[number]  # good images are contiguous, so that they can be mapped
        images.flush()
        with part.open("rb+") as file:
            os.fsync(file.fileno())
        facts = {"bad": {str(number): bad[number] for number in sorted(bad)}, "transparent": len(transparent)}
        atomic_write(target.with_suffix(".json"), json.dumps(facts | {"sha256": _sum(facts, images)}, indent=1))
        os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)


def bad_files_message(bad: list[str]) -> str:
    """The first few bad files, the number of the others, and the flag that skips them."""
    more = f"; and {len(bad) - SHOWN} more" if len(bad) > SHOWN else ""
    return f"{'; '.join(bad[:SHOWN])}{more} (--skip-bad leaves such files out)"
