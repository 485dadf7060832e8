"""Pictures decoded once, in parallel, into a file that is then mapped into memory and read where it is needed.

The file lies in `decoded` under the data root. Its name holds a hash over names, sizes and times of change of all
pictures and over the size asked for, so another picture, or the same one changed, gives another file.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pixelpart.data.download import Progress, quiet
from pixelpart.data.home import Root, home
from pixelpart.errors import UserError

VERSION = 2  # of what a decoder makes of a picture
CHUNK = 64  # pictures a task
SHOWN = 3  # bad files that an error names
Decoder = Callable[[Path], NDArray[np.uint8]]  # a file as (3, size, size); ValueError tells why it cannot be used


@dataclass(frozen=True)
class Decoded:
    """The good pictures, (n, 3, size, size) uint8, in order; the numbers of the bad files, and why they are bad."""

    images: Tensor
    bad: dict[int, str]

    def kept(self, values: Tensor) -> Tensor:
        """The values of the good ones, of one for every file."""
        good = torch.ones(len(values), dtype=torch.bool)
        good[list(self.bad)] = False
        return values[good]


def decoded(
    paths: Sequence[Path],
    decode: Decoder,
    *,
    size: int,
    name: str,
    root: Root = None,
    progress: Progress = quiet,
    again: bool = False,
) -> Decoded:
    """The pictures as `decode` makes them, from the file where it is there already and not to be made `again`."""
    folder = home(root) / "decoded"
    target = folder / f"{name}-{size}-{_key(paths, size)}.npy"
    told = target.with_suffix(".json")

    def needed() -> bool:
        return again or not (target.exists() and told.exists())

    if needed():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with (folder / ".lock").open("a") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)  # of several processes one decodes, and the others find it done
                if needed():
                    _write(paths, decode, size, target, told, progress, what=f"decoding {name}")
        except OSError as error:
            raise UserError(f"cannot write {target}: {error.strerror or error}") from None
    try:
        images = np.load(target, mmap_mode="c")  # private to this process: torch wants memory that it could write to
        bad = {int(number): why for number, why in json.loads(told.read_text()).items()}
    except (OSError, ValueError) as error:
        raise UserError(f"{target} is damaged ({error}); delete it, and it is made again") from None
    return Decoded(torch.from_numpy(images)[: len(paths) - len(bad)], bad)


def _key(paths: Sequence[Path], size: int) -> str:
    total = hashlib.sha256(f"{VERSION} {size}\n".encode())
    for path in paths:
        try:
            facts = path.stat()
            state = f"{facts.st_size} {facts.st_mtime_ns}"
        except OSError:
            state = "none"  # why, the decoder tells
        total.update(f"{path}\0{state}\n".encode(errors="surrogateescape"))
    return total.hexdigest()[:16]


def _write(
    paths: Sequence[Path], decode: Decoder, size: int, target: Path, told: Path, progress: Progress, *, what: str
) -> None:
    """Both files, each written aside and then renamed; the array last, since without it there is nothing to read."""
    aside, note = (path.with_name(f".{path.name}.part") for path in (target, told))
    bad: dict[int, str] = {}
    try:
        images = np.lib.format.open_memmap(aside, mode="w+", dtype=np.uint8, shape=(len(paths), 3, size, size))
        if hasattr(os, "posix_fallocate"):  # macOS has none; elsewhere a full disk is told, and is no bus error later
            with aside.open("rb+") as file:
                os.posix_fallocate(file.fileno(), 0, aside.stat().st_size)

        def fill(begin: int) -> int:
            for number in range(begin, min(begin + CHUNK, len(paths))):
                try:
                    images[number] = decode(paths[number])
                except ValueError as error:
                    bad[number] = str(error)
            return min(CHUNK, len(paths) - begin)

        done = 0
        with (
            warnings.catch_warnings(),
            ThreadPoolExecutor(min(32, os.cpu_count() or 1)) as pool,  # Pillow decodes without Python's lock
        ):
            warnings.simplefilter("ignore")  # of Pillow, about things that do not concern the pixels
            for n in pool.map(fill, range(0, len(paths), CHUNK)):
                done += n
                progress(done, len(paths), what)
        for place, number in enumerate(i for i in range(len(paths)) if i not in bad):
            if place != number:
                images[place] = images[number]  # the good ones lie together, and can stay where they are when read
        images.flush()
        with aside.open("rb+") as file:
            os.fsync(file.fileno())
        note.write_text(json.dumps(dict(sorted(bad.items())), indent=1))
        os.replace(note, told)
        os.replace(aside, target)
    finally:
        with contextlib.suppress(OSError):
            aside.unlink(missing_ok=True)


def told(bad: list[str]) -> str:
    """The first few of what is bad, how many more there are, and what can be done."""
    more = f"; and {len(bad) - SHOWN} more" if len(bad) > SHOWN else ""
    return f"{'; '.join(bad[:SHOWN])}{more} (--skip-bad leaves such files out)"
