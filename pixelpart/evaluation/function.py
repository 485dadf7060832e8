"""`module:function`: a model that the user's own code makes."""

import contextlib
import inspect
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from pixelpart.errors import UserError
from pixelpart.runtime.usercode import failed, find_named, parse_name, working_folder_first

__all__ = ["make_model", "parse_name"]


def make_model(name: str, *, device: torch.device) -> nn.Module:
    """What the function returns, called with `device` if it takes that and without arguments if not."""
    with working_folder_first(), contextlib.redirect_stdout(sys.stderr):  # stdout is for results
        maker = find_named(name)
        if isinstance(maker, nn.Module):
            return maker
        if not callable(maker):
            raise UserError(f"{name} is a {type(maker).__name__}; name a function that returns an nn.Module")
        settings = _settings(name, maker, device)
        try:
            model = maker(**settings)
        except (Exception, SystemExit) as error:  # the user's own code: it may fail in any way
            raise failed(name, error) from error
    if not isinstance(model, nn.Module):
        raise UserError(f"{name} returned a {type(model).__name__}; it must return an nn.Module on [0,1] images")
    return model


def _settings(name: str, maker: Callable[..., Any], device: torch.device) -> dict[str, Any]:
    try:
        signature = inspect.signature(maker)
    except (TypeError, ValueError):  # a builtin that does not tell
        return {}
    settings = {"device": device} if "device" in signature.parameters else {}
    try:
        signature.bind(**settings)
    except TypeError as error:
        raise UserError(f"{name} is called without arguments, or with device alone: {error}") from None
    return settings
