"""Sources of corrupted test images: files in the layout of CIFAR-10-C, or our own generator and its cache.

NAME.npy holds uint8 (5 n, h, w, 3): n images of severity 1, then of severity 2, and so on; labels.npy holds 5 n labels.
"""

import functools
import hashlib
import importlib.metadata
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pixelpart.data.corruptions import SEVERITIES, corrupt
from pixelpart.data.corruptions.frost import frost_pictures
from pixelpart.data.corruptions.random_numbers import Pixels
from pixelpart.data.dataset import Root, home
from pixelpart.errors import UserError
from pixelpart.files import atomic_write, npy_bytes
from pixelpart.runtime.progress import Progress

OFFICIAL, OWN = "CIFAR-10-C", "cifar-10-c-pixelpart"
SEED = 0  # the images are a fixed set, like the official ones
VERSION = 1  # to be raised when any pixel of `corrupt` changes: cached images and results are then made again
LIBRARIES = ("numpy", "scipy", "pillow")

Facts = dict[str, Any]


@dataclass(frozen=True)
class CorruptionFiles:
    """The first n images of each severity from .npy files; `shape` is (n, 3, h, w)."""

    folder: Path
    shape: tuple[int, ...]

    def name(self, corruption: str) -> str:
        return corruption

    def facts(self, corruption: str, severity: int) -> Facts:
        """What identifies the images: part of the key of a result."""
        return {"source": "files", "pixels": _sum(self._block(corruption, severity))}

    def images(self, corruption: str, severity: int, progress: Progress) -> Tensor:
        return _tensor(self._block(corruption, severity))

    def _block(self, corruption: str, severity: int) -> Pixels:
        stack = read_array(self.folder / f"{corruption}.npy")
        total = len(read_array(self.folder / "labels.npy")) // len(SEVERITIES)
        n, channels, h, w = self.shape
        expected = (len(SEVERITIES) * total, h, w, channels)
        if stack.dtype != np.uint8 or stack.shape != expected:
            found = f"{stack.dtype} of shape {stack.shape}"
            raise UserError(f"{self.folder / corruption}.npy has {found}, not uint8 of shape {expected}")
        start = (severity - 1) * total
        return stack[start : start + n]


@dataclass(frozen=True)
class CorruptionGenerator:
    """Images generated from clean images; saved in `cache` if given, and reused from there while they are valid."""

    clean: Tensor
    labels: Tensor
    frost: list[Pixels] | None = None  # photographs; None: generated frost
    cache: Path | None = None
    say: Callable[[str], None] = lambda line: None
    recent: dict[str, Pixels] = field(default_factory=dict)  # the last corruption, at all severities

    def name(self, corruption: str) -> str:
        """The corruption's name in results; generated frost is not the frost of CIFAR-10-C."""
        return "frost-drawn" if corruption == "frost" and self.frost is None else corruption

    def facts(self, corruption: str, severity: int) -> Facts:
        """What identifies the images: part of the key of a result."""
        return self._facts(corruption) | {"severity": severity}

    def images(self, corruption: str, severity: int, progress: Progress) -> Tensor:
        if self.cache is None:
            return _tensor(self._generate(corruption, (severity,), progress))
        if corruption not in self.recent:
            self.recent.clear()
            stack = self._read_cache(corruption)
            if stack is None:
                stack = self._generate(corruption, SEVERITIES, progress)
                self._write_cache(corruption, stack)
            self.recent[corruption] = stack
        n = len(self.clean)
        return _tensor(self.recent[corruption][(severity - 1) * n : severity * n])

    def _generate(self, corruption: str, severities: Sequence[int], progress: Progress) -> Pixels:
        """The images at each severity, in the layout of CIFAR-10-C."""
        n, parts = len(self.clean), list[Pixels]()

        def report(done: int) -> None:
            progress("corrupting", n * len(parts) + done, n * len(severities), self.name(corruption))

        for severity in severities:
            images = corrupt(self.clean, corruption, severity, seed=SEED, frost=self.frost, on_done=report)
            parts.append(images.permute(0, 2, 3, 1).numpy())
        return np.concatenate(parts)

    def _facts(self, corruption: str) -> Facts:
        frost = [_sum(picture) for picture in self.frost] if corruption == "frost" and self.frost is not None else None
        facts = {"source": "generated", "name": self.name(corruption), "seed": SEED, "generator": generator_version()}
        return facts | {"clean": self._clean_sum, "frost": frost}

    @functools.cached_property
    def _clean_sum(self) -> str:
        return _sum(self.clean.cpu().numpy())

    def _read_cache(self, corruption: str) -> Pixels | None:
        """The cached images, if they were made from the same images by the same version and the checksum is right."""
        assert self.cache is not None
        path = self.cache / f"{self.name(corruption)}.npy"
        try:
            about = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
            if about["made"] != self._facts(corruption):
                return None
            stack = read_array(path)
            return stack if about["sha256"] == _sum(stack) else None
        except (OSError, ValueError, KeyError, TypeError):  # a UserError is a ValueError
            return None

    def _write_cache(self, corruption: str, stack: Pixels) -> None:
        assert self.cache is not None
        path = self.cache / f"{self.name(corruption)}.npy"
        about = {"made": self._facts(corruption), "sha256": _sum(stack)}
        labels = self.labels.cpu().numpy().astype(np.uint8)
        try:
            atomic_write(self.cache / "labels.npy", npy_bytes(np.tile(labels, len(SEVERITIES))))
            atomic_write(path, npy_bytes(stack))
            atomic_write(path.with_suffix(".json"), json.dumps(about, indent=2) + "\n")
        except OSError as error:
            self.say(f"{self.name(corruption)} cannot be saved: {error.strerror or error}")


