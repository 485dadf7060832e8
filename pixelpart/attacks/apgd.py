"""Auto-PGD (Croce and Hein 2020): gradient steps whose size is looked at for each sample now and then.

How a step is made, and when it is shortened, depends on the norm: see norms.py.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from pixelpart.attacks.norms import GEOMETRIES, Geometry, wide
from pixelpart.attacks.search import Search, State, keep, opening, run
from pixelpart.draws import Keys
from pixelpart.errors import UserError, choose
from pixelpart.losses import at_class, ce, dlr
from pixelpart.types import Budget, Flags, Images, Labels, Logits, Model, PerSample


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

    With 0 targets it climbs the loss "ce" (the default) or "dlr". With more it tries each of that many most likely
    wrong classes in turn, by "dlr" (the default: the targeted loss of AutoAttack) or "margin".

    In the norms "l2" and "l1" the budget is a radius: a float, or one for each sample, (b, 1, 1, 1).
    """
    search = apgd_search(loss=loss, steps=steps, targets=targets, restarts=restarts, norm=norm)
    return run(search, model, x, y, budget, generator=generator)


def apgd_search(
    *, loss: str | None = None, steps: int = 100, targets: int = 0, restarts: int = 1, norm: str = "linf"
) -> Search:
    """Auto-PGD as a search; its first step looks at the random start, so it has one more than there are moves.

    In l1 it goes through three balls, and looks at the point where it begins in each.
    """
    if steps < 0:
        raise UserError(f"steps {steps} must not be negative")
    table = TOWARDS if targets else AWAY
    loss = loss or ("dlr" if targets else "ce")
    loss_of = choose(table, loss, "loss with targets" if targets else "loss")
    fewest = 3 if loss == "dlr" and not targets else 2
    geometry = choose(GEOMETRIES, norm, "norm")(steps)
    begin, advance = partial(_begin, geometry), partial(_advance, geometry, loss_of)
    return Search(begin, advance, geometry.looks, targets, restarts, norm, fewest)


def dlr_towards(logits: Logits, y: Labels, target: Labels) -> PerSample:
    """(z_t - z_y) / (z_1st - (z_3rd + z_4th) / 2 + 1e-12) for the target t; Croce and Hein 2020, AutoAttack.

    Three classes have no 4th logit, and the ratio is to z_1st - z_3rd, as in the loss without target. With two the
    only ratio left is constant, and it is z_t - z_y itself.
    """
    lead = margin_towards(logits, y, target)
    if logits.shape[1] < 3:
        return lead
    top = logits.topk(min(4, logits.shape[1]), dim=1).values
    return lead / (top[:, 0] - top[:, 2:].mean(1) + 1e-12)


def margin_towards(logits: Logits, y: Labels, target: Labels) -> PerSample:
    """z_t - z_y for the target t."""
    return at_class(logits, target) - at_class(logits, y)


AWAY: dict[str, Callable[..., Tensor]] = {
    "ce": lambda logits, y, _: ce(logits, y),
    "dlr": lambda logits, y, _: dlr(logits, y),
}
TOWARDS: dict[str, Callable[..., Tensor]] = {"dlr": dlr_towards, "margin": margin_towards}


def _begin(geometry: Geometry, x: Images, y: Labels, budget: Tensor, keys: Keys, target: Labels) -> State:
    """The rows of samples at a random point of the ball."""
    own = geometry.begin(x, budget, keys)
    return opening(x, y, budget, keys, target) | {
        "best": own["point"].clone(),  # the point with the largest loss, and the way that the gradient has there
        "best_way": torch.zeros_like(x),
        "best_loss": x.new_full((len(x),), -torch.inf),
        **own,
    }


@torch.no_grad()
def _advance(geometry: Geometry, loss_of: Callable[..., Tensor], net: Model, state: State) -> State:
    """Every row looked at where it stands, its step size checked where that is due, and moved."""
    point = state["point"]
    with torch.enable_grad():
        leaf = point.detach().requires_grad_()
        logits = net(leaf).to(leaf.dtype)
        loss = loss_of(logits, state["y"], state["target"])
        (grad,) = torch.autograd.grad(loss.sum(), leaf)
    logits, loss, way = logits.detach(), loss.detach(), geometry.way(grad)

    better = loss > state["best_loss"]
    state = state | keep(state, point, logits, geometry.inside(state))
    state["best"] = _pick(better, point, state["best"])
    state["best_way"] = _pick(better, way, state["best_way"])
    state["best_loss"] = torch.where(better, loss, state["best_loss"])

    back, news = geometry.check(state, loss)
    origin = _pick(back, state["best"], point)
    move = geometry.move(origin, _pick(back, state["best_way"], way), state | news)
    return state | news | move | {"step": state["step"] + 1}


def _pick(flags: Flags, new: Images, old: Images) -> Images:
    """The rows of `new` that are flagged, the others of `old`."""
    return torch.where(wide(flags), new, old)
