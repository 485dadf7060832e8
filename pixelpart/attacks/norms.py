"""Auto-PGD's steps in l_inf and l2 (Croce and Hein 2020) and in l1 (Croce and Hein 2021, "Mind the box").

The budget of an l2 or l1 ball is its radius, one number per sample, (b, 1, 1, 1); that of l_inf may differ by pixel.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from pixelpart.attacks.ball import inside, project, project_l1, project_l2, unit
from pixelpart.attacks.search import State, per_row
from pixelpart.draws import Keys, hashed, hashed_normal
from pixelpart.types import Flags, Images, PerSample

MOMENTUM = 0.75  # weight of the new step in a move; the rest is the previous move
RHO = 0.75  # the step is halved unless more than this fraction of the moves raised the loss

# l1
LARGER_BALLS = ((3.0, 0.3), (2.0, 0.3))  # searched first: radius in budgets, fraction of the moves
CHECK_EVERY = 0.04  # fraction of a ball's moves between two checkpoints
SPARSITY_FACTOR = 1.5  # a step changes 1 / 1.5 of the pixels that the best point changes, and is shortened by 1.5
SPARSER = 0.95  # the best point counts as sparser if it changes less than this fraction of the pixels it did before
MIN_SCALE = 0.1  # of a step, in radii
ROUNDING = 1e-6  # smaller changes of a pixel are rounding: a projection often removes exactly what a step added


class Geometry(NamedTuple):
    """The parts of Auto-PGD that depend on the norm."""

    steps: int  # evaluated points: one more than moves, in each ball
    begin: Callable[[Images, Tensor, Keys], State]  # x, budget, keys -> the first point and the norm's own entries
    direction: Callable[[Images], Images]  # gradient -> what a step is made of
    adapt: Callable[[State, PerSample], tuple[Flags, State]]  # state, loss -> rows that return to `best`, new entries
    move: Callable[[Images, Images, State], State]  # origin, direction, state -> the next point
    inside: Callable[[State], Flags | None]  # which points are in the ball; None: all


def linf(steps: int) -> Geometry:
    """Steps along the sign of the gradient, of 2 budgets at first; every point is inside the budget."""
    checks = Checkpoints.of(steps)
    begin, adapt = partial(_begin_linf, checks), partial(_halve_steps, checks)
    return Geometry(steps + 1, begin, Tensor.sign, adapt, _move_linf, lambda state: None)


def l2(steps: int) -> Geometry:
    """Steps along the gradient, of 2 radii at first."""
    checks = Checkpoints.of(steps)
    begin, adapt = partial(_begin_l2, checks), partial(_halve_steps, checks)
    return Geometry(steps + 1, begin, unit, adapt, _move_l2, partial(_inside, "l2"))


def l1(steps: int) -> Geometry:
    """Steps along the signs of the largest gradient entries, of one radius at first, in balls that get smaller."""
    balls = Balls.of(steps)
    begin, adapt, move = partial(_begin_l1, balls), partial(_adapt_sparsity, balls), partial(_move_l1, balls)
    return Geometry(balls.steps, begin, lambda grad: grad, adapt, move, partial(_inside, "l1"))


GEOMETRIES: dict[str, Callable[[int], Geometry]] = {"linf": linf, "l2": l2, "l1": l1}


def _inside(norm: str, state: State) -> Flags:
    return inside(state["point"], state["x"], state["budget"], norm=norm)


# -- l_inf and l2: momentum, and steps that are halved


class Checkpoints(NamedTuple):
    """Moves up to a checkpoint: `first`, then each time `decrease` fewer, down to `least`."""

    first: int
    decrease: int
    least: int

    @classmethod
    def of(cls, steps: int) -> "Checkpoints":
        """22 %, 3 % and 6 % of all moves: the paper's p_1 = 0.22, p_{j+1} = p_j + max(p_j - p_{j-1} - 0.03, 0.06)."""
        return cls(*(max(int(share * steps), 1) for share in (0.22, 0.03, 0.06)))


