"""Optimisers whose state exists from the start at fixed addresses, and schedules of the learning rate.

Loading a checkpoint copies into the state. The learning rate is a tensor, so that a captured step reads the current
rate. A schedule is a function of the epoch, which may be fractional, and of the number of epochs.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pixelpart.config import OptimConfig

BETA2 = 0.999  # AdamW's decay of the squared gradient
# Names of the state in torch, and in a checkpoint.
SLOTS = {"momentum_buffer": "momentum", "exp_avg": "mean_gradient", "exp_avg_sq": "squared_gradient", "step": "steps"}


def sgd(model: nn.Module, lr: Tensor, optim: OptimConfig) -> Optimizer:
    """m <- momentum m + g + weight_decay w; w <- w - lr m."""
    optimizer = torch.optim.SGD(
        model.parameters(), lr=lr, momentum=optim.momentum, weight_decay=optim.weight_decay, fused=True
    )
    for parameter in model.parameters():
        optimizer.state[parameter] = {"momentum_buffer": torch.zeros_like(parameter)}
    return optimizer


def adamw(model: nn.Module, lr: Tensor, optim: OptimConfig) -> Optimizer:
    """w <- w - lr weight_decay w, then w <- w - lr m / (sqrt(v) + 1e-8) with the means m of g and v of g^2.

    Loshchilov and Hutter 2019, with their bias correction of both means.
    """
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=lr,
        betas=(optim.momentum, BETA2),
        weight_decay=optim.weight_decay,
        fused=True,
        capturable=True,
    )
    optimizer._warned_capturable_if_run_uncaptured = True  # type: ignore[attr-defined]  # running uncaptured is intended on the plain path
    for parameter in model.parameters():
        optimizer.state[parameter] = {
            "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }
    return optimizer


OPTIMIZERS: dict[str, Callable[[nn.Module, Tensor, OptimConfig], Optimizer]] = {"sgd": sgd, "adamw": adamw}


def state_of(optimizer: Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """The optimiser's own tensors, no copies, named SLOT.PARAMETER as in a checkpoint."""
    return {
        f"{SLOTS[slot]}.{name}": tensor
        for name, parameter in model.named_parameters()
        for slot, tensor in optimizer.state[parameter].items()
    }


def step_decay(optim: OptimConfig, epoch: float, epochs: int) -> float:
    """lr, divided by 10 once for every epoch of `decay_at` that is reached."""
    return optim.lr * 0.1 ** sum(epoch >= at for at in optim.decay_at)


def cyclic(optim: OptimConfig, epoch: float, epochs: int) -> float:
    """From zero up to lr over the `warmup` share of the run, then down to zero, both linearly."""
    progress = epoch / epochs
    if progress < optim.warmup:
        return optim.lr * progress / optim.warmup
    return optim.lr * (1 - progress) / (1 - optim.warmup)


def cosine(optim: OptimConfig, epoch: float, epochs: int) -> float:
    """From zero up to lr over the `warmup` share of the run, linearly, then down to zero along half a cosine."""
    progress = epoch / epochs
    if progress < optim.warmup:
        return optim.lr * progress / optim.warmup
    return optim.lr * (1 + math.cos(math.pi * (progress - optim.warmup) / (1 - optim.warmup))) / 2


def constant(optim: OptimConfig, epoch: float, epochs: int) -> float:
    """lr at every epoch."""
    return optim.lr


SCHEDULES: dict[str, Callable[[OptimConfig, float, int], float]] = {
    "step": step_decay,
    "cyclic": cyclic,
    "cosine": cosine,
    "constant": constant,
}
