"""A look at robustness after every epoch: fixed images, fixed noise, so that one epoch compares with the next."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from pixelpart import draws
from pixelpart.attacks import pgd
from pixelpart.attacks.ball import draw_noise, start_point
from pixelpart.config import Config
from pixelpart.losses import ce
from pixelpart.types import Budget, Images, Labels
from pixelpart.view.borrow import FrozenView


@dataclass(frozen=True)
class Reading:
    natural: float  # accuracy on the clean images
    pgd: float  # accuracy under the training attack's PGD at the full eps
    robust_ce: float  # mean cross-entropy there


Measure = Callable[[Images, Labels, Images], Float[Tensor, "3"]]


@torch.no_grad()
def measure(
    view: Callable[[], FrozenView],
    config: Config,
    x: Images,
    y: Labels,
    noise: Images,
    *,
    ascend: Callable[..., Images] | None = None,
) -> Float[Tensor, "3"]:
    """Sums over a batch: right as it is, right under attack, cross-entropy there; eps at every pixel, mask or not."""
    model = view()
    x_adv = pgd(
        model,
        x,
        y,
        config.eps,
        step_size=config.attack.step_size,
        steps=config.attack.steps,
        start=start_point(x, config.eps, noise, kind="uniform"),
        ascend=ascend,
    )
    logits = model(x_adv)
    values = (model(x).argmax(1) == y, logits.argmax(1) == y, ce(logits, y))
    return torch.stack([value.double().sum() for value in values])


def read(measure: Measure, x: Images, y: Labels, *, seed: int, stream: str, chunk: int) -> Reading:
    """Natural accuracy, robust accuracy and robust cross-entropy of the images, by sums over chunks of them."""
    sums = torch.zeros(3, dtype=torch.float64, device=x.device)
    for begin in range(0, len(x), chunk):
        images, labels = x[begin : begin + chunk], y[begin : begin + chunk]
        generator = draws.generator(seed, f"probe/{stream}", step=begin, device=x.device)
        sums += measure(images, labels, draw_noise(images, kind="uniform", generator=generator))
    return Reading(*(sums / len(x)).tolist())


def damage(model: FrozenView, x: Images, y: Labels, budget: Budget) -> float:
    """Mean over the images of sum_i b_i |g_i|: what the budget can add to the cross-entropy, to first order."""
    with torch.enable_grad():
        leaf = x.detach().requires_grad_()
        (grad,) = torch.autograd.grad(ce(model(leaf), y).sum(), leaf)
    return (grad.abs() * budget).sum((1, 2, 3)).mean().item()
