"""The model as a run's attack sees it, in the precision that the run asks for where the model can be computed in it."""

import torch

from pixelpart.attacks.autoattack import agrees
from pixelpart.frozen import Folding, Frozen, frozen
from pixelpart.models import Classifier
from pixelpart.types import Images


def lay_out(model: Classifier, *, size: int, device: torch.device) -> torch.memory_format:
    """Puts the weights channels last, which convolutions are fastest in, if the model can be computed so.

    Not if it takes a `view` of several pixels. Returns what it is, which images are to be in as well.
    """
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    try:
        with frozen(model) as plain, torch.no_grad():
            plain(_two_images(size, device, torch.channels_last))
    except RuntimeError:
        model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
        return torch.contiguous_format
    return torch.channels_last


def view_in(
    dtype: torch.dtype | None, model: Classifier, *, size: int, device: torch.device, layout: torch.memory_format
) -> tuple[Folding, torch.dtype | None]:
    """The view in this type if it says of two images what the model says, else in the model's own; and which it is.

    A layer that does not take bf16, or a weight beside the layers that turns everything into fp32 again, shows only
    when the network is run.
    """
    if dtype is not None:
        folding = Folding(model, dtype=dtype, fuse=device.type == "cuda")
        if folding.folded and _works(folding(), model, dtype, _two_images(size, device, layout)):
            return folding, dtype
    return Folding(model), None


def _works(view: Frozen, model: Classifier, dtype: torch.dtype, x: Images) -> bool:
    """Whether the view gives about the model's logits, and a gradient."""
    x.requires_grad_()
    with frozen(model) as plain, torch.no_grad():
        expected = plain(x)
    try:
        torch.autograd.grad(view(x).sum(), x)
    except RuntimeError:
        return False
    return agrees(view, x, expected, dtype)


def _two_images(size: int, device: torch.device, layout: torch.memory_format) -> Images:
    x = torch.linspace(0, 1, 2 * 3 * size**2, device=device).view(2, 3, size, size)
    return x.contiguous(memory_format=layout)
