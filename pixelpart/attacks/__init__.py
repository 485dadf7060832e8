"""x, budget -> x_adv. A new attack is one file, and one entry in the table below."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from pixelpart.attacks.apgd import apgd
from pixelpart.attacks.autoattack import SEARCHES, TOGETHER, VERSIONS, autoattack
from pixelpart.attacks.ball import draw_noise, project, start_point
from pixelpart.attacks.fab import fab
from pixelpart.attacks.mm3 import mm3
from pixelpart.attacks.mma import mma
from pixelpart.attacks.pgd import pgd
from pixelpart.attacks.square import square


@dataclass(frozen=True)
class Attack:
    """How training and evaluation call one: run(model, x, y, budget, *, step_size, steps, start=..., ascend=...)."""

    run: Callable[..., Tensor]
    starts: int = 1  # start images it takes: one batch, or with more a tensor (starts, b, c, h, w)
    takes_loss: bool = False  # whether `loss` chooses what it maximises


ATTACKS = {"pgd": Attack(pgd, takes_loss=True), "mma": Attack(mma, starts=3)}

__all__ = [
    "ATTACKS",
    "SEARCHES",
    "TOGETHER",
    "VERSIONS",
    "Attack",
    "apgd",
    "autoattack",
    "draw_noise",
    "fab",
    "mm3",
    "mma",
    "pgd",
    "project",
    "square",
    "start_point",
]
