"""A model made by user code: `module:function`."""

import inspect
from typing import Any

import torch
from torch import nn

from pixelpart.errors import UserError
from pixelpart.runtime import usercode


def make_model(name: str, *, device: torch.device) -> nn.Module:
    """The nn.Module that the function returns; it is called with `device` if it has such a parameter, else without."""
    maker = usercode.load_function(name)
    if isinstance(maker, nn.Module):
        return maker
    model = usercode.call(name, **_arguments(name, maker, device))
    if not isinstance(model, nn.Module):
        raise UserError(f"{name} returned a {type(model).__name__}; it must return an nn.Module on [0,1] images")
    return model


def _arguments(name: str, maker: Any, device: torch.device) -> dict[str, Any]:
    try:
        signature = inspect.signature(maker)
    except (TypeError, ValueError):  # some builtins have no signature
        return {}
    arguments = {"device": device} if "device" in signature.parameters else {}
    try:
        signature.bind(**arguments)
    except TypeError as error:
        raise UserError(f"{name} is called without arguments, or with device only: {error}") from None
    return arguments
