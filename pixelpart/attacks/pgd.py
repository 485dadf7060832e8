"""Projected gradient descent (Madry et al. 2018) inside a budget that may differ from pixel to pixel."""

import torch

from pixelpart.attacks.ball import begin, project
from pixelpart.errors import choose
from pixelpart.frozen import frozen
from pixelpart.losses import LOSSES, SampleLoss, kl
from pixelpart.types import Budget, Images, Labels, Logits, Model


def pgd(
    model: Model,
    x: Images,
    y: Labels | Logits,
    budget: Budget,
    *,
    step_size: float,
    steps: int,
    loss: str | SampleLoss = "ce",
    start: str | Images = "uniform",
    generator: torch.Generator | None = None,
) -> Images:
    """Adversarial images after `steps` times x_adv <- project(x_adv + step_size * sign(gradient of the loss)).

    y is what the loss compares the logits with: labels, or for "kl" the clean logits; labels given with "kl" stand for
    the clean logits, computed here once. `start` is uniform, normal, none, or an image batch to begin from.
    """
    loss_of = choose(LOSSES, loss, "loss") if isinstance(loss, str) else loss
    with torch.no_grad(), frozen(model) as net:
        if loss_of is kl and not y.is_floating_point():
            y = net(x)
        first = begin(x, budget, start=start, generator=generator)
        return climb(net, x, y, budget, first, loss_of, step_size=step_size, steps=steps)


@torch.no_grad()
def climb(
    net: Model,
    x: Images,
    y: Labels | Logits,
    budget: Budget,
    first: Images,
    loss_of: SampleLoss,
    *,
    step_size: float,
    steps: int,
) -> Images:
    """What `steps` signed gradient steps on a frozen model make of the image batch `first`."""
    x_adv = first
    for _ in range(steps):
        with torch.enable_grad():
            leaf = x_adv.detach().requires_grad_()
            (grad,) = torch.autograd.grad(loss_of(net(leaf), y.detach()).sum(), leaf)
        x_adv = project(x_adv + step_size * grad.sign(), x, budget)
    return x_adv
