"""x, budget -> x_adv. A new attack is one file, and one entry in the table below."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from pixelpart.attacks.apgd import apgd, mm3
from pixelpart.attacks.autoattack import COMBINED, SEARCHES, VERSIONS, autoattack
from pixelpart.attacks.ball import draw_noise, project, start_point
from pixelpart.attacks.fab import fab
from pixelpart.attacks.mma import mma
from pixelpart.attacks.pgd import pgd
from pixelpart.attacks.square import square


@dataclass(frozen=True)
class Attack:
    """An attack as training and evaluation call it: run(model, x, y, budget, *, step_size, steps, start, ascend)."""

    run: Callable[..., Tensor]
    starts: int = 1  # number of start batches; if more than 1, `start` is a tensor (starts, b, c, h, w)
    takes_loss: bool = False  # whether it has a `loss` argument


ATTACKS = {"pgd": Attack(pgd, takes_loss=True), "mma": Attack(mma, starts=3)}

__all__ = [
    "ATTACKS",
    "COMBINED",
    "SEARCHES",
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


def __dir__() -> list[str]:
    return __all__
