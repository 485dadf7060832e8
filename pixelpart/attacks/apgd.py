"""Auto-PGD (Croce and Hein 2020): gradient steps whose size is adapted for each sample at checkpoints.

How a step is made and when it is shortened depends on the norm: see norms.py.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from pixelpart.attacks.norms import GEOMETRIES, Geometry
from pixelpart.attacks.search import Search, State, initial_state, keep_best, per_row, run_search
from pixelpart.draws import Keys
from pixelpart.errors import UserError, choose
from pixelpart.losses import ce, dlr, targeted_dlr, targeted_margin
from pixelpart.types import Budget, Flags, Images, Labels, Model


def apgd(
    model: Model,
    x: Images,
    y: Labels,
    budget: Budget,
    *,
    loss: str | None = None,
    steps: int = 100,
    targets: int = 0,
    restarts: int = 1,
    norm: str = "linf",
    generator: torch.Generator | None = None,
) -> Images:
    """Of the images Auto-PGD visits in `steps` moves, the one with the largest margin max_{k != y} z_k - z_y.

    With 0 targets it maximises the loss "ce" (default) or "dlr". With n targets it tries each of the n most likely
    wrong classes in turn, by "dlr" (default; the targeted loss of AutoAttack) or "margin".

    In the norms "l2" and "l1" the budget is a radius: a float, or one per sample, (b, 1, 1, 1).
    """
    search = apgd_search(loss=loss, steps=steps, targets=targets, restarts=restarts, norm=norm)
    return run_search(search, model, x, y, budget, generator=generator)


def apgd_search(
    *, loss: str | None = None, steps: int = 100, targets: int = 0, restarts: int = 1, norm: str = "linf"
) -> Search:
    """Auto-PGD as a search; its first step evaluates the random start, so it takes one step more than moves.

    In l1 it searches three balls of decreasing radius, and evaluates the first point of each.
    """
    if steps < 0:
        raise UserError(f"steps {steps} must not be negative")
    table = TARGETED if targets else UNTARGETED
    loss = loss or ("dlr" if targets else "ce")
    loss_of = choose(table, loss, "loss with targets" if targets else "loss")
    min_classes = 3 if loss == "dlr" and not targets else 2
    geometry = choose(GEOMETRIES, norm, "norm")(steps)
    begin, advance = partial(_begin, geometry), partial(_advance, geometry, loss_of)
    return Search(begin, advance, geometry.steps, targets, restarts, norm, min_classes)


UNTARGETED: dict[str, Callable[..., Tensor]] = {
    "ce": lambda logits, y, _: ce(logits, y),
    "dlr": lambda logits, y, _: dlr(logits, y),
}
TARGETED: dict[str, Callable[..., Tensor]] = {"dlr": targeted_dlr, "margin": targeted_margin}


def _begin(geometry: Geometry, x: Images, y: Labels, budget: Tensor, keys: Keys, target: Labels) -> State:
    """The state at a random point of the ball."""
    own = geometry.begin(x, budget, keys)
    return initial_state(x, y, budget, keys, target) | {
        "best": own["point"].clone(),  # the point with the largest loss, and the direction of its gradient
        "best_direction": torch.zeros_like(x),
        "best_loss": x.new_full((len(x),), -torch.inf),
        **own,
    }


@torch.no_grad()
def _advance(geometry: Geometry, loss_of: Callable[..., Tensor], net: Model, state: State) -> State:
    """Every row evaluated at its point, its step size adapted where a checkpoint is due, and moved."""
    point = state["point"]
    with torch.enable_grad():
        leaf = point.detach().requires_grad_()
        logits = net(leaf).to(leaf.dtype)
        loss = loss_of(logits, state["y"], state["target"])
        (grad,) = torch.autograd.grad(loss.sum(), leaf)
    logits, loss, direction = logits.detach(), loss.detach(), geometry.direction(grad)

    better = loss > state["best_loss"]
    state = state | keep_best(state, point, logits, geometry.inside(state))
    state["best"] = _pick(better, point, state["best"])
    state["best_direction"] = _pick(better, direction, state["best_direction"])
    state["best_loss"] = torch.where(better, loss, state["best_loss"])

    go_back, changes = geometry.adapt(state, loss)
    origin = _pick(go_back, state["best"], point)
    move = geometry.move(origin, _pick(go_back, state["best_direction"], direction), state | changes)
    return state | changes | move | {"step": state["step"] + 1}


def _pick(flags: Flags, new: Images, old: Images) -> Images:
    """The flagged rows of `new`, the other rows of `old`."""
    return torch.where(per_row(flags, new), new, old)
