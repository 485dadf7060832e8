"""A look at robustness after every epoch: fixed images, fixed noise, so that one epoch compares with the next."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from pixelpart import draws
from pixelpart.attacks import pgd
from pixelpart.attacks.ball import draw_noise, start_point
from pixelpart.config import Config
from pixelpart.frozen import Frozen
from pixelpart.losses import ce
from pixelpart.types import Budget, Images, Labels


@dataclass(frozen=True)
class Reading:
    natural: float  # accuracy on the clean images
    pgd: float  # accuracy under the training attack's PGD at the full eps
    robust_ce: float  # mean cross-entropy there


@torch.no_grad()
def read(
    model: Frozen,
    x: Images,
    y: Labels,
    config: Config,
    *,
    stream: str,
    chunk: int,
    ascend: Callable[..., Images] | None = None,
) -> Reading:
    """Natural accuracy, robust accuracy and robust cross-entropy; the attack has eps at every pixel, mask or not."""
    right, robust, losses = [], [], []
    for begin in range(0, len(x), chunk):
        images, labels = x[begin : begin + chunk], y[begin : begin + chunk]
        generator = draws.generator(config.seed, f"probe/{stream}", step=begin, device=x.device)
        start = start_point(images, config.eps, draw_noise(images, kind="uniform", generator=generator), kind="uniform")
        x_adv = pgd(
            model,
            images,
            labels,
            config.eps,
            step_size=config.attack.step_size,
            steps=config.attack.steps,
            start=start,
            ascend=ascend if len(images) == chunk else None,
        )
        logits = model(x_adv)
        right.append(model(images).argmax(1) == labels)
        robust.append(logits.argmax(1) == labels)
        losses.append(ce(logits, labels))
    natural, accuracy, loss = (torch.cat(parts).double().mean().item() for parts in (right, robust, losses))
    return Reading(natural, accuracy, loss)


def damage(model: Frozen, x: Images, y: Labels, budget: Budget) -> float:
    """Mean over the images of sum_i b_i |g_i|: what the budget can add to the cross-entropy, to first order."""
    with torch.enable_grad():
        leaf = x.detach().requires_grad_()
        (grad,) = torch.autograd.grad(ce(model(leaf), y).sum(), leaf)
    return (grad.abs() * budget).sum((1, 2, 3)).mean().item()
