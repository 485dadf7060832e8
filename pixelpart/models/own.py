"""A network that the user's own code makes: `module:function`, where function(num_classes) returns it."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from pixelpart.errors import UserError
from pixelpart.models.classifier import Classifier
from pixelpart.models.wrapping import wrap
from pixelpart.runtime.usercode import failed, find_named, working_folder_first
from pixelpart.view.borrow import borrowed

Maker = Callable[[int], Any]


def maker(name: str) -> Maker:
    """The function of that name; its module is imported, and nothing is made yet."""
    with _users_code():
        found = find_named(name)
    if not callable(found) or isinstance(found, nn.Module):
        raise UserError(f"{name} is a {type(found).__name__}; name a function of the number of classes")
    return found


def network(name: str, make: Maker, num_classes: int, size: int, generator: torch.Generator) -> Classifier:
    """What the function returns, on the CPU, checked on images of that size.

    Weights that it draws from torch's global generator follow from ours, and that one is as before.
    """
    seed = int(torch.randint(2**62, (), generator=generator))
    with _users_code():
        torch.manual_seed(seed)
        try:
            made = make(num_classes)
        except (Exception, SystemExit) as error:  # the user's own code: it may fail in any way
            raise failed(f"{name}({num_classes})", error) from error
    example = torch.rand(2, 3, size, size, generator=torch.Generator().manual_seed(0))
    model = _split(name, made, example)
    with borrowed(model), torch.no_grad():
        try:
            shape = tuple(model(example).shape)
        except Exception as error:
            raise failed(f"{name}({num_classes}) on images of {size}x{size}", error) from error
    if shape != (2, num_classes):
        raise UserError(f"{name}({num_classes}) gives logits {shape} for 2 images; they must be (2, {num_classes})")
    return model.train()


@contextlib.contextmanager
def _users_code() -> Iterator[None]:
    """Its modules are found, what it prints does not mix with results, and torch's generator is as before."""
    with working_folder_first(), contextlib.redirect_stdout(sys.stderr), torch.random.fork_rng(devices=[]):
        yield


def _split(name: str, made: Any, example: torch.Tensor) -> Classifier:
    """The network with features and head."""
    if not isinstance(made, nn.Module):
        raise UserError(f"{name} returned a {type(made).__name__}; it must return an nn.Module on [0,1] images")
    made = made.cpu()
    if isinstance(made, Classifier):
        return made
    if hasattr(made, "features") and hasattr(made, "head"):
        return wrap(made, features="features", head="head", example=example)
    raise UserError(f"{name} returned a {type(made).__name__} without features and head; return it wrapped: "
                    "pixelpart.models.wrap(module, features=..., head=...)")  # fmt: skip
