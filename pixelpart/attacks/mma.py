"""Minimum-margin attack as PART's authors run it: PGD towards each of the few most likely wrong classes."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from pixelpart.attacks.ball import (
    check_attack_inputs,
    check_attack_labels,
    default_generator,
    first_image,
    in_dtype_of,
)
from pixelpart.attacks.pgd import run_steps
from pixelpart.losses import SampleLoss, margin, targeted_margin, without
from pixelpart.types import Budget, Images, Labels, Model
from pixelpart.view.borrow import FrozenView, borrowed

Starts = Float[Tensor, "targets b c h w"]


def mma(
    model: Model,
    x: Images,
    y: Labels,
    budget: Budget,
    *,
    step_size: float,
    steps: int,
    targets: int = 3,
    start: str | Images | Starts = "uniform",
    generator: torch.Generator | None = None,
    ascend: Callable[..., Images] | None = None,
) -> Images:
    """Of the images PGD on z_t - z_y reaches for each target t, the one with the largest margin max_{k != y} z_k - z_y.

    The targets are the wrong classes with the largest clean logits, all of them if there are fewer than `targets`. Each
    has its own random start. A start tensor holds one image batch for all targets, or one for each.
    """
    if isinstance(start, str):
        generator = generator or default_generator(x)  # shared by all targets, so that their starts differ
    if not isinstance(model, FrozenView):
        check_attack_inputs(x, budget, step_size=step_size, steps=steps, start=start)
    budget = in_dtype_of(x, budget)
    with torch.no_grad(), borrowed(model) as net:
        clean = net(x)
        if not isinstance(model, FrozenView):
            check_attack_labels(y, clean.shape[1], n=len(x))
            y = y.long()
        choices = without(clean, y).topk(min(targets, clean.shape[1] - 1), dim=1).indices
        best, best_margin = x, torch.full_like(clean[:, 0], -torch.inf)
        for i, target in enumerate(choices.unbind(1)):
            own_start = start[i] if isinstance(start, Tensor) and start.ndim == 5 else start
            first = first_image(x, budget, start=own_start, generator=generator)
            loss_of = _towards(target)
            x_adv = run_steps(net, x, y, budget, first, loss_of, step_size=step_size, steps=steps, ascend=ascend)
            reached = margin(net(x_adv), y)
            better = reached > best_margin
            best = torch.where(better[:, None, None, None], x_adv, best)
            best_margin = torch.where(better, reached, best_margin)
    return best


def _towards(target: Tensor) -> SampleLoss:
    return lambda logits, y: targeted_margin(logits, y, target)