def _begin_linf(checks: Checkpoints, x: Images, budget: Tensor, keys: Keys) -> State:
    """Starts at x + budget * u / max|u|, with u uniform in [-1, 1]."""
    u = 2 * hashed(keys, x.shape[1:].numel()).to(x.dtype) - 1
    u = (u / (u.abs().amax(1, keepdim=True) + 1e-12)).view_as(x)
    return _begin_halving(checks, project(x + budget * u, x, budget)) | {
        "low": project(torch.zeros_like(x), x, budget),  # the bounds of the ball, so that a projection is one clamp
        "high": project(torch.ones_like(x), x, budget),
    }


def _begin_l2(checks: Checkpoints, x: Images, budget: Tensor, keys: Keys) -> State:
    """Starts at x + budget * t / |t|, with t normal."""
    t = hashed_normal(keys, x.shape[1:].numel()).to(x.dtype).view_as(x)
    return _begin_halving(checks, project_l2(x + budget * unit(t), x, budget))


def _begin_halving(checks: Checkpoints, start: Images) -> State:
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
        "window": count + checks.first,  # moves between the last checkpoint and the next
        "due": count + checks.first,  # the step of the next checkpoint
    }


def _halve_steps(checks: Checkpoints, state: State, loss: PerSample) -> tuple[Flags, State]:
    """At a checkpoint, halves the step where too few moves raised the loss; those rows return to their best point."""
    step, best_loss = state["step"], state["best_loss"]
    rises = state["rises"] + ((loss > state["loss"]) & (step > 0))
    due = step == state["due"]
    stalled = ~state["halved"] & (state["checked_loss"] >= best_loss)
    halve = due & ((rises <= RHO * state["window"]) | stalled)
    window = torch.where(due, (state["window"] - checks.decrease).clamp(min=checks.least), state["window"])
    return halve, {
        "loss": torch.where(step > 0, loss, state["loss"]),
        "rises": rises.masked_fill(due, 0),
        "checked_loss": torch.where(due, best_loss, state["checked_loss"]),
        "halved": torch.where(due, halve, state["halved"]),
        "scale": torch.where(halve, state["scale"] / 2, state["scale"]),
        "window": window,
        "due": torch.where(due, step + window, state["due"]),
    }


def _move_linf(origin: Images, sign: Images, state: State) -> State:
    """project(o + share (project(o + scale budget sign) - o) + (1 - MOMENTUM) (o - previous)), with o the origin.

    At the first move the share is 1, and o is `previous`.
    """
    low, high = state["low"], state["high"]
    reach = torch.addcmul(origin, sign, per_row(state["scale"], origin) * state["budget"]).clamp(low, high)
    moved = torch.lerp(origin, reach, _step_share(state))
    return {"point": moved.add(origin - state["previous"], alpha=1 - MOMENTUM).clamp(low, high), "previous": origin}


def _move_l2(origin: Images, direction: Images, state: State) -> State:
    """The same, with the gradient's unit vector instead of its sign."""
    x, budget = state["x"], state["budget"]
    reach = project_l2(torch.addcmul(origin, direction, per_row(state["scale"], origin) * budget), x, budget)
    moved = torch.lerp(origin, reach, _step_share(state)).add(origin - state["previous"], alpha=1 - MOMENTUM)
    return {"point": project_l2(moved, x, budget), "previous": origin}


def _step_share(state: State) -> Tensor:
    """The weight of the new step in a move; the first move has no previous one."""
    return per_row(torch.ones_like(state["scale"]).masked_fill(state["step"] > 0, MOMENTUM), state["x"])


# -- l1: sparse steps, and balls that get smaller


