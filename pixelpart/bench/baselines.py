"""The usual way: eager fp32 in torch's default layout, batch norm not folded, masks one image at a time.

It computes what our code computes, from the same draws (tests compare the two), in the way of the code that people run.
Nothing here uses pixelpart's attacks, objectives or maps.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from pixelpart.config import Config
from pixelpart.masks.policy import live_or_one, scale
from pixelpart.masks.rules import above_mean, is_dead
from pixelpart.models import Classifier
from pixelpart.types import Budget, BudgetMap, Heatmap, Images, Labels

Gradient = Callable[[Tensor, Tensor], Tensor]  # (loss, x_adv) -> dloss/dx_adv
BETA = 6.0


def by_backward(loss: Tensor, x_adv: Tensor) -> Tensor:
    """The gradient as most hand-written loops compute it, PART's and Madry's: with that of all weights."""
    loss.backward()
    assert x_adv.grad is not None
    return x_adv.grad


def by_grad(loss: Tensor, x_adv: Tensor) -> Tensor:
    """The gradient as torchattacks, AutoAttack and TRADES compute it: for the images only."""
    return torch.autograd.grad(loss, x_adv)[0]


# -- attacks, on a model in eval mode


def pgd(
    model: Classifier,
    x: Images,
    y: Labels,
    budget: Budget,
    noise: Images,
    *,
    step_size: float,
    steps: int,
    gradient: Gradient = by_backward,
) -> Images:
    """PGD on the cross-entropy from x + budget * noise."""
    x_adv = (x + budget * noise).clamp(0, 1)
    for _ in range(steps):
        x_adv.requires_grad_()
        grad = gradient(F.cross_entropy(model(x_adv), y), x_adv)
        x_adv = _project(x_adv.detach() + step_size * grad.sign(), x, budget)
    return x_adv


def trades_attack(
    model: Classifier, x: Images, budget: Budget, noise: Images, *, step_size: float, steps: int
) -> Images:
    """PGD on the KL divergence from x + 0.001 noise; the clean logits anew in every step, as in TRADES' code."""
    x_adv = _project(x + 0.001 * noise, x, budget)
    for _ in range(steps):
        x_adv.requires_grad_()
        loss = F.kl_div(model(x_adv).log_softmax(1), model(x).softmax(1), reduction="sum")
        grad = by_grad(loss, x_adv)
        x_adv = _project(x_adv.detach() + step_size * grad.sign(), x, budget)
    return x_adv


def _project(x_adv: Images, x: Images, budget: Budget) -> Images:
    delta = x_adv - x
    delta = torch.where(delta > budget, budget, delta)
    delta = torch.where(delta < -budget, -budget, delta)
    return (x + delta).clamp(0, 1)


# -- masks, on a model in eval mode


def heatmaps(model: Classifier, x: Images, *, to_weights: bool = True) -> Heatmap:
    """GradCAM of the predicted class, one image after the other, scaled to [0,1] and enlarged by PIL.

    The score's gradient goes back to every weight, as in the version of torchcam that PART's code requires; else to the
    activation only, as in later versions.
    """
    return torch.stack([_heatmap(model, image, to_weights=to_weights) for image in x])


def budgets(model: Classifier, x: Images, *, eps: float, eps_low: float, to_weights: bool = True) -> BudgetMap:
    """The budgets by the rule `mean`, one image after the other."""
    heats = heatmaps(model, x, to_weights=to_weights)
    return torch.cat([budget_by_mean(heat[None], eps=eps, eps_low=eps_low) for heat in heats])


def budget_by_mean(heat: Heatmap, *, eps: float, eps_low: float) -> BudgetMap:
    """`masks.budget` without its checks, which wait for the device."""
    return scale(live_or_one(above_mean(heat), is_dead(heat)), eps=eps, eps_low=eps_low)


def _heatmap(model: Classifier, image: Tensor, *, to_weights: bool) -> Tensor:
    acts = model.features(image[None])
    logits = model.head(acts)
    score = logits[0, int(logits.argmax())]
    if to_weights:
        model.zero_grad()
        acts.retain_grad()
        score.backward()
        grads = acts.grad
        assert grads is not None
    else:
        (grads,) = torch.autograd.grad(score, acts)
    cam = (grads.mean((2, 3), keepdim=True) * acts.detach()).sum(1)[0].relu()
    cam = cam - cam.min()
    if cam.max() > 0:
        cam = cam / cam.max()
    picture = Image.fromarray(cam.float().cpu().numpy())
    large = np.asarray(picture.resize((image.shape[-1], image.shape[-2]), resample=Image.Resampling.BICUBIC))
    return torch.from_numpy(large.clip(0, 1)).to(image)


# -- training steps


def at_loss(model: Classifier, x: Images, x_adv: Images, y: Labels) -> Tensor:
    return F.cross_entropy(model(x_adv), y)


def trades_loss(model: Classifier, x: Images, x_adv: Images, y: Labels) -> Tensor:
    """As in TRADES' code: the clean batch passes the model twice, which updates batch norm's statistics twice."""
    natural = F.cross_entropy(model(x), y)
    robust = F.kl_div(model(x_adv).log_softmax(1), model(x).softmax(1), reduction="sum") / len(x)
    return natural + BETA * robust


def mart_loss(model: Classifier, x: Images, x_adv: Images, y: Labels) -> Tensor:
    """By probabilities, as in MART's code, with its constants that keep the logarithms finite."""
    clean, adv = model(x).softmax(1), model(x_adv)
    p = adv.softmax(1)
    runner_up = p.scatter(1, y[:, None], 0.0).argmax(1)
    robust = F.cross_entropy(adv, y) + F.nll_loss((1.0001 - p + 1e-12).log(), runner_up)
    unsure = 1.0000001 - clean.gather(1, y[:, None]).squeeze(1)
    divergence = F.kl_div((p + 1e-12).log(), clean, reduction="none").sum(1)
    return robust + BETA * (divergence * unsure).mean()


def train_step(
    model: Classifier,
    optimizer: torch.optim.Optimizer,
    x: Images,
    y: Labels,
    noise: Images,
    method: str,
    config: Config,
) -> Tensor:
    """Takes one step of a method as PART's authors do, and returns the loss."""
    model.eval()
    attack: dict[str, Any] = {"step_size": config.attack.step_size, "steps": config.attack.steps}
    eps, eps_low = config.eps, config.eps_low
    budget = budgets(model, x, eps=eps, eps_low=eps_low) if method.startswith("part") else eps
    if method in ("trades", "part-t"):
        x_adv, loss_of = trades_attack(model, x, budget, noise, **attack), trades_loss
    elif method in ("mart", "part-m"):
        start = 0.001 * noise / budget  # so that x + budget * start is where MART starts
        x_adv, loss_of = pgd(model, x, y, budget, start, gradient=by_grad, **attack), mart_loss
    else:
        # AT's attack is that of torchattacks, PART's is a loop of its own
        gradient = by_backward if method == "part" else by_grad
        x_adv, loss_of = pgd(model, x, y, budget, noise, gradient=gradient, **attack), at_loss
    model.train()
    optimizer.zero_grad()
    loss = loss_of(model, x, x_adv, y)
    loss.backward()
    optimizer.step()
    return loss.detach()
