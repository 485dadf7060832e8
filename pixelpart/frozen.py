"""A model as the attack sees it: eval mode, batch norm folded into the convolutions, no weight gradients.

`frozen(model)` lends a caller's own model in eval mode and puts everything back. `Folding(model)` reads the structure
of a classifier once; each call of it then gives a `Frozen` view of the weights as they are now, made of tensor
operations alone, so that it can sit inside a compiled or captured training step. `Working(model)` is the same for the
training pass: live weights, train mode.

Both may compute in bf16: pixels and the first convolution stay fp32, since near white bf16 has steps of 1/256 and would
turn +7.5/255 into +7 and -7.5/255 into -8; what follows is bf16, and so are copies of the weights; the head is fp32.
"""

import copy
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FunctionType
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.func import functional_call

from pixelpart.errors import UserError, choose
from pixelpart.fusing import STEM
from pixelpart.tracing import Called, Traced, Unreadable, tensors_of

PRECISIONS: dict[str, torch.dtype | None] = {"fp32": None, "bf16": torch.bfloat16}


@contextmanager
def frozen(model: Any) -> Iterator[Any]:
    """The model in eval mode without weight gradients; modes and flags are put back, also after an exception."""
    if isinstance(model, Frozen) or not isinstance(model, nn.Module):
        yield model
        return
    modes = [(module, module.training) for module in model.modules()]
    flags = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    try:
        for module, _ in modes:
            module.training = False
        for parameter, _ in flags:
            parameter.requires_grad_(False)
        yield model
    finally:
        for module, training in modes:
            module.training = training
        for parameter, requires_grad in flags:
            parameter.requires_grad_(requires_grad)


class Linear(NamedTuple):
    """The weights of a linear layer behind global average pooling."""

    weight: Tensor
    bias: Tensor | None


class Part(NamedTuple):
    """One half of a classifier: a structure, and the tensors that fill it."""

    structure: nn.Module
    weights: dict[str, Tensor]

    def __call__(self, x: Tensor) -> Tensor:
        return functional_call(self.structure, self.weights, (x,)) if self.weights else self.structure(x)

    def bound(self) -> "Part":
        """The same with its weights in the structure itself: a call need not put them there, and they stay as now."""
        structure = copy.deepcopy(self.structure)
        structure.load_state_dict(self.weights, strict=False, assign=True)
        return Part(structure.requires_grad_(False), {})


@dataclass(frozen=True)
class Frozen:
    """A view of a classifier for the attack: features, head and logits; its tensors carry no gradient history."""

    features: Part
    head: Part
    pooled_linear: Linear | None

    def __call__(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))


