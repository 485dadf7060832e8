"""The model as the attack and the training pass compute it, in the requested precision where the model allows it."""

import math

import torch

from pixelpart.kernels.cuda import is_hopper
from pixelpart.models import Classifier
from pixelpart.types import Images
from pixelpart.view.borrow import FrozenView, borrowed
from pixelpart.view.check import agrees
from pixelpart.view.trace import Untraceable
from pixelpart.view.views import Folding, TrainingView

Shape = tuple[int, int, int]  # of an image: channels, height, width


def choose_layout(model: Classifier, *, shape: Shape, device: torch.device) -> torch.memory_format:
    """Moves the weights to the fastest memory format that the model supports; returns the format, also for images.

    Channels last, unless the model fails with it: `Tensor.view` over several pixels does.
    """
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    try:
        with borrowed(model) as plain, torch.no_grad():
            plain(_two_images(shape, device, torch.channels_last))
    except RuntimeError:
        model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
        return torch.contiguous_format
    return torch.channels_last


def make_views(
    dtype: torch.dtype | None, model: Classifier, *, shape: Shape, device: torch.device, layout: torch.memory_format
) -> tuple[Folding, TrainingView | None]:
    """The attack's view and the training pass's view in this type; or the attack's in the model's own type and None.

    It falls back to the model's own type if the bf16 view disagrees with the model on two images or fails, or if train
    mode cannot be traced. Layers without a bf16 version, and parameters outside of layers that promote to fp32, show
    only in a forward pass.
    """
    if dtype is not None:
        folding = Folding(model, dtype=dtype, fuse=device.type == "cuda")
        if folding.folded and _usable(folding(), model, dtype, _two_images(shape, device, layout)):
            try:
                return folding, TrainingView(model, dtype=dtype, own_kernels=is_hopper(device))
            except Untraceable:
                pass
    return Folding(model), None


def _usable(view: FrozenView, model: Classifier, dtype: torch.dtype, x: Images) -> bool:
    """Whether the view gives the model's logits, to rounding, and a gradient."""
    x.requires_grad_()
    with borrowed(model) as plain, torch.no_grad():
        expected = plain(x)
    try:
        torch.autograd.grad(view(x).sum(), x)
    except RuntimeError:
        return False
    return agrees(view, x, expected, dtype)


def _two_images(shape: Shape, device: torch.device, layout: torch.memory_format) -> Images:
    x = torch.linspace(0, 1, 2 * math.prod(shape), device=device).view(2, *shape)
    return x.contiguous(memory_format=layout)
