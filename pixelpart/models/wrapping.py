"""wrap: gives features and head to any network. `find_parts` looks for them; `wrapped` has the resulting model."""

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from inspect import ismethod
from typing import Any

import torch
from torch import Tensor, nn

from pixelpart.errors import UserError
from pixelpart.models.classifier import Classifier
from pixelpart.models.find_parts import by_names, by_tracing, is_map
from pixelpart.models.wrapped import (
    CallByName,
    Function,
    ModelPart,
    OutputOf,
    PlainFunction,
    PooledLinear,
    Wrapped,
    WrappedTransformer,
)
from pixelpart.view.borrow import borrowed
from pixelpart.view.trace import Untraceable


def wrap(
    module: nn.Module,
    *,
    features: str | Function | None = None,
    head: str | Function | None = None,
    example: Tensor | None = None,
) -> Classifier:
    """The module as a `Classifier`; an example checks that `head(features(x)) == module(x)`.

    Without features and head they are found: methods of these names, those of timm's networks, or, by torch.fx, the
    last activation before pooling and what follows it.
    features: the name of the submodule whose output is the last activation before pooling, the name of a method, or a
        function of the images.
    head: the name of a submodule or method that computes logits from that activation, or a function of it. A linear
        layer is applied after global average pooling.
    example: images for the check; default: two random images of 32x32 pixels, or of the module's `img_size`.
    """
    if not isinstance(module, nn.Module):
        raise UserError(f"wrap takes an nn.Module, not a {type(module).__name__}")
    example = _example(module) if example is None else example
    _logits_of(module, module, example)
    if features is None and head is None:
        wrapped = _find(module, example)
    elif features is None or head is None:
        raise UserError("wrap needs both features and head, or neither")
    else:
        wrapped = _checked(Wrapped(module, _features(module, features), _head(module, head)), example)
    wrapped.training = module.training  # not train(), which would also change submodules
    return wrapped


def wrap_if_possible(module: nn.Module, example: Tensor) -> Classifier:
    """The module as a `Classifier`; if features and head are not found, it trains and is attacked, without maps."""
    try:
        return wrap(module, example=example)
    except UserError as error:
        wrapped = Wrapped(module, features=_logits, head=_unchanged)
        wrapped.no_maps = str(error)
        return wrapped


def _logits(module: nn.Module, x: Tensor) -> Tensor:
    return module(x)


def _unchanged(module: nn.Module, logits: Tensor) -> Tensor:
    return logits


def _find(module: nn.Module, example: Tensor) -> Wrapped:
    """With the first parts that give the module's logits; UserError with the lines to write if there are none."""
    reason = ""
    for candidates in (_by_methods, _by_timm, by_tracing, by_names):
        try:
            for wrapped in candidates(module, example):
                with suppress(UserError):
                    return _checked(wrapped, example)
        except Untraceable as error:
            first, *_ = re.split(r"\. |\n", str(error).strip())  # the sentence that says what fails
            reason = f" ({first})"
    raise UserError(
        f"no features and head found in {type(module).__name__}{reason}; maps need them: write pixelpart.models."
        "wrap(net, features=f, head=g), where f(x) is the last activation before pooling and g(f(x)) equals net(x); "
        "in training, --mask.layer module.NAME reads them from any submodule"
    )


def _by_methods(module: nn.Module, example: Tensor) -> Iterator[Wrapped]:
    if callable(getattr(module, "features", None)) and callable(getattr(module, "head", None)):
        yield Wrapped(module, _features(module, "features"), _head(module, "head"))


def _by_timm(module: Any, example: Tensor) -> Iterator[Wrapped]:
    """A network with the methods of timm's: forward_features, forward_head and get_classifier."""
    methods = ("forward_features", "forward_head", "get_classifier")
    if not all(callable(getattr(module, name, None)) for name in methods):
        return
    blocks = getattr(module, "blocks", None)
    if blocks is not None and len(blocks) > 1 and hasattr(getattr(blocks[-1], "attn", None), "attn_drop"):
        yield WrappedTransformer(module)
        return
    with borrowed(module), torch.no_grad():
        if not is_map(module.forward_features(example), example):
            return
    names = [name for name, part in module.named_modules() if part is module.get_classifier()]
    if names and isinstance(module.get_classifier(), nn.Linear):
        yield Wrapped(module, CallByName("forward_features"), PooledLinear(names[0]))
    yield Wrapped(module, CallByName("forward_features"), CallByName("forward_head"))  # not only pooling before it


def _features(module: nn.Module, features: str | Function) -> ModelPart:
    if isinstance(features, str):
        return OutputOf(features) if _is_submodule(module, features, "features") else CallByName(features)
    return _by_name(module, features)


