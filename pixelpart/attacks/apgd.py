"""Auto-PGD (Croce and Hein 2020): signed gradient steps with momentum, halved for each sample that stops rising."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from pixelpart.attacks.ball import project
from pixelpart.attacks.search import Search, State, keep, opening, run
from pixelpart.draws import Keys, hashed
from pixelpart.errors import UserError, choose
from pixelpart.losses import at_class, ce, dlr
from pixelpart.types import Budget, Flags, Images, Labels, Logits, Model, PerSample

MOMENTUM = 0.75  # the share of the new step in a move; the rest is the move before
RHO = 0.75  # a step is halved unless more than this share of the moves raised the loss


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
    generator: torch.Generator | None = None,
) -> Images:
    """Of the images Auto-PGD visits in `steps` moves, the one with the largest margin max_{k != y} z_k - z_y.

    With 0 targets it climbs the loss "ce" (the default) or "dlr". With more it tries each of that many most likely
    wrong classes in turn, by "dlr" (the default: the targeted loss of AutoAttack) or "margin".
    """
    search = apgd_search(loss=loss, steps=steps, targets=targets, restarts=restarts)
    return run(search, model, x, y, budget, generator=generator)


def apgd_search(*, loss: str | None = None, steps: int = 100, targets: int = 0, restarts: int = 1) -> Search:
    """Auto-PGD as a search; its first step looks at the random start, so it has one more than there are moves."""
    if steps < 0:
        raise UserError(f"steps {steps} must not be negative")
    table = TOWARDS if targets else AWAY
    loss_of = choose(table, loss or ("dlr" if targets else "ce"), "loss with targets" if targets else "loss")
    checks = Checkpoints.of(steps)
    return Search(partial(_begin, checks), partial(_advance, checks, loss_of), steps + 1, targets, restarts)


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


class Checkpoints(NamedTuple):
    """After how many moves the step size is looked at: `first`, then each time `shorter` fewer, down to `least`."""

    first: int
    shorter: int
    least: int

    @classmethod
    def of(cls, steps: int) -> "Checkpoints":
        """22 %, 3 % and 6 % of all moves: the paper's p_1 = 0.22, p_{j+1} = p_j + max(p_j - p_{j-1} - 0.03, 0.06)."""
        return cls(*(max(int(share * steps), 1) for share in (0.22, 0.03, 0.06)))


def _begin(checks: Checkpoints, x: Images, y: Labels, budget: Tensor, keys: Keys, target: Labels) -> State:
    """The rows of samples at x + budget * u / max|u|, with u uniform in [-1, 1]."""
    u = 2 * hashed(keys, x.shape[1:].numel()).to(x.dtype) - 1
    u = (u / (u.abs().amax(1, keepdim=True) + 1e-12)).view_as(x)
    start = project(x + budget * u, x, budget)
    nothing, count = x.new_zeros(len(x)), torch.zeros_like(y)
    return opening(x, y, budget, keys, target) | {
        "low": project(torch.zeros_like(x), x, budget),  # the ends of the ball, so that a projection is one operation
        "high": project(torch.ones_like(x), x, budget),
        "point": start,  # to be looked at next
        "before": start.clone(),  # where the last move began
        "loss": nothing,  # the reference holds the loss after the first move against 0, not against the start's
        "rises": count,  # moves since the last checkpoint that raised the loss
        "best": start.clone(),  # the point with the largest loss, and the sign of the gradient there
        "best_sign": torch.zeros_like(x),
        "best_loss": nothing - torch.inf,
        "checked_loss": nothing - torch.inf,  # best_loss at the last checkpoint; the first one sees progress
        "halved": torch.zeros_like(y, dtype=torch.bool),  # whether the last checkpoint halved the step
        "scale": nothing + 2,  # the step size, in budgets
        "window": count + checks.first,  # moves between the last checkpoint and the next
        "due": count + checks.first,  # the step of the next checkpoint
    }


@torch.no_grad()
def _advance(checks: Checkpoints, loss_of: Callable[..., Tensor], net: Model, state: State) -> State:
    """Every row looked at where it stands, its step size checked where that is due, and moved."""
    point, step = state["point"], state["step"]
    with torch.enable_grad():
        leaf = point.detach().requires_grad_()
        logits = net(leaf).to(leaf.dtype)
        loss = loss_of(logits, state["y"], state["target"])
        (grad,) = torch.autograd.grad(loss.sum(), leaf)
    logits, loss, sign = logits.detach(), loss.detach(), grad.sign()

    better = loss > state["best_loss"]
    best, best_sign = _pick(better, point, state["best"]), _pick(better, sign, state["best_sign"])
    best_loss = torch.where(better, loss, state["best_loss"])
    rises = state["rises"] + ((loss > state["loss"]) & (step > 0))

    due = step == state["due"]
    stalled = ~state["halved"] & (state["checked_loss"] >= best_loss)
    halve = due & ((rises <= RHO * state["window"]) | stalled)
    window = torch.where(due, (state["window"] - checks.shorter).clamp(min=checks.least), state["window"])
    scale = torch.where(halve, state["scale"] / 2, state["scale"])
    origin = _pick(halve, best, point)  # a halved step sets out from the best point
    share = torch.ones_like(scale).masked_fill(step > 0, MOMENTUM)  # the first move has none before it

    return (
        state
        | keep(state, point, logits)
        | {
            "step": step + 1,
            "point": _move(origin, _pick(halve, best_sign, sign), scale, share, state),
            "before": origin,
            "loss": torch.where(step > 0, loss, state["loss"]),
            "rises": rises.masked_fill(due, 0),
            "best": best,
            "best_sign": best_sign,
            "best_loss": best_loss,
            "checked_loss": torch.where(due, best_loss, state["checked_loss"]),
            "halved": torch.where(due, halve, state["halved"]),
            "scale": scale,
            "window": window,
            "due": torch.where(due, step + window, state["due"]),
        }
    )


def _move(origin: Images, sign: Images, scale: PerSample, share: PerSample, state: State) -> Images:
    """project(o + share (project(o + scale budget sign) - o) + (1 - MOMENTUM) (o - before)), with o the origin.

    At the first move the share is 1, and o is `before`.
    """
    low, high = state["low"], state["high"]
    reach = torch.addcmul(origin, sign, _wide(scale) * state["budget"]).clamp(low, high)
    moved = torch.lerp(origin, reach, _wide(share))
    return moved.add(origin - state["before"], alpha=1 - MOMENTUM).clamp(low, high)


def _wide(values: Tensor) -> Tensor:
    return values[:, None, None, None]


def _pick(flags: Flags, new: Images, old: Images) -> Images:
    """The rows of `new` that are flagged, the others of `old`."""
    return torch.where(_wide(flags), new, old)
