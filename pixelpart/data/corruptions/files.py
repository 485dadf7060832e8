"""Where corrupted test images come from: files in the layout of CIFAR-10-C, or our own generator and its cache.

NAME.npy holds uint8 (5 n, h, w, 3): n images of severity 1, then of severity 2, and so on; labels.npy holds 5 n labels.
"""

import functools
import hashlib
import importlib.metadata
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pixelpart import draws
from pixelpart.data.corruptions import SEVERITIES, corrupt
from pixelpart.data.corruptions.drawing import Pixels
from pixelpart.data.corruptions.frost import frost_pictures
from pixelpart.data.home import Root, home
from pixelpart.errors import UserError
from pixelpart.files import atomic_write

OFFICIAL, OWN = "CIFAR-10-C", "cifar-10-c-pixelpart"
SEED = 0  # the images are a fixed set, like the official ones
WITH = ("numpy", "scipy", "pillow")  # what the bits of an image may depend on besides our own source

Facts = dict[str, Any]
Tell = Callable[[str, int, int], None]  # corruption, images made, of how many


@dataclass(frozen=True)
class Given:
    """The first images of each severity, (n, 3, h, w) in all, from files that somebody has put there."""

    folder: Path
    shape: tuple[int, ...]

    def name(self, corruption: str) -> str:
        return corruption

    def facts(self, corruption: str, severity: int) -> Facts:
        """What the images are, for a key."""
        return {"source": "files", "pixels": _sum(self._block(corruption, severity))}

    def images(self, corruption: str, severity: int, tell: Tell) -> Tensor:
        return _tensor(self._block(corruption, severity))

    def _block(self, corruption: str, severity: int) -> Pixels:
        stack = read_array(self.folder / f"{corruption}.npy")
        total = len(read_array(self.folder / "labels.npy")) // len(SEVERITIES)
        n, channels, h, w = self.shape
        expected = (len(SEVERITIES) * total, h, w, channels)
        if stack.dtype != np.uint8 or stack.shape != expected:
            said = f"{stack.dtype} of shape {stack.shape}"
            raise UserError(f"{self.folder / corruption}.npy holds {said}, not uint8 of shape {expected}")
        start = (severity - 1) * total
        return stack[start : start + n]


@dataclass(frozen=True)
class Generated:
    """Images made from clean ones; kept in `cache` if that is given, and had from there unless anything changed."""

    clean: Tensor
    labels: Tensor
    frost: list[Pixels] | None = None  # pictures; without them it is drawn
    cache: Path | None = None
    say: Callable[[str], None] = lambda line: None
    recent: dict[str, Pixels] = field(default_factory=dict)  # the last corruption at all severities

    def name(self, corruption: str) -> str:
        """Frost that is drawn is something else than the frost of CIFAR-10-C."""
        return "frost-drawn" if corruption == "frost" and self.frost is None else corruption

    def facts(self, corruption: str, severity: int) -> Facts:
        """What the images are, for a key."""
        return self._made(corruption) | {"severity": severity}

    def images(self, corruption: str, severity: int, tell: Tell) -> Tensor:
        if self.cache is None:
            return self._make(corruption, severity, lambda done: tell(self.name(corruption), done, len(self.clean)))
        if corruption not in self.recent:
            kept = self._kept(corruption)
            self.recent.clear()
            self.recent[corruption] = self._make_all(corruption, tell) if kept is None else kept
        n = len(self.clean)
        return _tensor(self.recent[corruption][(severity - 1) * n : severity * n])

    def _make(self, corruption: str, severity: int, tell: Callable[[int], None]) -> Tensor:
        return corrupt(self.clean, corruption, severity, seed=SEED, frost=self.frost, tell=tell)

    def _make_all(self, corruption: str, tell: Tell) -> Pixels:
        n, name = len(self.clean), self.name(corruption)
        total = n * len(SEVERITIES)
        parts: list[Pixels] = []

        def add(done: int) -> None:
            tell(name, n * len(parts) + done, total)

        for severity in SEVERITIES:
            parts.append(self._make(corruption, severity, add).permute(0, 2, 3, 1).numpy())
        stack = np.concatenate(parts)
        self._keep(corruption, stack)
        return stack

    def _made(self, corruption: str) -> Facts:
        frost = [_sum(picture) for picture in self.frost] if corruption == "frost" and self.frost is not None else None
        made = {"source": "generated", "name": self.name(corruption), "seed": SEED, "generator": generator()}
        return made | {"clean": self._clean, "frost": frost}

    @functools.cached_property
    def _clean(self) -> str:
        return _sum(self.clean.cpu().numpy())

    def _kept(self, corruption: str) -> Pixels | None:
        """What the cache holds, if it was made of the same images by the same code and is whole."""
        assert self.cache is not None
        path = self.cache / f"{self.name(corruption)}.npy"
        try:
            about = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
            if about["made"] != self._made(corruption):
                return None
            stack = read_array(path)
            return stack if about["sha256"] == _sum(stack) else None
        except (OSError, ValueError, KeyError, TypeError):  # a UserError is a ValueError
            return None

    def _keep(self, corruption: str, stack: Pixels) -> None:
        assert self.cache is not None
        path = self.cache / f"{self.name(corruption)}.npy"
        about = {"made": self._made(corruption), "sha256": _sum(stack)}
        labels = self.labels.cpu().numpy().astype(np.uint8)
        try:
            atomic_write(self.cache / "labels.npy", _npy(np.tile(labels, len(SEVERITIES))))
            atomic_write(path, _npy(stack))
            atomic_write(path.with_suffix(".json"), json.dumps(about, indent=2) + "\n")
        except OSError as error:
            self.say(f"{self.name(corruption)} is not kept for the next time: {error.strerror or error}")