CorruptionSource = CorruptionFiles | CorruptionGenerator


def open_source(
    x: Tensor,
    y: Tensor,
    *,
    whole: bool,
    dataset: str,
    root: Root = None,
    folder: str | Path | None = None,
    frost: str | Path | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> CorruptionSource:
    """The source of corrupted versions of x, the first test images of a data set.

    The files in `folder`, else those of CIFAR-10-C in the data root, else the generator, with a cache if x is the
    `whole` test set of cifar10.
    """
    found = Path(folder).expanduser() if folder is not None else home(root) / OFFICIAL
    if folder is not None or (dataset == "cifar10" and found.is_dir()):
        _check_labels(found, y)
        say(f"corrupted images: files in {found}")
        return CorruptionFiles(found, tuple(x.shape))
    if x.dtype != torch.uint8:
        raise UserError(f"corruptions need uint8 images, not {str(x.dtype).removeprefix('torch.')}")
    pictures = frost_pictures(frost)
    cache = home(root) / OWN if whole and dataset == "cifar10" else None
    kind = "with generated frost" if pictures is None else "with photographs of frost"
    say(f"corrupted images: generated, {kind}" + (f", cached in {cache}" if cache else ""))
    return CorruptionGenerator(x, y, pictures, cache, say)


def check_names(source: CorruptionSource, names: Sequence[str]) -> None:
    """UserError unless the source has these corruptions."""
    if isinstance(source, CorruptionGenerator):
        return
    if missing := [f"{name}.npy" for name in names if not (source.folder / f"{name}.npy").is_file()]:
        raise UserError(f"{source.folder} lacks {', '.join(missing)}")


def _check_labels(folder: Path, y: Tensor) -> None:
    """UserError unless a folder's labels are those of the test images, once for each severity."""
    path = folder / "labels.npy"
    labels = read_array(path)
    if labels.ndim != 1 or labels.dtype.kind not in "iu" or not len(labels) or len(labels) % len(SEVERITIES):
        raise UserError(f"{path} has {labels.dtype} of shape {labels.shape}, not 50,000 labels")
    blocks = labels.reshape(len(SEVERITIES), -1)
    if blocks.shape[1] < len(y):
        raise UserError(f"{path} has {blocks.shape[1]} labels for each severity, but there are {len(y)} test images")
    if (blocks[:, : len(y)] != y.cpu().numpy()).any():
        raise UserError(f"the labels in {path} are not those of the test images")


def read_array(path: Path) -> NDArray[Any]:
    """The array of a .npy file, mapped into memory; UserError if it cannot be read."""
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise UserError(f"no file {path}") from None
    except Exception as error:  # numpy parses the header as Python, which can fail in many ways
        raise UserError(f"{path} is not a .npy file, or is corrupt: {' '.join(str(error).split())}") from None


def generator_version() -> str:
    """The version of the generator and of the libraries that may change a pixel."""
    return " ".join([str(VERSION), *(f"{name}-{importlib.metadata.version(name)}" for name in LIBRARIES)])


def _sum(array: NDArray[Any]) -> str:
    total = hashlib.sha256(repr((array.shape, str(array.dtype))).encode())
    total.update(np.ascontiguousarray(array).data)
    return total.hexdigest()


def _tensor(images: Pixels) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2)))
