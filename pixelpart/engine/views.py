"""The model as a run's attack and its training pass see it, in the precision asked for where that can be."""

import copy

import torch

from pixelpart.kernels.cuda import hopper
from pixelpart.models import Classifier
from pixelpart.types import Images
from pixelpart.view.borrow import FrozenView, borrowed
from pixelpart.view.check import agrees
from pixelpart.view.trace import Untraceable
from pixelpart.view.views import Folding, TrainingView


def lay_out(model: Classifier, *, size: int, device: torch.device) -> torch.memory_format:
    """Puts the weights channels last, which convolutions are fastest in, if the model can be computed so.

    Not if it takes a `view` of several pixels. Returns what it is, which images are to be in as well.
    """
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    try:
        with borrowed(model) as plain, torch.no_grad():
            plain(_two_images(size, device, torch.channels_last))
    except RuntimeError:
        model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
        return torch.contiguous_format
    return torch.channels_last


def views_in(
    dtype: torch.dtype | None, model: Classifier, *, size: int, device: torch.device, layout: torch.memory_format
) -> tuple[Folding, TrainingView | None]:
    """The attack's view and the training pass's in this type, or the attack's in the model's own type and None.

    The latter if the view does not say of two images what the model says, or if train mode does what cannot be read.
    A layer that does not take bf16, or a weight beside the layers that turns everything into fp32 again, shows only
    when the network is run.
    """
    if dtype is not None:
        folding = Folding(model, dtype=dtype, fuse=device.type == "cuda")
        if folding.folded and _works(folding(), model, dtype, _two_images(size, device, layout)):
            try:
                return folding, TrainingView(model, dtype=dtype, own=hopper(device))
            except Untraceable:
                pass
    return Folding(model), None


def takes_one_image(model: Classifier, *, size: int, device: torch.device, layout: torch.memory_format) -> bool:
    """Whether it can be trained on a single image: not with batch norm behind pooling, which then has one value."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []), torch.no_grad():
        try:
            copy.deepcopy(model).train()(_two_images(size, device, layout)[:1])
        except ValueError:
            return False
    return True


def _works(view: FrozenView, model: Classifier, dtype: torch.dtype, x: Images) -> bool:
    """Whether the view gives about the model's logits, and a gradient."""
    x.requires_grad_()
    with borrowed(model) as plain, torch.no_grad():
        expected = plain(x)
    try:
        torch.autograd.grad(view(x).sum(), x)
    except RuntimeError:
        return False
    return agrees(view, x, expected, dtype)


def _two_images(size: int, device: torch.device, layout: torch.memory_format) -> Images:
    x = torch.linspace(0, 1, 2 * 3 * size**2, device=device).view(2, 3, size, size)
    return x.contiguous(memory_format=layout)
