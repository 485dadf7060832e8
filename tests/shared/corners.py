"""A set that is learnt in a second, models of it, and ways to hide their gradients."""

import functools

import pytest
import torch
from torch import nn

from pixelpart import data
from pixelpart.evaluation.checks import surrogate

N = 40


@functools.cache
def corners(split):
    """Which corner is lighter, by more or by less."""
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
    size=12,
    mean=(0.5, 0.5, 0.5),
    std=(0.2, 0.2, 0.2),
    counts={"train": 320, "test": N},
    about="",
    load=lambda split, root: corners(split),
)


@functools.cache
def trained(seed):
    """A tiny-cnn, adversarially trained: the surrogate's own training, with another seed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(data.SETS, "corners", SET)
        patch.setattr(surrogate, "BATCH_SIZE", 16)
        patch.setattr(surrogate, "EPOCHS", 4)
        return surrogate.train_surrogate("corners", eps=8 / 255, seed=seed, device=torch.device("cpu"))


class Hidden(nn.Module):
    """A model behind a change of its images and one of its logits."""

    def __init__(self, model, change=lambda x: x, after=lambda logits: logits):
        super().__init__()
        self.model, self.change, self.after = model, change, after

    def forward(self, x):
        return self.after(self.model(self.change(x)))


def stairs(x):
    """Sixteen levels; the gradient is zero wherever there is one."""
    return (x * 16).round() / 16 + 0 * x


def random(x):
    return x + 0.1 * torch.randn_like(x)


def backwards(x):
    """The same images, and a gradient that leads away."""
    return 2 * x.detach() - x


def shattered(x):
    """Nearly the same images, and a gradient that is that of a fast ripple."""
    return x + 0.002 * torch.sin(1e5 * x)


def rippled(x):
    """Nearly the same images, and a ripple as wide as three steps of PGD: its gradient is true, and of no use."""
    return x + 2 / 255 * torch.sin(2 * torch.pi * 255 / 6 * x)


def on_the_levels(x):
    """The same images, and a gradient at images of whole levels alone: a random start is none."""
    whole = (x * 255 - (x * 255).round()).abs() < 1e-3
    return torch.where(whole, x, x.detach())


MASKED = {
    "saturated": ({"after": lambda logits: 1e4 * logits}, {"unbounded", "growing eps", "black box"}),
    "quantised": ({"change": stairs}, {"unbounded", "growing eps", "black box"}),
    "random": ({"change": random}, set()),  # what it shows is chance; that it is random is told
    "backwards": ({"change": backwards}, {"unbounded", "growing eps", "black box"}),
    "shattered": ({"change": shattered}, {"black box"}),
    "rippled": ({"change": rippled}, {"one step"}),
    "on the levels": ({"change": on_the_levels}, {"one step", "unbounded", "growing eps", "black box"}),
}
