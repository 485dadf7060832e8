"""Auto-PGD (Croce and Hein 2020): gradient steps whose size is adapted for each sample at checkpoints; and MM3.

How a step is made and when it is shortened depends on the norm: l_inf is here, l2 and l1 are in norms.py.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from pixelpart.attacks.ball import project
from pixelpart.attacks.search import Search, State, initial_state, keep_best, per_row, run_search
from pixelpart.draws import Keys, hashed
from pixelpart.errors import UserError, choose
from pixelpart.losses import ce, dlr, targeted_dlr, targeted_margin
from pixelpart.types import Budget, Flags, Images, Labels, Model, PerSample

if TYPE_CHECKING:
    from pixelpart.attacks.norms import L1

MOMENTUM = 0.75  # weight of the new step in a move; the rest is the previous move
RHO = 0.75  # the step is halved unless more than this fraction of the moves raised the loss


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
    balls: dict[str, type[LInf | L1]] = {"linf": LInf}
    if norm != "linf":
        from pixelpart.attacks import norms  # late, since l2 and l1 build on l_inf

        balls |= {"l2": norms.L2, "l1": norms.L1}
    geometry = choose(balls, norm, "norm").of(steps)
    begin, advance = partial(_begin, geometry), partial(_advance, geometry, loss_of)
    return Search(begin, advance, geometry.steps, targets, restarts, norm, min_classes)


def mm3(
    model: Model, x: Images, y: Labels, budget: Budget, *, steps: int = 20, generator: torch.Generator | None = None
) -> Images:
    """Of the images Auto-PGD on z_t - z_y visits for the targets t, the one with the largest max_{k != y} z_k - z_y.

    The targets are the three wrong classes with the largest clean logits, or all if there are fewer: the minimum-margin
    attack as its authors evaluate with it (Gao et al. 2022).
    """
    return run_search(mm3_search(steps=steps), model, x, y, budget, generator=generator)


def mm3_search(*, steps: int = 20) -> Search:
    """MM3 as a search: Auto-PGD on the margin z_t - z_y, with one start per target."""
    return apgd_search(loss="margin", steps=steps, targets=3)


UNTARGETED: dict[str, Callable[..., Tensor]] = {
    "ce": lambda logits, y, _: ce(logits, y),
    "dlr": lambda logits, y, _: dlr(logits, y),
}
TARGETED: dict[str, Callable[..., Tensor]] = {"dlr": targeted_dlr, "margin": targeted_margin}


def _begin(geometry: "LInf | L1", x: Images, y: Labels, budget: Tensor, keys: Keys, target: Labels) -> State:
    """The state at a random point of the ball."""
    start = geometry.start(x, budget, keys)
    return initial_state(x, y, budget, keys, target) | {
        "best": start["point"].clone(),  # the point with the largest loss, and the direction of its gradient
        "best_direction": torch.zeros_like(x),
        "best_loss": x.new_full((len(x),), -torch.inf),
        **start,
    }


@torch.no_grad()
def _advance(geometry: "LInf | L1", loss_of: Callable[..., Tensor], net: Model, state: State) -> State:
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


class LInf(NamedTuple):
    """Steps along the sign of the gradient, of 2 budgets at first; every point is inside the budget.

    A step may be halved at checkpoints: after `first` moves, then each time after `decrease` fewer, down to `least`.
    """

    steps: int  # points evaluated: one more than moves
    first: int
    decrease: int
    least: int

    @classmethod
    def of(cls, moves: int) -> "LInf":
        """22 %, 3 % and 6 % of all moves: the paper's p_1 = 0.22, p_{j+1} = p_j + max(p_j - p_{j-1} - 0.03, 0.06)."""
        return cls(moves + 1, *(max(int(share * moves), 1) for share in (0.22, 0.03, 0.06)))

    def start(self, x: Images, budget: Tensor, keys: Keys) -> State:
        """The norm's own entries of the state: it starts at x + budget * u / max|u|, with u uniform in [-1, 1]."""
        u = 2 * hashed(keys, x.shape[1:].numel()).to(x.dtype) - 1
        u = (u / (u.abs().amax(1, keepdim=True) + 1e-12)).view_as(x)
        return self.state_at(project(x + budget * u, x, budget)) | {
            "low": project(torch.zeros_like(x), x, budget),  # the bounds of the ball, so that a projection is one clamp
            "high": project(torch.ones_like(x), x, budget),
        }

    def state_at(self, start: Images) -> State:
        """The norm's own entries of the state, with `start` as the first point."""
        zeros = start.new_zeros(len(start))
        count = torch.zeros_like(zeros, dtype=torch.long)
        return {
            "point": start,  # to be evaluated next
            "previous": start.clone(),  # where the last move started
            "loss": zeros,  # the authors' code compares the loss after the first move with 0, not with the start's
            "rises": count,  # moves since the last checkpoint that raised the loss
            "checked_loss": zeros - torch.inf,  # best_loss at the last checkpoint; the first checkpoint sees progress
            "halved": torch.zeros_like(count, dtype=torch.bool),  # whether the last checkpoint halved the step
            "scale": zeros + 2,  # the step size, in budgets
            "window": count + self.first,  # moves between the last checkpoint and the next
            "due": count + self.first,  # the step of the next checkpoint
        }

    def direction(self, grad: Images) -> Images:
        """What a step is made of."""
        return grad.sign()

    def adapt(self, state: State, loss: PerSample) -> tuple[Flags, State]:
        """Which rows return to their best point, and the changed entries.

        At a checkpoint, the step is halved where too few moves raised the loss; those rows return.
        """
        step, best_loss = state["step"], state["best_loss"]
        rises = state["rises"] + ((loss > state["loss"]) & (step > 0))
        due = step == state["due"]
        stalled = ~state["halved"] & (state["checked_loss"] >= best_loss)
        halve = due & ((rises <= RHO * state["window"]) | stalled)
        window = torch.where(due, (state["window"] - self.decrease).clamp(min=self.least), state["window"])
        return halve, {
            "loss": torch.where(step > 0, loss, state["loss"]),
            "rises": rises.masked_fill(due, 0),
            "checked_loss": torch.where(due, best_loss, state["checked_loss"]),
            "halved": torch.where(due, halve, state["halved"]),
            "scale": torch.where(halve, state["scale"] / 2, state["scale"]),
            "window": window,
            "due": torch.where(due, step + window, state["due"]),
        }

    def move(self, origin: Images, direction: Images, state: State) -> State:
        """project(o + share (project(o + scale budget sign) - o) + (1 - MOMENTUM) (o - previous)), with o the origin.

        At the first move the share is 1, and o is `previous`.
        """
        low, high = state["low"], state["high"]
        reach = torch.addcmul(origin, direction, per_row(state["scale"], origin) * state["budget"]).clamp(low, high)
        moved = torch.lerp(origin, reach, step_share(state))
        return {"point": moved.add(origin - state["previous"], alpha=1 - MOMENTUM).clamp(low, high), "previous": origin}

    def inside(self, state: State) -> Flags | None:
        """Which points are in the ball; None if all are."""
        return None


def step_share(state: State) -> Tensor:
    """The weight of the new step in a move; the first move has no previous one."""
    return per_row(torch.ones_like(state["scale"]).masked_fill(state["step"] > 0, MOMENTUM), state["x"])
