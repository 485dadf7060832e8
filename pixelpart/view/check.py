"""Whether a view of a model can be trusted: it must give the model's logits, up to rounding."""

import torch

from pixelpart.runtime.precision import PRECISIONS
from pixelpart.types import Images, Logits, Model
from pixelpart.view.views import search_view

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
