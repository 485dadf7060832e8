"""wrap: gives features and head to any network."""

from inspect import ismethod
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from pixelpart.errors import UserError
from pixelpart.models.classifier import Classifier
from pixelpart.models.parts import CallByName, Function, ModelPart, OutputOf, PlainFunction, PooledLinear, TimmLastBlock
from pixelpart.view.borrow import borrowed


def wrap(
    module: nn.Module,
    *,
    features: str | Function | None = None,
    head: str | Function | None = None,
    example: Tensor | None = None,
) -> Classifier:
    """The module as a `Classifier`; an example checks that `head(features(x)) == module(x)`.

    features: the name of the submodule whose output is the last activation before pooling, the name of a method, or a
        function of the images.
    head: the name of a submodule or method that computes logits from that activation, or a function of it. A linear
        layer is applied after global average pooling.
    example: images for the check; default: two random images of 32x32 pixels, or of the module's `img_size`.
    A model that is wrapped with a function that is not a method or submodule of the module cannot be copied.
    A timm model needs neither features nor head: `wrap(timm.create_model(...))`.
    """
    if features is None and head is None:
        wrapped = _wrap_timm(module, example)
    elif features is None or head is None:
        raise UserError("wrap needs both features and head, or neither for a timm model")
    else:
        wrapped = Wrapped(module, _features(module, features), _head(module, head))
        _check_logits(wrapped, example)
    wrapped.training = module.training  # not train(), which would also change submodules
    return wrapped


class Wrapped(Classifier):
    def __init__(self, module: nn.Module, features: ModelPart, head: ModelPart) -> None:
        super().__init__()
        self.module, self.features_part, self.head_part = module, features, head

    @property
    def pooled_linear(self) -> nn.Linear | None:
        linear = self.module.get_submodule(self.head_part.name) if isinstance(self.head_part, PooledLinear) else None
        return linear if isinstance(linear, nn.Linear) else None

    def trunk(self, x: Tensor) -> Tensor:
        return self.features_part(self.module, x)

    def head(self, acts: Tensor) -> Tensor:
        return self.head_part(self.module, acts)


class WrappedTransformer(Wrapped):
    """A vision transformer of timm; features are the tokens (b, t, f) before the last block."""

    def __init__(self, module: Any) -> None:
        super().__init__(module, OutputOf(f"blocks.{len(module.blocks) - 2}"), TimmLastBlock())
        self.class_token = module.global_pool == "token"

    def attentions(self, x: Tensor) -> tuple[list[Tensor], Tensor]:
        """The attention weights of each block, (b, heads, t, t), and the logits."""
        found: list[Tensor] = []
        layers = [block.attn for block in self.module.blocks]  # type: ignore[union-attr]
        fused = [layer for layer in layers if getattr(layer, "fused_attn", False)]

        def keep(_module: nn.Module, _inputs: Any, output: Tensor) -> None:
            found.append(output)

        handles = [layer.attn_drop.register_forward_hook(keep) for layer in layers]
        try:
            for layer in fused:
                layer.fused_attn = False  # fused attention does not compute the weights
            logits = self.module(self.normalised(x))
        finally:
            for layer in fused:
                layer.fused_attn = True
            for handle in handles:
                handle.remove()
        if len(found) != len(layers):
            raise UserError(f"{type(self.module).__name__} has attention layers without attn_drop")
        return found, logits


def _wrap_timm(module: Any, example: Tensor | None) -> Wrapped:
    """A network with the methods of timm's: forward_features, forward_head and get_classifier."""
    methods = ("forward_features", "forward_head", "get_classifier")
    if not all(callable(getattr(module, name, None)) for name in methods):
        raise UserError(f"{type(module).__name__} is not a timm model; pass features and head to wrap")
    blocks = getattr(module, "blocks", None)
    if blocks is not None and len(blocks) > 1 and hasattr(getattr(blocks[-1], "attn", None), "attn_drop"):
        wrapped: Wrapped = WrappedTransformer(module)
        _check_logits(wrapped, example)
        return wrapped
    features = CallByName("forward_features")
    names = [name for name, part in module.named_modules() if part is module.get_classifier()]
    pooled = isinstance(module.get_classifier(), nn.Linear) and names
    wrapped = Wrapped(module, features, PooledLinear(names[0]) if pooled else CallByName("forward_head"))
    try:
        _check_logits(wrapped, example)
    except UserError:
        if not pooled:
            raise
        wrapped = Wrapped(module, features, CallByName("forward_head"))  # not only pooling before it
        _check_logits(wrapped, example)
    with borrowed(wrapped), torch.no_grad():
        shape = tuple(wrapped.features(_example(wrapped) if example is None else example).shape)
    if len(shape) != 4 or shape[1] != module.num_features:
        usual = f"(b, {module.num_features}, u, v)"
        raise UserError(f"{type(module).__name__} has features {shape}, not {usual}; pass features and head to wrap")
    return wrapped


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
    return PlainFunction(function)


def _is_submodule(module: nn.Module, name: str, what: str) -> bool:
    """True for the name of a submodule, False for that of a method; UserError for any other name."""
    if name and name in dict(module.named_modules()):
        return True
    owner, _, attribute = name.rpartition(".")
    if owner in dict(module.named_modules()) and callable(getattr(module.get_submodule(owner), attribute, None)):
        return False
    children = ", ".join(sorted(child for child, _ in module.named_children()))
    raise UserError(f"unknown {what} {name!r}; choose from {children}, their submodules, or a method")


def _check_logits(wrapped: Wrapped, example: Tensor | None) -> None:
    name = type(wrapped.module).__name__
    example = _example(wrapped) if example is None else example
    with borrowed(wrapped), torch.no_grad():
        try:
            expected = wrapped.module(example)
        except (RuntimeError, ValueError, AssertionError) as error:
            shape = tuple(example.shape)
            raise UserError(f"{name} fails on images of shape {shape}; pass an example to wrap ({error})") from error
        try:
            logits = wrapped(example)
        except (RuntimeError, ValueError, TypeError, IndexError, AttributeError) as error:
            raise UserError(f"head(features(x)) of {name} fails: {error}") from error
    for what, given in ((f"{name}(x)", expected), ("head(features(x))", logits)):
        if not isinstance(given, Tensor):
            raise UserError(f"{what} returns a {type(given).__name__}, not logits")
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


def _gap(logits: Tensor, expected: Tensor) -> float | None:
    """The largest difference, or None if it is within rounding."""
    gap, scale = (logits - expected).abs().max().item(), expected.abs().max().item()
    return None if gap <= 1e-4 * max(scale, 1e-3) else gap


def _in_train_mode(wrapped: Wrapped, example: Tensor) -> list[Tensor]:
    """head(features(x)) and module(x) in train mode, with equal random numbers; running statistics are unchanged.

    Two zeros if the module returns no logits in train mode (batch norm of one image, additional outputs).
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
