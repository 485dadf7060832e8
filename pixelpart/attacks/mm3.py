"""Minimum-margin attack as its authors evaluate with it (Gao et al. 2022): Auto-PGD towards three wrong classes."""

import torch

from pixelpart.attacks.apgd import apgd_search
from pixelpart.attacks.search import Search, run_search
from pixelpart.types import Budget, Images, Labels, Model


def mm3(
    model: Model, x: Images, y: Labels, budget: Budget, *, steps: int = 20, generator: torch.Generator | None = None
) -> Images:
    """Of the images Auto-PGD on z_t - z_y visits for the targets t, the one with the largest max_{k != y} z_k - z_y.

    The targets are the three wrong classes with the largest clean logits, or all if there are fewer.
    """
    return run_search(mm3_search(steps=steps), model, x, y, budget, generator=generator)


def mm3_search(*, steps: int = 20) -> Search:
    """MM3 as a search: Auto-PGD on the margin z_t - z_y, with one start per target."""
    return apgd_search(loss="margin", steps=steps, targets=3)