def _head(module: nn.Module, head: str | Function) -> ModelPart:
    part = CallByName(head) if isinstance(head, str) else _by_name(module, head)
    if not isinstance(part, CallByName) or not _is_submodule(module, part.name, "head"):
        return part
    return PooledLinear(part.name) if isinstance(module.get_submodule(part.name), nn.Linear) else part


def _by_name(module: nn.Module, function: Function) -> ModelPart:
    """The function by its name if it is a submodule or a method of one, else as it is."""
    for name, part in module.named_modules():
        if name and function is part:
            return CallByName(name)
        if ismethod(function) and function.__self__ is part:
            return CallByName(f"{name}.{function.__name__}".removeprefix("."))
    return PlainFunction(function, module)


def _is_submodule(module: nn.Module, name: str, what: str) -> bool:
    """True for the name of a submodule, False for that of a method; UserError for any other name."""
    if name and name in dict(module.named_modules()):
        return True
    owner, _, attribute = name.rpartition(".")
    if owner in dict(module.named_modules()) and callable(getattr(module.get_submodule(owner), attribute, None)):
        return False
    children = ", ".join(sorted(child for child, _ in module.named_children()))
    raise UserError(f"unknown {what} {name!r}; choose from {children}, their submodules, or a method")


def _checked(wrapped: Wrapped, example: Tensor) -> Wrapped:
    """The same; UserError if head(features(x)) differs from module(x), in eval or in train mode."""
    name = type(wrapped.module).__name__
    expected = _logits_of(wrapped.module, wrapped.module, example)
    logits = _logits_of(wrapped.module, lambda x: wrapped.head(wrapped.features(x)), example)
    if logits.shape != expected.shape:
        shapes = tuple(logits.shape), tuple(expected.shape)
        raise UserError(f"head(features(x)) has shape {shapes[0]} and {name}(x) {shapes[1]}; they must be equal")
    if (gap := _gap(logits, expected)) is not None:
        raise UserError(f"head(features(x)) differs from {name}(x) by {gap:.3g}; they must be equal")
    if (gap := _gap(*_in_train_mode(wrapped, example))) is not None:
        raise UserError(
            f"head(features(x)) differs from {name}(x) by {gap:.3g} in train mode: dropout or a norm between the two "
            "would be left out; pass wrap a head that includes it, such as the name of a method"
        )
    return wrapped


def _logits_of(module: nn.Module, function: Function, example: Tensor) -> Tensor:
    """What the module, or a function that uses it, gives for the example in eval mode."""
    name, whole = type(module).__name__, function is module
    with borrowed(module), torch.no_grad():
        try:
            logits = function(example)
        except Exception as error:  # of the module's own code
            if whole:
                raise UserError(
                    f"{name} fails on images of shape {tuple(example.shape)}; pass an example to wrap ({error})"
                ) from error
            raise UserError(f"head(features(x)) of {name} fails: {error}") from error
    if not isinstance(logits, Tensor):
        what = f"{name}(x)" if whole else "head(features(x))"
        raise UserError(f"{what} returns a {type(logits).__name__}, not logits")
    return logits


def _gap(logits: Tensor, expected: Tensor) -> float | None:
    """The largest difference, or None if it is within rounding."""
    gap, scale = (logits - expected).abs().max().item(), expected.abs().max().item()
    return None if gap <= 1e-4 * max(scale, 1e-3) else gap


def _in_train_mode(wrapped: Wrapped, example: Tensor) -> list[Tensor]:
    """head(features(x)) and module(x) in train mode, with equal random numbers; running statistics are unchanged.

    Two zeros if the module returns no logits in train mode (batch norm of one image, additional outputs).
    """
    found = []
    for run in (lambda x: wrapped.head(wrapped.features(x)), wrapped.module):
        with suppress(RuntimeError, ValueError), in_train_mode(wrapped):
            found.append(run(example))
    return found if [type(logits) for logits in found] == [Tensor] * 2 else [torch.zeros(1)] * 2


@contextmanager
def in_train_mode(module: nn.Module) -> Iterator[None]:
    """Train mode without gradients; modes, running statistics and torch's generators are restored."""
    buffers = [(buffer, buffer.clone()) for buffer in module.buffers()]
    devices = {buffer.device for buffer, _ in buffers if buffer.is_cuda}
    with borrowed(module), torch.no_grad(), torch.random.fork_rng(devices):
        for part in module.modules():
            part.training = True
        try:
            yield
        finally:
            for buffer, before in buffers:
                buffer.copy_(before)


def _example(module: nn.Module) -> Tensor:
    like = next(module.parameters(), torch.empty(0))
    size = getattr(getattr(module, "patch_embed", None), "img_size", None) or (32, 32)
    return torch.rand(2, 3, *size, generator=torch.Generator().manual_seed(0)).to(like.device, like.dtype)
