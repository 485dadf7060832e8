"""A model made by user code: `module:function`, where function(num_classes) returns it."""

import copy
import inspect
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from typing import Any

import torch
from torch import nn

from pixelpart.errors import UserError
from pixelpart.models.classifier import Classifier
from pixelpart.models.find_parts import plain_tensors_to_buffers
from pixelpart.models.wrapping import in_train_mode, wrap_if_possible
from pixelpart.runtime import usercode
from pixelpart.view.borrow import borrowed


def check_function(name: str) -> None:
    """Imports the module of `module:function`; UserError if it has no such function. No model is made."""
    with torch.random.fork_rng(devices=[]):
        function = usercode.load_function(name)
    if isinstance(function, nn.Module):
        raise UserError(f"{name} is a {type(function).__name__}; name a function of the number of classes")


def make(name: str, num_classes: int, shape: tuple[int, int, int], generator: torch.Generator) -> Classifier:
    """The model that function(num_classes) returns, on the CPU and in train mode, checked on images of that shape.

    torch's global generator is seeded from `generator` while the function runs, and restored afterwards.
    """
    example = torch.rand(2, *shape, generator=torch.Generator().manual_seed(0))
    with torch.random.fork_rng(devices=[]), redirect_stdout(sys.stderr):
        torch.manual_seed(int(torch.randint(2**62, (), generator=generator)))
        args, kwargs = _arguments(usercode.load_function(name), num_classes)
        made = usercode.call(name, *args, **kwargs)
        if not isinstance(made, nn.Module):
            raise UserError(f"{name} returned a {type(made).__name__}; it must return an nn.Module on [0,1] images")
        made = _copied(name, made).cpu()  # it may be a network that the caller keeps
        _check_logits(f"{name}({num_classes})", made, example, num_classes)
        plain_tensors_to_buffers(made)
        _copied(name, made)  # the average of its weights will be a copy
        return (made if isinstance(made, Classifier) else wrap_if_possible(made, example)).train()


def _copied(name: str, made: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(made)
    except Exception as error:  # TorchScript, a lock, a tensor with gradient history
        raise usercode.failure(f"copying the network of {name}", error) from error


def _arguments(function: Callable[..., Any], num_classes: int) -> tuple[tuple[int, ...], dict[str, int]]:
    """The number of classes: by keyword if the function has `num_classes` or, as torchvision's, takes any keyword.

    Else as the first argument; none for a function without parameters, such as a ResNet18() for ten classes.
    """
    parameters = inspect.signature(function).parameters
    kinds = {parameter.kind for parameter in parameters.values()}
    required = [p for p in parameters.values() if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
    if "num_classes" in parameters or (inspect.Parameter.VAR_KEYWORD in kinds and not required):
        return (), {"num_classes": num_classes}
    return ((num_classes,) if parameters else ()), {}


def _check_logits(what: str, made: nn.Module, example: torch.Tensor, num_classes: int) -> None:
    if not any(parameter.requires_grad for parameter in made.parameters()):
        raise UserError(f"{what} has no parameters to train")
    for mode, note in ((borrowed, ""), (in_train_mode, " in train mode")):
        try:
            with mode(made), torch.no_grad():
                logits = made(example)
        except Exception as error:
            c, h, w = example.shape[1:]
            grey = " in grey (--channels 3 gives it three equal channels)" if c == 1 else ""
            raise usercode.failure(f"{what} on images of {h}x{w}{grey}{note}", error) from error
        if not isinstance(logits, torch.Tensor):
            raise UserError(f"{what} returns a {type(logits).__name__}{note}; it must return the logits only")
        if logits.shape != (2, num_classes):
            shape = tuple(logits.shape)
            raise UserError(f"{what} gives logits {shape} for 2 images{note}; they must be (2, {num_classes})")
