"""Checkpoints: tensors and facts in one safetensors file. torch is imported late."""

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pixelpart.errors import UserError
from pixelpart.files import atomic_write
from pixelpart.runs.records import CheckpointFacts, read_record

if TYPE_CHECKING:
    from torch import Tensor

Facts = dict[str, Any]  # what a checkpoint says of itself: config, epoch, position, ...


def save_checkpoint(path: Path, tensors: "Mapping[str, Tensor]", facts: Facts) -> None:
    """Writes tensors, facts and a checksum of both as one safetensors file; equal input gives equal bytes."""
    from safetensors.torch import save

    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    text = json.dumps(facts | {"sum": _checksum(plain, facts)}, sort_keys=True)
    atomic_write(path, save(plain, metadata={"pixelpart": text}))  # one key: safetensors does not order several


def load_checkpoint(path: Path) -> "tuple[dict[str, Tensor], Facts]":
    """Tensors and facts of a checkpoint; UserError if the file is missing, truncated, corrupt or of another kind."""
    from safetensors.torch import load_file

    facts = _read_metadata(path)
    with _readable(path):
        tensors = load_file(path)
        matches = facts.pop("sum") == _checksum(tensors, facts)
    if not matches:
        raise UserError(f"{path}: checksum mismatch: the file is corrupt")
    return tensors, facts


def read_facts(path: Path) -> Facts:
    """The facts of a checkpoint; its tensors are not read."""
    return {name: value for name, value in _read_metadata(path).items() if name != "sum"}


def _read_metadata(path: Path) -> Facts:
    from safetensors import safe_open

    with _readable(path), safe_open(path, "np") as file:  # "pt" would import torch
        return read_record(CheckpointFacts, (file.metadata() or {})["pixelpart"])


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Errors of reading the file become UserErrors."""
    from safetensors import SafetensorError

    try:
        if path.exists() and not path.is_file():
            raise OSError("not a regular file")
        yield
    except FileNotFoundError:
        raise UserError(f"no checkpoint at {path}") from None
    except (SafetensorError, KeyError, ValueError, TypeError, OSError, RuntimeError) as error:
        raise UserError(f"{path} is truncated or not a pixelpart checkpoint ({error})") from None


def _checksum(tensors: "Mapping[str, Tensor]", facts: Facts) -> str:
    import torch

    digest = hashlib.blake2b(json.dumps(facts, sort_keys=True).encode(), digest_size=16)
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def fill(state: "Mapping[str, Tensor]", tensors: "Mapping[str, Tensor]", *, source: Path) -> None:
    """Copies a checkpoint's tensors into those of `state`, in place; UserError if names, shapes or dtypes differ."""
    import torch

    misfits = sorted(state.keys() ^ tensors.keys()) or [
        name
        for name, tensor in state.items()
        if (tensor.shape, tensor.dtype) != (tensors[name].shape, tensors[name].dtype)
    ]
    if misfits:
        raise UserError(
            f"{source} belongs to another model: {len(misfits)} tensors do not fit, the first is {misfits[0]}"
        )
    with torch.no_grad():
        for name, tensor in state.items():
            tensor.copy_(tensors[name])
