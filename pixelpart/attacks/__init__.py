"""x, budget -> x_adv. Every attack is called as attack(model, x, y, budget, *, step_size, steps, generator=None)."""

from collections.abc import Callable

from torch import Tensor

from pixelpart.attacks.ball import draw_noise, project, start_point
from pixelpart.attacks.mma import mma
from pixelpart.attacks.pgd import pgd

ATTACKS: dict[str, Callable[..., Tensor]] = {"pgd": pgd, "mma": mma}

__all__ = ["ATTACKS", "draw_noise", "mma", "pgd", "project", "start_point"]
