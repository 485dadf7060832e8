"""A model made by user code: `module:function`, where function(num_classes) returns it."""

from typing import Any

import torch
from torch import nn

from pixelpart.errors import UserError
from pixelpart.models.classifier import Classifier
from pixelpart.models.wrapping import wrap
from pixelpart.runtime import usercode
from pixelpart.view.borrow import borrowed


def check_function(name: str) -> None:
    """Imports the module of `module:function`; UserError if it has no such function. No model is made."""
    with torch.random.fork_rng(devices=[]):
        function = usercode.load_function(name)
    if isinstance(function, nn.Module):
        raise UserError(f"{name} is a {type(function).__name__}; name a function of the number of classes")


def make(name: str, num_classes: int, size: int, generator: torch.Generator) -> Classifier:
    """The model that function(num_classes) returns, on the CPU and in train mode, checked on images of that size.

    torch's global generator is seeded from `generator` while the function runs, and restored afterwards.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(torch.randint(2**62, (), generator=generator)))
        made = usercode.call(name, num_classes)
    example = torch.rand(2, 3, size, size, generator=torch.Generator().manual_seed(0))
    model = _as_classifier(name, made, example)
    with borrowed(model), torch.no_grad():
        try:
            shape = tuple(model(example).shape)
        except Exception as error:
            raise usercode.failure(f"{name}({num_classes}) on images of {size}x{size}", error) from error
    if shape != (2, num_classes):
        raise UserError(f"{name}({num_classes}) gives logits {shape} for 2 images; they must be (2, {num_classes})")
    return model.train()


def _as_classifier(name: str, made: Any, example: torch.Tensor) -> Classifier:
    if not isinstance(made, nn.Module):
        raise UserError(f"{name} returned a {type(made).__name__}; it must return an nn.Module on [0,1] images")
    made = made.cpu()
    if isinstance(made, Classifier):
        return made
    if hasattr(made, "features") and hasattr(made, "head"):
        return wrap(made, features="features", head="head", example=example)
    raise UserError(
        f"{name} returned a {type(made).__name__} without features and head; return it wrapped: "
        "pixelpart.models.wrap(module, features=..., head=...)"
    )
