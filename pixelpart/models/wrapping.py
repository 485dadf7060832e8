"""Gives features and head to a user's own network."""

from inspect import ismethod
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from pixelpart.errors import UserError
from pixelpart.models.classifier import Classifier
from pixelpart.models.parts import Call, Function, LastBlock, Part, Plain, PooledLinear, Until, submodule
from pixelpart.view.borrow import borrowed


def wrap(
    module: nn.Module,
    *,
    features: str | Function | None = None,
    head: str | Function | None = None,
    example: Tensor | None = None,
) -> Classifier:
    """The module as a `Classifier`; that `head(features(x)) == module(x)` is checked on an example.

    features: the name of the submodule whose output is the last activation before pooling, the name of a method, or a
        function of the images.
    head: the name of a submodule or method that makes logits of that activation, or a function of it. A linear layer is
        taken to stand behind global average pooling.
    example: images for the check; unless given two random ones, of 32x32 pixels or of the size that the module tells.
    A function that is not a method or a submodule of the module is taken as it is: such a model cannot be copied.
    A network of timm needs neither: `wrap(timm.create_model(...))`.
    """
    if features is None and head is None:
        wrapped = _wrap_timm(module, example)
    elif features is None or head is None:
        raise UserError("give wrap both features and head, or for a network of timm neither")
    else:
        wrapped = Wrapped(module, _features(module, features), _head(module, head))
        _check(wrapped, example)
    wrapped.training = module.training  # not train(), which would reach a submodule that is kept in eval mode
    return wrapped


class Wrapped(Classifier):
    def __init__(self, module: nn.Module, features: Part, head: Part) -> None:
        super().__init__()
        self.module, self.features_part, self.head_part = module, features, head

    @property
    def pooled_linear(self) -> nn.Linear | None:
        return submodule(self.module, self.head_part.name) if isinstance(self.head_part, PooledLinear) else None

    def trunk(self, x: Tensor) -> Tensor:
        return self.features_part(self.module, x)

    def head(self, acts: Tensor) -> Tensor:
        return self.head_part(self.module, acts)


class WrappedTransformer(Wrapped):
    """A vision transformer of timm: features are the tokens (b, t, f) that go into the last block."""

    def __init__(self, module: Any) -> None:
        super().__init__(module, Until(f"blocks.{len(module.blocks) - 2}"), LastBlock())
        self.class_token = module.global_pool == "token"

    def attentions(self, x: Tensor) -> tuple[list[Tensor], Tensor]:
        """The weights of each block's attention, (b, heads, t, t), first block first, and the logits."""
        found: list[Tensor] = []
        layers = [block.attn for block in self.module.blocks]  # type: ignore[union-attr]
        fused = [layer for layer in layers if getattr(layer, "fused_attn", False)]

        def note(_module: nn.Module, _inputs: Any, output: Tensor) -> None:
            found.append(output)

        handles = [layer.attn_drop.register_forward_hook(note) for layer in layers]
        try:
            for layer in fused:
                layer.fused_attn = False  # fused, the weights are never made
            logits = self.module(self.normalised(x))
        finally:
            for layer in fused:
                layer.fused_attn = True
            for handle in handles:
                handle.remove()
        if len(found) != len(layers):
            raise UserError(f"the attention of {type(self.module).__name__} cannot be read")
        return found, logits


def _wrap_timm(module: Any, example: Tensor | None) -> Wrapped:
    """A network with the methods that all of timm's have: forward_features, forward_head and get_classifier."""
    wanted = ("forward_features", "forward_head", "get_classifier")
    if not all(callable(getattr(module, name, None)) for name in wanted):
        raise UserError(f"{type(module).__name__} is no network of timm; give wrap its features and head")
    blocks = getattr(module, "blocks", None)
    if blocks is not None and len(blocks) > 1 and hasattr(getattr(blocks[-1], "attn", None), "attn_drop"):
        wrapped: Wrapped = WrappedTransformer(module)
        _check(wrapped, example)
        return wrapped
    features = Call("forward_features")
    names = [name for name, part in module.named_modules() if part is module.get_classifier()]
    pooled = isinstance(module.get_classifier(), nn.Linear) and names
    wrapped = Wrapped(module, features, PooledLinear(names[0]) if pooled else Call("forward_head"))
    try:
        _check(wrapped, example)
    except UserError:
        if not pooled:
            raise
        wrapped = Wrapped(module, features, Call("forward_head"))  # more than pooling stands before the classifier
        _check(wrapped, example)
    with borrowed(wrapped), torch.no_grad():
        shape = tuple(wrapped.features(_example(wrapped) if example is None else example).shape)
    if len(shape) != 4 or shape[1] != module.num_features:
        usual = f"(b, {module.num_features}, u, v)"
        raise UserError(f"{type(module).__name__} gives features {shape}, not {usual}; give wrap its features and head")
    return wrapped


