"""A data set that is learned in a second, models trained on it, and ways to hide their gradients."""

import functools

import pytest
import torch
from torch import nn

from pixelpart import data
from pixelpart.evaluation.checks import surrogate

N = 40


@functools.cache
def corners(split):
    """The class is the lighter corner; how much lighter varies."""
    generator = torch.Generator().manual_seed(len(split))
    n = 320 if split == "train" else N
    x = 100 + 60 * torch.rand(n, 3, 12, 12, generator=generator)
    lighter = 10 + 20 * torch.rand(n, 1, 1, 1, generator=generator)
    y = torch.arange(n) % 4
    for label, (top, left) in enumerate(((0, 0), (0, 6), (6, 0), (6, 6))):
        x[y == label, :, top : top + 6, left : left + 6] += lighter[y == label]
    return x.byte(), y


SET = data.DataSet(
    classes=("nw", "ne", "sw", "se"),
    shape=(3, 12, 12),
    mean=(0.5, 0.5, 0.5),
    std=(0.2, 0.2, 0.2),
    counts={"train": 320, "test": N},
    about="",
    load=lambda split, *_: corners(split),
)


@functools.cache
def trained(seed):
    """A tiny-cnn with the adversarial training of a surrogate and another seed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(data.SETS, "corners", SET)
        patch.setattr(surrogate, "BATCH_SIZE", 16)
        patch.setattr(surrogate, "EPOCHS", 4)
        return surrogate.train_surrogate("corners", eps=8 / 255, seed=seed, device=torch.device("cpu"))


class Hidden(nn.Module):
    """A model with `change` applied to its images and `after` to its logits."""

    def __init__(self, model, change=lambda x: x, after=lambda logits: logits):
        super().__init__()
        self.model, self.change, self.after = model, change, after

    def forward(self, x):
        return self.after(self.model(self.change(x)))


def stairs(x):
    """Images quantised to 16 levels: the gradient is zero."""
    return (x * 16).round() / 16 + 0 * x


def random(x):
    return x + 0.1 * torch.randn_like(x)


def backwards(x):
    """The same images with a reversed gradient."""
    return 2 * x.detach() - x


def shattered(x):
    """Nearly the same images with the gradient of a fast ripple."""
    return x + 0.002 * torch.sin(1e5 * x)


def rippled(x):
    """Nearly the same images with a ripple as wide as three steps of PGD: the gradient is correct but useless."""
    return x + 2 / 255 * torch.sin(2 * torch.pi * 255 / 6 * x)


def on_the_levels(x):
    """The same images with a gradient only at integer levels, where no random start lies."""
    integer = (x * 255 - (x * 255).round()).abs() < 1e-3
    return torch.where(integer, x, x.detach())


MASKED = {
    "saturated": ({"after": lambda logits: 1e4 * logits}, {"unbounded", "growing eps", "black box"}),
    "quantised": ({"change": stairs}, {"unbounded", "growing eps", "black box"}),
    "random": ({"change": random}, set()),  # its behaviours vary; the warning says that it is random
    "backwards": ({"change": backwards}, {"unbounded", "growing eps", "black box"}),
    "shattered": ({"change": shattered}, {"black box"}),
    "rippled": ({"change": rippled}, {"one step"}),
    "on the levels": ({"change": on_the_levels}, {"one step", "unbounded", "growing eps", "black box"}),
}
