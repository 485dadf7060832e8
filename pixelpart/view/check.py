"""Whether a view of a model can be trusted: it has to give the model's logits, to rounding."""

import torch

from pixelpart.types import Images, Logits, Model
from pixelpart.view.views import search_view

PROBES = 64  # images on which a view is compared with its model
AGREEMENT, ROUNDING = 0.1, 1e-3  # largest difference in bf16 and in fp32, relative to the spread of the logits


def view_for_search(model: Model, dtype: torch.dtype | None, device: torch.device) -> Model:
    """The model as a search goes through it: folded if its structure can be read, else as it is, in fp32."""
    fuse = dtype is not None and device.type == "cuda"
    return search_view(model, dtype=dtype, fuse=fuse) or model


def agrees(view: Model, x: Images, expected: Logits, dtype: torch.dtype | None) -> bool:
    """Whether a view of a model says of some images what is expected of them, to rounding in its type."""
    try:
        apart = (view(x) - expected).abs().max() / expected.std().clamp_min(1e-12)
    except RuntimeError:  # the model's own operations, in another type than they were written for
        return False
    return bool(apart <= (AGREEMENT if dtype else ROUNDING))