class Folding:
    """Calling it gives the model's `Frozen` view at its present weights.

    `folded` says whether the structure could be read (by torch.fx) and batch norm folded; a model whose forward pass
    branches on its input, or one with hooks, is used as it is, in eval mode and its own precision: the same numbers,
    only slower. With `fuse`, convolution and ReLU are one operation of pixelpart.kernels: fewer passes over memory, and
    gradients with respect to images alone.
    """

    def __init__(self, model: nn.Module, *, dtype: torch.dtype | None = None, fuse: bool = False) -> None:
        self.model = model
        skeleton = copy.deepcopy(model).eval().to("meta")
        self._features: Traced | Called
        self._head: Traced | Called
        try:
            self._features = Traced(skeleton, "features", fold=True, dtype=dtype, fuse=fuse)
            self._head = Traced(skeleton, "head", fold=True, widen=dtype is not None)
        except Unreadable:
            self._features, self._head = Called(skeleton, "features"), Called(skeleton, "head")
        self.folded = isinstance(self._features, Traced)
        self._fill: Callable[..., Any] = self._fill_both

    @torch.no_grad()
    def __call__(self, other: nn.Module | None = None) -> Frozen:
        """The view of this model, or of another with the same structure."""
        model = other or self.model
        features, head = self._fill({name: tensor.detach() for name, tensor in tensors_of(model).items()})
        linear = getattr(model, "pooled_linear", None)
        if linear is not None:
            linear = Linear(linear.weight.detach(), None if linear.bias is None else linear.bias.detach())
        return Frozen(Part(self._features.structure, features), Part(self._head.structure, head), linear)

    def _fill_both(self, live: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        return self._features.fill(live), self._head.fill(live)

    def compile(self) -> None:
        """From now on the folding itself is a few kernels instead of a few for every layer."""

        def fill(live: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
            return self._fill_both(live)

        self._fill = compiled(fill)

    def interpret(self) -> None:
        """Undoes `compile`."""
        self._fill = self._fill_both


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function compiled, whole, for the shapes it meets.

    torch keeps only so many compiled versions of one code object, over all runs of a process: each caller gets its own.
    """
    assert isinstance(function, FunctionType)
    code, closure = function.__code__.replace(), function.__closure__
    own = FunctionType(code, function.__globals__, function.__name__, function.__defaults__, closure)
    own.__kwdefaults__ = function.__kwdefaults__
    return torch.compile(own, dynamic=False, fullgraph=True)


def searched(model: Any, *, dtype: torch.dtype | None = None, fuse: bool = False) -> Frozen | None:
    """A view of any module on images, folded, for a search through it; None if its structure cannot be read.

    With a narrower dtype all but the first convolution and the last linear layer is computed in it.
    """
    if not isinstance(model, nn.Module):
        return None
    split = hasattr(model, "features") and hasattr(model, "head") and hasattr(model, "pooled_linear")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # torch's own, at the copy of what torch.export has made
            folding = Folding(model if split else _Unsplit(model), dtype=dtype, fuse=fuse)
    except Exception:  # a module that cannot be copied: there may be a lock in it, or a tensor with a history
        return None
    if not folding.folded:
        return None
    view = folding()
    features = view.features.bound()
    assert isinstance(features.structure, fx.GraphModule)
    if any(node.target is STEM for node in features.structure.graph.nodes):  # channels last, so the rest is to be too
        for module in features.structure.modules():
            if isinstance(module, nn.Conv2d):
                module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return Frozen(features, view.head.bound(), view.pooled_linear)


def through(model: Any, search: str, x: Tensor) -> Any:
    """What a search for x in this precision goes through: in fp32 the model itself, in bf16 a view of it."""
    dtype = choose(PRECISIONS, search, "search")
    if dtype is None or isinstance(model, Frozen):
        return model
    view = searched(model, dtype=dtype, fuse=x.is_cuda)
    if view is None:
        raise UserError(f"the model's structure cannot be read, so there is no search in {search}; choose fp32")
    try:
        view(x[:1])
    except RuntimeError as error:  # a layer that does not take this type
        raise UserError(
            f"the model cannot be computed in {search}, choose fp32: {str(error).splitlines()[0]}"
        ) from None
    return view


class _Unsplit(nn.Module):
    """A module without features and head, as if it were all features."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def features(self, x: Tensor) -> Tensor:
        return self.model(x)

    def head(self, logits: Tensor) -> Tensor:
        return logits


class Working:
    """The logits of a classifier in train mode, computed in bf16 behind the first convolution from its fp32 weights.

    Gradients reach the model's own parameters, and batch norm's statistics are the model's own. A model whose structure
    cannot be read raises Unreadable. With `own`, convolutions are operations of pixelpart.kernels.
    """

    def __init__(self, model: nn.Module, *, dtype: torch.dtype, own: bool = False) -> None:
        self.model = model
        skeleton = copy.deepcopy(model).train().to("meta")
        self._features = Traced(skeleton, "features", fold=False, dtype=dtype, own=own)
        self._head = Traced(skeleton, "head", fold=False, widen=True)

    def __call__(self, x: Tensor) -> Tensor:
        live = tensors_of(self.model)
        for part in (self._features, self._head):
            x = Part(part.structure, part.fill(live))(x)
        return x
