"""Fills a network with weights that were saved elsewhere, by their names."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors.torch import load_file
from torch import Tensor

from pixelpart.errors import UserError
from pixelpart.models.classifier import Classifier

C = TypeVar("C", bound=Classifier)
State = dict[str, Tensor]

INSIDE = ("state_dict", "model_state_dict", "model", "net")  # under which a file may keep its weights
WRAPPERS = ("module.", "_orig_mod.", "model.")  # what DataParallel, torch.compile and others put before every name
SCALINGS = (("mu", "sigma"), ("mean", "std"), ("normalize.mean", "normalize.std"))  # pixel scaling kept as weights


@torch.no_grad()
def load_state(model: C, source: Mapping[str, Any] | Path | str) -> C:
    """The model, filled with a state dict of the same architecture: as TRADES and RobustBench save them.

    source: the state dict, or a file: .safetensors, or what torch.save wrote, of which tensors alone are read and no
        code is run. Names may stand behind `module.`; scaling of the pixels kept beside the weights becomes the
        model's own.
    A name or shape that does not fit is a UserError, and the model is then as before.
    """
    named = "the state dict"
    if not isinstance(source, Mapping):
        named, source = str(source), read_tensors(Path(source))
    own = model.state_dict()
    given, scaling = min(
        (_without_scaling(_renamed(names, model), own) for names in _unwrapped(_inside(source, named))),
        key=lambda found: len(found[0].keys() ^ own.keys()),
    )
    _check(own, given, f"{named} does not fit {type(model).__name__}")
    for name, tensor in given.items():
        own[name].copy_(tensor)
    if scaling is not None:
        place = model.mean.device
        model.set_scaling(*(tensor.flatten().tolist() for tensor in scaling))
        model.mean, model.std = model.mean.to(place), model.std.to(place)
    return model


def read_tensors(path: Path) -> Mapping[str, Any]:
    """What a file of weights holds; no code in it is run."""
    if not path.is_file():
        raise UserError(f"there is no file {path}")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file can raise anything
        reason = str(error).partition(".")[0].partition("\n")[0] or type(error).__name__  # torch goes on with advice
        raise UserError(
            f"{path} cannot be read as tensors alone ({reason}); if you trust it, load it yourself and give the "
            "state dict"
        ) from None
    if not isinstance(found, Mapping):
        raise UserError(f"{path} holds a {type(found).__name__}, not a state dict")
    return found


def _inside(found: Mapping[str, Any], named: str) -> State:
    """The state dict in what a training script saved."""
    for name in INSIDE:
        if isinstance(found.get(name), Mapping):
            return _inside(found[name], named)
    odd = [str(name) for name, value in found.items() if not isinstance(value, Tensor)]
    if odd or not found:
        what = f"{_few(odd)} is no tensor" if odd else "it is empty"
        raise UserError(f"{named} is no state dict: {what}; weights may lie under {', '.join(INSIDE)}")
    return dict(found)


def _unwrapped(state: State) -> list[State]:
    """The state dict as it is, and without what wrappers have put before its names."""
    ways = [state]
    while True:
        last = ways[-1]
        prefix = next((prefix for prefix in WRAPPERS if any(name.startswith(prefix) for name in last)), None)
        if prefix is None:
            return ways
        ways.append({name.removeprefix(prefix): tensor for name, tensor in last.items()})


def _renamed(state: State, model: Classifier) -> State:
    made: State = {}
    for name, tensor in state.items():
        theirs = next((start for start in model.other_names if name.startswith(start)), "")
        ours = model.other_names.get(theirs, "")
        if ours is not None:
            made[ours + name.removeprefix(theirs)] = tensor
    return made


def _without_scaling(state: State, own: State) -> tuple[State, tuple[Tensor, Tensor] | None]:
    for mean, std in SCALINGS:
        if mean in state and std in state and mean not in own:
            return {name: tensor for name, tensor in state.items() if name not in (mean, std)}, (
                state[mean],
                state[std],
            )
    return state, None


def _check(own: State, given: State, what: str) -> None:
    counters = {name for name in own if name.endswith("num_batches_tracked")}  # older files have none
    faults = []
    if missing := [name for name in own if name not in given and name not in counters]:
        faults.append(f"missing {_few(missing)}")
    if extra := [name for name in given if name not in own]:
        faults.append(f"not known here {_few(extra)}")
    if other := [name for name in given if name in own and given[name].shape != own[name].shape]:
        shapes = [f"{name} {tuple(given[name].shape)} there and {tuple(own[name].shape)} here" for name in other]
        faults.append(f"of another shape {_few(shapes)}")
    if faults:
        raise UserError(f"{what}: {'; '.join(faults)}")


def _few(names: list[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
