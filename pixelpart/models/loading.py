"""Loads state dicts that other code has saved."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from pixelpart.errors import UserError
from pixelpart.models.classifier import Classifier

M = TypeVar("M", bound=nn.Module)
State = dict[str, Tensor]

WEIGHT_KEYS = ("state_dict", "model_state_dict", "model", "net")  # keys of the weights in training scripts' files
PREFIXES = ("module.", "_orig_mod.", "model.")  # added to all names by DataParallel, torch.compile and others
SCALINGS = (("mu", "sigma"), ("mean", "std"), ("normalize.mean", "normalize.std"))  # pixel scaling in state dicts


@torch.no_grad()
def load_state(model: M, source: Mapping[str, Any] | Path | str) -> M:
    """The model with the weights of a state dict of the same architecture, as saved by TRADES and RobustBench.

    source: the state dict, or a file of safetensors or torch.save. Only tensors are read, no code is run. Prefixes such
        as `module.` are removed; pixel scaling that is saved with the weights is set in the model. Of a run's
        checkpoint the weights that are evaluated are taken: the averaged ones, if the run averages.
    UserError for a name or shape that does not fit; the model is then unchanged.
    """
    named = "the state dict"
    if not isinstance(source, Mapping):
        named, source = str(source), read_tensors(Path(source))
        if (settings := _settings_of_checkpoint(Path(named))) is not None:
            if settings["normalize"] and not getattr(model, "scaled", False):
                raise UserError(
                    f"{named} was trained with --normalize: build the model with the data set's mean and std"
                )
            prefix = "average." if settings["ema"] else "model."
            source = {name: tensor for name, tensor in source.items() if name.startswith(prefix)}
            source = {name.removeprefix(prefix): tensor for name, tensor in source.items()}
    own, others = model.state_dict(), model.other_names if isinstance(model, Classifier) else {}
    given, scaling = min(
        (_without_scaling(_rename(names, others), own) for names in _without_prefixes(_find_weights(source, named))),
        key=lambda found: len(found[0].keys() ^ own.keys()),
    )
    _check_names_and_shapes(own, given, f"{named} does not fit {type(model).__name__}")
    if scaling is not None and not isinstance(model, Classifier):
        raise UserError(f"{named} contains mean and std of pixels, and {type(model).__name__} has no normalisation")
    for name, tensor in given.items():
        own[name].copy_(tensor)
    if scaling is not None and isinstance(model, Classifier):
        device = model.mean.device
        model.set_scaling(*(tensor.flatten().tolist() for tensor in scaling))
        model.mean, model.std = model.mean.to(device), model.std.to(device)
    return model


def read_tensors(path: Path) -> Mapping[str, Any]:
    """The content of a file of weights; no code in it is run."""
    if not path.is_file():
        raise UserError(f"no file {path}")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a corrupt file can raise anything
        reason = str(error).partition(".")[0].partition("\n")[0] or type(error).__name__  # torch adds advice
        raise UserError(
            f"{path} cannot be read as tensors only ({reason}); if you trust it, load it yourself and pass the "
            "state dict"
        ) from None
    if not isinstance(content, Mapping):
        raise UserError(f"{path} has a {type(content).__name__}, not a state dict")
    return content


def _settings_of_checkpoint(path: Path) -> dict[str, Any] | None:
    """The config in the file, which is safe to read, if a run has written it; else None."""
    if path.suffix != ".safetensors":
        return None
    with safe_open(path, "pt") as file:
        facts = (file.metadata() or {}).get("pixelpart")
    return json.loads(facts)["settings"] if facts else None


def _find_weights(content: Mapping[str, Any], named: str) -> State:
    """The state dict in the file of a training script."""
    for name in WEIGHT_KEYS:
        if isinstance(content.get(name), Mapping):
            return _find_weights(content[name], named)
    odd = [str(name) for name, value in content.items() if not isinstance(value, Tensor)]
    if odd or not content:
        reason = f"{_few(odd)} is not a tensor" if odd else "it is empty"
        raise UserError(f"{named} is not a state dict: {reason}; weights may be under {', '.join(WEIGHT_KEYS)}")
    return dict(content)


def _without_prefixes(state: State) -> list[State]:
    """The state dict as it is, and with one prefix after the other removed."""
    ways = [state]
    while True:
        last = ways[-1]
        prefix = next((prefix for prefix in PREFIXES if any(name.startswith(prefix) for name in last)), None)
        if prefix is None:
            return ways
        ways.append({name.removeprefix(prefix): tensor for name, tensor in last.items()})


def _rename(state: State, others: Mapping[str, str | None]) -> State:
    renamed: State = {}
    for name, tensor in state.items():
        theirs = next((start for start in others if name.startswith(start)), "")
        ours = others.get(theirs, "")
        if ours is not None:
            renamed[ours + name.removeprefix(theirs)] = tensor
    return renamed


def _without_scaling(state: State, own: State) -> tuple[State, tuple[Tensor, Tensor] | None]:
    for mean, std in SCALINGS:
        if mean in state and std in state and mean not in own:
            weights = {name: tensor for name, tensor in state.items() if name not in (mean, std)}
            return weights, (state[mean], state[std])
    return state, None


def _check_names_and_shapes(own: State, given: State, what: str) -> None:
    counters = {name for name in own if name.endswith("num_batches_tracked")}  # not in older files
    faults = []
    if missing := [name for name in own if name not in given and name not in counters]:
        faults.append(f"missing {_few(missing)}")
    if extra := [name for name in given if name not in own]:
        faults.append(f"unexpected {_few(extra)}")
    if other := [name for name in given if name in own and given[name].shape != own[name].shape]:
        shapes = [f"{name} {tuple(given[name].shape)} instead of {tuple(own[name].shape)}" for name in other]
        faults.append(f"wrong shape of {_few(shapes)}")
    if faults:
        raise UserError(f"{what}: {'; '.join(faults)}")


def _few(names: list[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
