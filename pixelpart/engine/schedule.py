"""The learning rate as a function of the epoch, which may be fractional."""

import math
from collections.abc import Callable

from pixelpart.config import OptimConfig


def step(optim: OptimConfig, epoch: float, epochs: int) -> float:
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
    return optim.lr


Schedule = Callable[[OptimConfig, float, int], float]
SCHEDULES: dict[str, Schedule] = {"step": step, "cyclic": cyclic, "cosine": cosine, "constant": constant}
