"""Gives features and head to a user's own network."""

from collections.abc import Callable
from dataclasses import dataclass
from inspect import ismethod
from typing import Any

import torch
from torch import Tensor, nn

from pixelpart.errors import UserError
from pixelpart.frozen import frozen
from pixelpart.models.classifier import Classifier

Function = Callable[[Tensor], Tensor]


def wrap(
    module: nn.Module, *, features: str | Function, head: str | Function, example: Tensor | None = None
) -> Classifier:
    """The module as a `Classifier`; that `head(features(x)) == module(x)` is checked on an example in eval mode.

    features: the name of the submodule whose output is the last activation before pooling, the name of a method, or a
        function of the images.
    head: the name of a submodule or method that makes logits of that activation, or a function of it. A linear layer is
        taken to stand behind global average pooling.
    example: images for the check; two random ones of 32x32 pixels unless given.
    A function that is not a method or a submodule of the module is taken as it is: such a model cannot be copied.
    """
    wrapped = Wrapped(module, _features(module, features), _head(module, head))
    _check(wrapped, example)
    wrapped.training = module.training  # not train(), which would reach a submodule that is kept in eval mode
    return wrapped


class Wrapped(Classifier):
    def __init__(self, module: nn.Module, features: "Part", head: "Part") -> None:
        super().__init__()
        self.module, self.features_part, self.head_part = module, features, head

    @property
    def pooled_linear(self) -> nn.Linear | None:
        return _submodule(self.module, self.head_part.name) if isinstance(self.head_part, PooledLinear) else None

    def trunk(self, x: Tensor) -> Tensor:
        return self.features_part(self.module, x)

    def head(self, acts: Tensor) -> Tensor:
        return self.head_part(self.module, acts)


# The parts hold names, not modules, so that a copy of a wrapped model runs on its own weights.
@dataclass(frozen=True)
class Until:
    """Runs the module up to the output of one submodule."""

    name: str

    def __call__(self, module: nn.Module, x: Tensor) -> Tensor:
        def stop(_module: nn.Module, _inputs: Any, output: Tensor) -> None:
            raise _Reached(output)

        handle = _submodule(module, self.name).register_forward_hook(stop)
        try:
            module(x)
        except _Reached as reached:
            return reached.output
        finally:
            handle.remove()
        raise UserError(f"features {self.name!r} takes no part in the forward pass of {type(module).__name__}")


@dataclass(frozen=True)
class Call:
    """Calls a submodule or a method."""

    name: str

    def __call__(self, module: nn.Module, x: Tensor) -> Tensor:
        owner, _, attribute = self.name.rpartition(".")
        return getattr(_submodule(module, owner), attribute)(x)


@dataclass(frozen=True)
class PooledLinear:
    """Global average pooling and one linear layer."""

    name: str

    def __call__(self, module: nn.Module, acts: Tensor) -> Tensor:
        return _submodule(module, self.name)(acts.mean((2, 3)))


@dataclass(frozen=True)
class Plain:
    """A function that may hold on to the module it was made for."""

    function: Function

    def __call__(self, module: nn.Module, x: Tensor) -> Tensor:
        return self.function(x)

    def __deepcopy__(self, memo: Any) -> "Plain":
        name = getattr(self.function, "__name__", repr(self.function))
        raise UserError(
            f"a model wrapped with the function {name} cannot be copied, as the copy would run on the old weights; "
            "give wrap the name of a submodule or a method"
        )


Part = Until | Call | PooledLinear | Plain


class _Reached(Exception):
    def __init__(self, output: Tensor) -> None:
        self.output = output


def _submodule(module: nn.Module, name: str) -> Any:
    return module.get_submodule(name)


def _features(module: nn.Module, features: str | Function) -> Part:
    if isinstance(features, str):
        return Until(features) if _is_submodule(module, features, "features") else Call(features)
    return _called(module, features)


def _head(module: nn.Module, head: str | Function) -> Part:
    part = Call(head) if isinstance(head, str) else _called(module, head)
    if not isinstance(part, Call) or not _is_submodule(module, part.name, "head"):
        return part
    return PooledLinear(part.name) if isinstance(_submodule(module, part.name), nn.Linear) else part


def _called(module: nn.Module, function: Function) -> Part:
    for name, submodule in module.named_modules():
        if name and function is submodule:
            return Call(name)
        if ismethod(function) and function.__self__ is submodule:
            return Call(f"{name}.{function.__name__}".removeprefix("."))
    return Plain(function)


def _is_submodule(module: nn.Module, name: str, what: str) -> bool:
    """True for a submodule's name, False for a method's; anything else is a UserError."""
    if name and name in dict(module.named_modules()):
        return True
    owner, _, attribute = name.rpartition(".")
    if owner in dict(module.named_modules()) and callable(getattr(_submodule(module, owner), attribute, None)):
        return False
    children = ", ".join(sorted(child for child, _ in module.named_children()))
    raise UserError(f"unknown {what} {name!r}; choose from the modules {children}, one inside them, or a method's name")


def _check(wrapped: Wrapped, example: Tensor | None) -> None:
    name = type(wrapped.module).__name__
    if example is None:
        like = next(wrapped.parameters(), torch.empty(0))
        generator = torch.Generator().manual_seed(0)
        example = torch.rand(2, 3, 32, 32, generator=generator).to(like.device, like.dtype)
    with frozen(wrapped), torch.no_grad():
        try:
            expected = wrapped.module(example)
        except (RuntimeError, ValueError, AssertionError) as error:
            shape = tuple(example.shape)
            raise UserError(f"{name} takes no images of shape {shape}; give wrap an example ({error})") from error
        try:
            logits = wrapped(example)
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            raise UserError(f"head(features(x)) of {name} fails: {error}") from error
    if logits.shape != expected.shape:
        shapes = tuple(logits.shape), tuple(expected.shape)
        raise UserError(f"head(features(x)) has shape {shapes[0]} and {name}(x) {shapes[1]}; they must be equal")
    gap, scale = (logits - expected).abs().max().item(), expected.abs().max().item()
    if not gap <= 1e-4 * max(scale, 1e-3):
        raise UserError(f"head(features(x)) differs from {name}(x) by {gap:.3g}; they must be equal")
