"""Views of a classifier, in fp32 or bf16: what the attack differentiates, and what the training pass computes.

`Folding(model)` traces a classifier once; each call then gives a `FrozenView` of the weights as they are now, made of
tensor operations only, so that it can be part of a compiled or captured training step. `TrainingView(model)` is the
same for the training pass: live weights, train mode.

Both may compute in bf16. Pixels and the first convolution stay fp32, since near white bf16 has steps of 1/256 and would
turn +7.5/255 into +7 and -7.5/255 into -8; what follows is bf16, and so are copies of the weights; the head is fp32.
"""

import copy
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn

from pixelpart.errors import UserError, choose
from pixelpart.runtime.precision import PRECISIONS
from pixelpart.view.borrow import FrozenView, PooledLinear, Stage
from pixelpart.view.capture import compiled
from pixelpart.view.fuse import STEM
from pixelpart.view.trace import Called, Traced, Untraceable, tensors_of


class Folding:
    """Calling it gives the model's `FrozenView` view at its present weights.

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
        except Untraceable:
            self._features, self._head = Called(skeleton, "features"), Called(skeleton, "head")
        self.folded = isinstance(self._features, Traced)
        self._fill: Callable[..., Any] = self._fill_both

    @torch.no_grad()
    def __call__(self, other: nn.Module | None = None) -> FrozenView:
        """The view of this model, or of another with the same structure."""
        model = other or self.model
        features, head = self._fill({name: tensor.detach() for name, tensor in tensors_of(model).items()})
        linear = getattr(model, "pooled_linear", None)
        if linear is not None:
            linear = PooledLinear(linear.weight.detach(), None if linear.bias is None else linear.bias.detach())
        return FrozenView(Stage(self._features.structure, features), Stage(self._head.structure, head), linear)

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


def search_view(model: Any, *, dtype: torch.dtype | None = None, fuse: bool = False) -> FrozenView | None:
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
    return FrozenView(features, view.head.bound(), view.pooled_linear)


def view_in(model: Any, search: str, x: Tensor) -> Any:
    """What a search for x in this precision goes through: in fp32 the model itself, in bf16 a view of it."""
    dtype = choose(PRECISIONS, search, "search")
    if dtype is None or isinstance(model, FrozenView):
        return model
    view = search_view(model, dtype=dtype, fuse=x.is_cuda)
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


class TrainingView:
    """The logits of a classifier in train mode, computed in bf16 behind the first convolution from its fp32 weights.

    Gradients reach the model's own parameters, and batch norm's statistics are the model's own. A model whose structure
    cannot be read raises Untraceable. With `own`, convolutions are operations of pixelpart.kernels.
    """

    def __init__(self, model: nn.Module, *, dtype: torch.dtype, own: bool = False) -> None:
        self.model = model
        skeleton = copy.deepcopy(model).train().to("meta")
        self._features = Traced(skeleton, "features", fold=False, dtype=dtype, own=own)
        self._head = Traced(skeleton, "head", fold=False, widen=True)

    def __call__(self, x: Tensor) -> Tensor:
        live = tensors_of(self.model)
        for part in (self._features, self._head):
            x = Stage(part.structure, part.fill(live))(x)
        return x