Source = Given | Generated


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
) -> Source:
    """Where corrupted versions of the first test images of a set come from.

    The files in `folder`, else those of CIFAR-10-C in the data root; else they are made, and kept for the next time if
    x is the `whole` test set of cifar10.
    """
    found = Path(folder).expanduser() if folder is not None else home(root) / OFFICIAL
    if folder is not None or (dataset == "cifar10" and found.is_dir()):
        _check_labels(found, y)
        say(f"corrupted images: those in {found}")
        return Given(found, tuple(x.shape))
    if x.dtype != torch.uint8:
        raise UserError(f"only uint8 images are corrupted, not {str(x.dtype).removeprefix('torch.')}")
    pictures = frost_pictures(frost)
    cache = home(root) / OWN if whole and dataset == "cifar10" else None
    kind = "with drawn frost" if pictures is None else "with photographs of frost"
    say(f"corrupted images: made here, {kind}" + (f", kept in {cache}" if cache else ""))
    return Generated(x, y, pictures, cache, say)


def check_names(source: Source, names: Sequence[str]) -> None:
    """Returns if the source has these corruptions; else raises UserError."""
    if isinstance(source, Generated):
        return
    if missing := [f"{name}.npy" for name in names if not (source.folder / f"{name}.npy").is_file()]:
        raise UserError(f"{source.folder} lacks {', '.join(missing)}")


def _check_labels(folder: Path, y: Tensor) -> None:
    """Returns if a folder's labels are those of the test images, once for each severity; else raises UserError."""
    path = folder / "labels.npy"
    labels = read_array(path)
    if labels.ndim != 1 or labels.dtype.kind not in "iu" or not len(labels) or len(labels) % len(SEVERITIES):
        raise UserError(f"{path} holds {labels.dtype} of shape {labels.shape}, not 50,000 labels")
    blocks = labels.reshape(len(SEVERITIES), -1)
    if blocks.shape[1] < len(y):
        raise UserError(f"{path} has {blocks.shape[1]} labels for each severity, the test images are {len(y)}")
    if (blocks[:, : len(y)] != y.cpu().numpy()).any():
        raise UserError(f"the labels in {path} are not those of the test images")


def read_array(path: Path) -> NDArray[Any]:
    """The array of a .npy file, mapped into memory; UserError where there is none."""
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise UserError(f"no file {path}") from None
    except Exception as error:  # numpy parses the file's head as Python: a flipped byte there fails in many ways
        said = " ".join(str(error).split())
        raise UserError(f"{path} is damaged, or not an array of numpy: {said}") from None


@functools.cache
def generator() -> str:
    """A hash of all that makes an image: our source, and the versions of what it uses."""
    files = [*sorted(Path(__file__).parent.glob("*.py")), Path(draws.__file__)]
    total = hashlib.sha256(repr([importlib.metadata.version(name) for name in WITH]).encode())
    for path in files:
        total.update(path.read_bytes())
    return total.hexdigest()


def _sum(array: NDArray[Any]) -> str:
    total = hashlib.sha256(repr((array.shape, str(array.dtype))).encode())
    total.update(np.ascontiguousarray(array).data)
    return total.hexdigest()


def _npy(array: NDArray[Any]) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getvalue()


def _tensor(images: Pixels) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2)))
