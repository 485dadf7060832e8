"""Reads pickles of byte arrays without running any code that they name."""

import io
import pickle
import pickletools
import reprlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pixelpart.errors import UserError

MOST_CONTAINERS = 100  # an official file has fewer than 20
CONTAINERS = ("TUPLE", "EMPTY_", "LIST", "DICT", "FROZENSET", "REDUCE", "NEWOBJ", "OBJ", "INST", "DUP")
SCALARS = ("INT", "LONG", "STRING", "UNICODE", "BYTES", "FLOAT", "NONE", "NEWTRUE", "NEWFALSE", "GLOBAL")


class _State:
    """Takes the place of numpy's array and dtype while a pickle is read: keeps their state, runs nothing."""

    state: Any = ()

    def __init__(self, *_: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        self.state = state


def _encode(text: str, encoding: str) -> bytes:
    if encoding not in ("latin1", "latin-1"):  # what Python 3 writes for bytes; others would import a codec
        raise pickle.UnpicklingError("encodes as something other than latin1")
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


def _check_structure(content: bytes) -> None:
    """ValueError if containers are many or used twice: hashing or printing them could take forever."""
    containers, memo, last = 0, dict[int, bool](), False  # memo: whether a stored value may be used again
    for code, argument, _ in pickletools.genops(content):
        if code.name == "MEMOIZE" or code.name.endswith("PUT"):
            memo[len(memo) if argument is None else argument] = last
            continue
        containers += code.name.startswith(CONTAINERS)
        last = any(kind in code.name for kind in SCALARS)
        if containers > MOST_CONTAINERS or (code.name.endswith("GET") and not memo.get(argument or 0)):
            raise ValueError("its structure is not that of a batch")


def read_batch(path: Path, *, images: int, pixels: int, labels: str = "labels") -> NDArray[np.uint8]:
    """Rows of one label and `pixels` bytes from a pickled dict of `data` and `labels`; UserError for anything else."""
    try:
        content = path.read_bytes()
        _check_structure(content)
        batch = _Unpickler(io.BytesIO(content), encoding="bytes").load()
        named = {key.decode() if isinstance(key, bytes) else key: value for key, value in batch.items()}
        _, shape, _, column_major, content = named["data"].state
        if tuple(shape) != (images, pixels) or column_major or not isinstance(content, bytes):
            raise ValueError(f"its data have shape {reprlib.repr(shape)}, not {(images, pixels)}")
        numbers = named[labels]
        if len(numbers) != images or not all(type(number) is int and 0 <= number <= 255 for number in numbers):
            raise ValueError(f"its {labels} are not {images} bytes")
        data = np.frombuffer(content, np.uint8).reshape(images, pixels)
        return np.concatenate([np.array(numbers, np.uint8)[:, None], data], axis=1)
    except Exception as error:  # a hostile pickle can raise anything
        raise UserError(
            f"{path} is not a pickled batch of {images} images: {' '.join(str(error).split())[:200]}"
        ) from None
