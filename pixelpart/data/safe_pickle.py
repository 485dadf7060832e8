"""Reads pickles of byte arrays without running any code that they name."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pixelpart.errors import UserError


class _State:
    """Takes the place of numpy's array and dtype while a pickle is read: keeps their state, runs nothing."""

    state: Any = ()

    def __init__(self, *_: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        self.state = state


def _encode(text: str, encoding: str) -> bytes:
    if encoding not in ("latin1", "latin-1"):  # what Python 3 writes for bytes; others would import a codec
        raise pickle.UnpicklingError(f"encodes as {encoding!r}")
    return text.encode("latin1")


class _Unpickler(pickle.Unpickler):
    """Reads dicts, lists, strings and byte arrays; every other name in a pickle is refused."""

    def find_class(self, module: str, name: str) -> Any:
        match module, name:
            case ("numpy.core.multiarray" | "numpy._core.multiarray", "_reconstruct") | ("numpy", "ndarray" | "dtype"):
                return type(name, (_State,), {})  # a new class each time: a pickle can write to it
            case "_codecs", "encode":
                return lambda text, encoding: _encode(text, encoding)
        raise pickle.UnpicklingError(f"it names {module}.{name}")


def read_batch(path: Path, *, images: int, pixels: int, labels: str = "labels") -> NDArray[np.uint8]:
    """Rows of one label and `pixels` bytes from a pickled dict of `data` and `labels`; UserError for anything else."""
    try:
        with path.open("rb") as file:
            batch = _Unpickler(file, encoding="bytes").load()
        named = {key.decode() if isinstance(key, bytes) else key: value for key, value in batch.items()}
        _, shape, _, column_major, content = named["data"].state
        if tuple(shape) != (images, pixels) or column_major or not isinstance(content, bytes):
            raise ValueError(f"its data have shape {shape}, not {(images, pixels)}")
        numbers = np.array(named[labels])
        if numbers.shape != (images,) or numbers.min() < 0 or numbers.max() > 255:
            raise ValueError(f"its {labels} are not {images} bytes")
        data = np.frombuffer(content, np.uint8).reshape(images, pixels)
        return np.concatenate([numbers[:, None].astype(np.uint8), data], axis=1)
    except Exception as error:  # a hostile pickle can raise anything
        raise UserError(f"{path} is not a pickled batch of {images} images: {error}") from None