class Balls(NamedTuple):
    """The balls that are searched in turn, each from the best point of the previous ball.

    For each ball: its first step, its radius in budgets, and the moves between two checkpoints.
    """

    steps: int  # in total
    first_steps: tuple[int, ...]
    radii: tuple[float, ...]
    windows: tuple[int, ...]

    @classmethod
    def of(cls, steps: int) -> "Balls":
        """30 % of the moves at 3 budgets, 30 % at 2, the rest at 1, as in AutoAttack; below 3 moves, all at 1."""
        larger = [(radius, math.ceil(share * steps)) for radius, share in LARGER_BALLS if steps > 2]
        balls = [*larger, (1.0, steps - sum(moves for _, moves in larger))]
        first_steps = tuple(itertools.accumulate((moves + 1 for _, moves in balls), initial=0))
        windows = tuple(max(int(CHECK_EVERY * moves), 1) for _, moves in balls)
        return cls(first_steps[-1], first_steps[:-1], tuple(radius for radius, _ in balls), windows)

    def of_step(self, step: Tensor, values: Sequence[int | float], dtype: torch.dtype = torch.long) -> Tensor:
        """The value of the ball that a step is in; there is one value per ball."""
        found = torch.full_like(step, values[0], dtype=dtype)
        for first_step, value in zip(self.first_steps[1:], values[1:], strict=True):
            found = found.masked_fill(step >= first_step, value)
        return found

    def is_first(self, step: Tensor) -> Tensor:
        """Whether a step is the first in its ball."""
        return step == self.of_step(step, self.first_steps)


def _begin_l1(balls: Balls, x: Images, budget: Tensor, keys: Keys) -> State:
    """Starts at the projection of x + t, with t normal, onto the first ball."""
    t = hashed_normal(keys, x.shape[1:].numel()).to(x.dtype).view_as(x)
    return {
        "point": project_l1(x + t, x, balls.radii[0] * budget),  # to be evaluated next
        "scale": x.new_ones(len(x)),  # the step size, in radii
        "changed": x.new_zeros(len(x)),  # number of pixels that the best point changed at the last checkpoint
        "density": x.new_zeros(len(x)),  # the fraction of the pixels that a step changes
        "due": torch.zeros_like(keys),  # the step of the next checkpoint
    }


def _adapt_sparsity(balls: Balls, state: State, _: PerSample) -> tuple[Flags, State]:
    """At a checkpoint, sets the number of pixels that a step changes to 2/3 of those that the best point changes.

    Where the best point has become sparser, steps get their full length again and the row returns to that point;
    elsewhere steps get shorter. At the end of a ball all rows return, and are projected onto the next ball.
    """
    step, changed = state["step"], state["changed"]
    first, last = balls.is_first(step), balls.is_first(step + 1)
    due = step == state["due"]
    count = ((state["best"] - state["x"]).abs() > ROUNDING).flatten(1).sum(1).to(changed.dtype)
    sparser = due & (count / changed < SPARSER)
    scale = torch.where(sparser, 1, state["scale"] / SPARSITY_FACTOR).clamp(MIN_SCALE, 1)
    new = first | due
    return sparser | last, {
        "scale": torch.where(due, scale, state["scale"]).masked_fill(first, 1),
        "changed": torch.where(new, count, changed),
        "density": torch.where(new, count / state["x"][0].numel() / SPARSITY_FACTOR, state["density"]),
        "due": torch.where(new, step + balls.of_step(step, balls.windows), state["due"]),
        "best_loss": state["best_loss"].masked_fill(last, -torch.inf),
    }


def _move_l1(balls: Balls, origin: Images, grad: Images, state: State) -> State:
    """project(o + scale radius s / |s|_1), with s the sign of the gradient's largest entries and 0 at the others."""
    following, size, budget = state["step"] + 1, grad.abs(), state["budget"]
    pixels = size[0].numel()
    rank = ((1 - state["density"]) * pixels).clamp(0, pixels - 1).long()
    least = size.flatten(1).sort(dim=1).values.gather(1, rank[:, None])
    sign = torch.where(size >= per_row(least, size), grad.sign(), 0)
    scale = state["scale"].masked_fill(balls.is_first(following), 0)
    radius = per_row(balls.of_step(following, balls.radii, budget.dtype), budget) * budget
    count = sign.abs().sum((1, 2, 3), keepdim=True)
    stepped = torch.addcmul(origin, sign, per_row(scale, origin) * radius / (count + 1e-10))
    return {"point": project_l1(stepped, state["x"], radius)}
