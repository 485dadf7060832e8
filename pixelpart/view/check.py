"""The view of any model that a search runs through: it must give the model's logits, up to rounding."""

import warnings
from typing import Any

import torch
from torch import Tensor, fx, nn

from pixelpart.runtime.precision import PRECISIONS
from pixelpart.types import Images, Logits, Model
from pixelpart.view.borrow import FrozenView
from pixelpart.view.views import Folding

COMPARED_IMAGES = 64  # images on which a view is compared with its model
AGREEMENT, ROUNDING = 0.1, 1e-3  # largest difference in bf16 and in fp32, relative to the spread of the logits


@torch.no_grad()
def trusted_view(model: Model, x: Images, precision: str) -> tuple[Model, str | None]:
    """The model's folded view in this precision ("fp32" or "bf16"), or the model itself and the reason.

    The view is compared with the model on the first COMPARED_IMAGES of x. In fp32, no reason is given
    for a model that torch.fx cannot trace: its view would only be faster.
    """
    dtype = PRECISIONS[precision]
    view = search_view(model, dtype=dtype, fuse=dtype is not None and x.is_cuda)
    if view is None and dtype is None:
        return model, None
    if view is None:
        return model, f"torch.fx cannot trace this model; the search runs in fp32 instead of {precision}"
    if agrees(view, x[:COMPARED_IMAGES], model(x[:COMPARED_IMAGES]), dtype):
        return view, None
    return model, f"the {precision} view of this model gives other logits; the search runs through the model in fp32"


def agrees(view: Model, x: Images, expected: Logits, dtype: torch.dtype | None) -> bool:
    """Whether the view gives the expected logits, up to rounding in its type."""
    try:
        difference = (view(x) - expected).abs().max() / expected.std().clamp_min(1e-12)
    except RuntimeError:  # an operation of the model that does not take this type
        return False
    return bool(difference <= (AGREEMENT if dtype else ROUNDING))


def search_view(model: Any, *, dtype: torch.dtype | None = None, fuse: bool = False) -> FrozenView | None:
    """The folded view of any module on images, at its current weights; None if torch.fx cannot trace it.

    With a dtype, everything but the first convolution and the last linear layer is computed in it.
    """
    if not isinstance(model, nn.Module):
        return None
    split = hasattr(model, "features") and hasattr(model, "head") and hasattr(model, "pooled_linear")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of torch, when it copies a module made by torch.export
            folding = Folding(model if split else _Unsplit(model), dtype=dtype, fuse=fuse)
    except Exception:  # a module that cannot be copied: it may hold a lock, or a tensor with gradient history
        return None
    if not folding.folded:
        return None
    view = folding()
    features = view.features.bound()
    assert isinstance(features.structure, fx.GraphModule)
    # The stem's output is channels last, and the convolutions after it are fastest if their weights are too.
    if fuse and any(node.target is torch.ops.pixelpart.stem.default for node in features.structure.graph.nodes):
        for module in features.structure.modules():
            if isinstance(module, nn.Conv2d):
                module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return FrozenView(features, view.head.bound(), view.pooled_linear)


class _Unsplit(nn.Module):
    """A module without features and head, as a classifier whose features are its logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def features(self, x: Tensor) -> Tensor:
        return self.model(x)

    def head(self, logits: Tensor) -> Tensor:
        return logits