def _features(module: nn.Module, features: str | Function) -> Part:
    if isinstance(features, str):
        return Until(features) if _is_submodule(module, features, "features") else Call(features)
    return _called(module, features)


def _head(module: nn.Module, head: str | Function) -> Part:
    part = Call(head) if isinstance(head, str) else _called(module, head)
    if not isinstance(part, Call) or not _is_submodule(module, part.name, "head"):
        return part
    return PooledLinear(part.name) if isinstance(submodule(module, part.name), nn.Linear) else part


def _called(module: nn.Module, function: Function) -> Part:
    for name, part in module.named_modules():
        if name and function is part:
            return Call(name)
        if ismethod(function) and function.__self__ is part:
            return Call(f"{name}.{function.__name__}".removeprefix("."))
    return Plain(function)


def _is_submodule(module: nn.Module, name: str, what: str) -> bool:
    """True for a submodule's name, False for a method's; anything else is a UserError."""
    if name and name in dict(module.named_modules()):
        return True
    owner, _, attribute = name.rpartition(".")
    if owner in dict(module.named_modules()) and callable(getattr(submodule(module, owner), attribute, None)):
        return False
    children = ", ".join(sorted(child for child, _ in module.named_children()))
    raise UserError(f"unknown {what} {name!r}; choose from the modules {children}, one inside them, or a method's name")


def _check(wrapped: Wrapped, example: Tensor | None) -> None:
    name = type(wrapped.module).__name__
    example = _example(wrapped) if example is None else example
    with borrowed(wrapped), torch.no_grad():
        try:
            expected = wrapped.module(example)
        except (RuntimeError, ValueError, AssertionError) as error:
            shape = tuple(example.shape)
            raise UserError(f"{name} takes no images of shape {shape}; give wrap an example ({error})") from error
        try:
            logits = wrapped(example)
        except (RuntimeError, ValueError, TypeError, IndexError, AttributeError) as error:
            raise UserError(f"head(features(x)) of {name} fails: {error}") from error
    for what, given in ((f"{name}(x)", expected), ("head(features(x))", logits)):
        if not isinstance(given, Tensor):
            raise UserError(f"{what} gives a {type(given).__name__}, not logits; wrap a module that gives them alone")
    if logits.shape != expected.shape:
        shapes = tuple(logits.shape), tuple(expected.shape)
        raise UserError(f"head(features(x)) has shape {shapes[0]} and {name}(x) {shapes[1]}; they must be equal")
    if (gap := _gap(logits, expected)) is not None:
        raise UserError(f"head(features(x)) differs from {name}(x) by {gap:.3g}; they must be equal")
    if (gap := _gap(*_in_train_mode(wrapped, example))) is not None:
        raise UserError(
            f"head(features(x)) differs from {name}(x) by {gap:.3g} in train mode: dropout or a norm that lies between "
            "them would be left out; give wrap a head that has it too, such as the name of a method"
        )


def _gap(logits: Tensor, expected: Tensor) -> float | None:
    """How far the two are apart, if it is more than rounding."""
    gap, scale = (logits - expected).abs().max().item(), expected.abs().max().item()
    return None if gap <= 1e-4 * max(scale, 1e-3) else gap


def _in_train_mode(wrapped: Wrapped, example: Tensor) -> list[Tensor]:
    """What head(features(x)) and the module give in train mode, by the same draws; no statistics are changed.

    A module that gives no logits then (batch norm of one image, further outputs) gives 0 twice.
    """
    found, devices = [], [example.device] if example.is_cuda else []
    with borrowed(wrapped), torch.no_grad():
        for part in wrapped.modules():
            part.training = True
        for run in (wrapped, wrapped.module):
            buffers = {name: buffer.clone() for name, buffer in run.named_buffers()}
            try:
                with torch.random.fork_rng(devices):
                    found.append(functional_call(run, buffers, (example,)))
            except (RuntimeError, ValueError):
                break
    return found if [type(logits) for logits in found] == [Tensor] * 2 else [torch.zeros(1)] * 2


def _example(wrapped: Wrapped) -> Tensor:
    like = next(wrapped.parameters(), torch.empty(0))
    size = getattr(getattr(wrapped.module, "patch_embed", None), "img_size", None) or (32, 32)
    return torch.rand(2, 3, *size, generator=torch.Generator().manual_seed(0)).to(like.device, like.dtype)
