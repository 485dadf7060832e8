"""CIFAR's files: a label and 3,072 pixels per image, in binary rows or in a pickle, of which no code is run.

The pixels are red, green and blue planes of 32x32.
"""

import io
import pickle
import reprlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pixelpart.errors import UserError

PIXELS = 3 * 32 * 32
Rows = NDArray[np.uint8]  # (n, 1 + PIXELS)


def read_rows(path: Path, n: int, *, labels: str = "labels") -> Rows:
    """Label and pixels of n images from a .bin file, or from a pickled dict of `data` and `labels`.

    Bytes before the label of a binary row, such as CIFAR-100's coarse label, are left out.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    if path.suffix == ".bin":
        return np.frombuffer(content, np.uint8).reshape(n, -1)[:, -1 - PIXELS :]
    try:
        return _unpickled(content, n, labels)
    except Exception as error:  # a hostile pickle can raise anything
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"{path} is not a pickled batch of {n} images: {reason}") from None


def as_tensors(rows: Rows) -> tuple[Tensor, Tensor]:
    """uint8 images (n, 3, 32, 32) and int64 labels (n,)."""
    images = np.ascontiguousarray(rows[:, 1:]).reshape(-1, 3, 32, 32)
    return torch.from_numpy(images), torch.from_numpy(rows[:, 0].astype(np.int64))


def _unpickled(content: bytes, n: int, labels: str) -> Rows:
    batch = _Unpickler(io.BytesIO(content), encoding="bytes").load()
    named = {key.decode() if isinstance(key, bytes) else key: value for key, value in batch.items()}
    _, shape, _, column_major, pixels = named["data"].state
    if tuple(shape) != (n, PIXELS) or column_major or not isinstance(pixels, bytes):
        raise ValueError(f"its data have shape {reprlib.repr(shape)}, not {(n, PIXELS)}")
    numbers = named[labels]
    if len(numbers) != n or not all(type(number) is int and 0 <= number <= 255 for number in numbers):
        raise ValueError(f"its {labels} are not {n} bytes")
    data = np.frombuffer(pixels, np.uint8).reshape(n, PIXELS)
    return np.concatenate([np.array(numbers, np.uint8)[:, None], data], axis=1)


class _Unpickler(pickle.Unpickler):
    """Reads dicts, lists, strings and byte arrays; every other name in a pickle is refused."""

    def find_class(self, module: str, name: str) -> Any:
        match module, name:
            case ("numpy.core.multiarray" | "numpy._core.multiarray", "_reconstruct") | ("numpy", "ndarray" | "dtype"):
                return _State
            case "_codecs", "encode":  # how Python 3 writes bytes
                return lambda text, encoding: text.encode("latin1")
        raise pickle.UnpicklingError(f"it names {module}.{name}")


class _State:
    """Takes the place of numpy's array and dtype while a pickle is read: keeps their state, runs nothing."""

    state: Any = ()

    def __init__(self, *_: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        self.state = state
