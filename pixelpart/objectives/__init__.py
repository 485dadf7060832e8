"""x, x_adv, y -> loss. An objective also has the loss and the start of its inner attack."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from pixelpart.objectives.at import at
from pixelpart.objectives.mart import mart
from pixelpart.objectives.trades import trades


@dataclass(frozen=True)
class Objective:
    loss: Callable[..., Tensor]  # loss(model, x, x_adv, y), with y labels or probabilities, and beta=... if weighted
    inner: str  # the inner attack's loss, a name in losses.LOSSES
    start: str  # the inner attack's start
    weighted: bool = True  # whether the loss takes a beta


OBJECTIVES = {
    "at": Objective(at, inner="ce", start="uniform", weighted=False),
    "trades": Objective(trades, inner="kl", start="normal"),
    "mart": Objective(mart, inner="ce", start="normal"),
}

__all__ = ["OBJECTIVES", "Objective", "at", "mart", "trades"]
