"""What is evaluated, and on what: a run, a run folder or a module, with its test images, made ready on one device."""

import copy
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pixelpart import data as sets
from pixelpart.device import choose_device
from pixelpart.errors import UserError
from pixelpart.evaluation.accuracy import Pictures
from pixelpart.run import Run

Data = str | tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Subject:
    """A model, the pictures it is tried on, how an entry names the two, and the folder that keeps the results."""

    model: nn.Module
    pictures: Pictures
    tags: dict[str, Any]
    folder: Path | None


def resolve(
    subject: Any,
    *,
    checkpoint: str = "best",
    data: Data | None = None,
    images: int | None = None,
    device: torch.device | str | None = None,
    root: str | Path | None = None,
    out: str | Path | None = None,
) -> Subject:
    """What `evaluate` was given, as a Subject; a caller's own model is left where it is."""
    folder = Path(out) if out is not None else None
    if isinstance(subject, Run | str | Path):
        run = subject if isinstance(subject, Run) else Run(Path(subject))
        data = run.config.dataset if data is None else data
        loaded, facts = run.load(checkpoint)
        model: nn.Module = loaded
        tags = {"checkpoint": checkpoint, "epoch": facts.get("epoch"), "weights": facts["weights"]}
        place = choose_device(device)
        folder = folder or run.dir
    elif isinstance(subject, nn.Module):
        if data is None:
            raise UserError('a module brings no test images; give data=(images, labels) or data="shapes"')
        tensors = list(chain(subject.parameters(), subject.buffers()))
        model, tags = subject, {"checkpoint": None, "epoch": None, "weights": "raw"}
        place = tensors[0].device if device is None and tensors else choose_device(device)
        _check_dtype(subject)
    else:
        raise UserError(f"cannot evaluate a {type(subject).__name__}; give a Run, a run folder's path or an nn.Module")
    x, y, named = _test_images(data, images=images, root=root)
    if any(tensor.device != place for tensor in chain(model.parameters(), model.buffers())):
        model = copy.deepcopy(model).to(place)
    return Subject(model, Pictures(x, y, place), tags | named, folder)


def _test_images(data: Data, *, images: int | None, root: str | Path | None) -> tuple[Tensor, Tensor, dict[str, Any]]:
    if isinstance(data, str):
        x, y = sets.load(data, split="test", root=root)
        named = {"dataset": data, "split": "test"}
    else:
        x, y = _pair(data)
        named = {"dataset": "given", "split": "given"}
    sets.check_pixels(x)  # labels are checked once the model has said how many classes it has
    if images is not None and images > len(x):
        raise UserError(f"images {images} is more than the {len(x)} there are")
    if y.ndim != 1 or len(y) != len(x):
        raise UserError(f"labels have shape {tuple(y.shape)}; {len(x)} images need ({len(x)},)")
    return x[:images], y[:images], named


def _pair(data: Any) -> tuple[Tensor, Tensor]:
    try:
        x, y = data
        return torch.as_tensor(x), torch.as_tensor(y)
    except (TypeError, ValueError, RuntimeError):
        raise UserError(f"data is a {type(data).__name__}; give the name of a set or a pair (images, labels)") from None


def _check_dtype(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        if parameter.is_floating_point() and parameter.dtype != torch.float32:
            kind = str(parameter.dtype).removeprefix("torch.")
            raise UserError(f"the model's weights are {kind} ({name}); fp32 decides: use model.float()")
