"""How Auto-PGD walks in a ball: of l_inf or l2 (Croce and Hein 2020), or of l1 (Croce and Hein 2021, "Mind the box").

The budget of an l2 or l1 ball is its radius, one number for each sample, (b, 1, 1, 1); that of l_inf differs by pixel.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from pixelpart.attacks.ball import inside, project, project_l1, project_l2, unit
from pixelpart.attacks.search import State
from pixelpart.draws import Keys, hashed, hashed_normal
from pixelpart.types import Flags, Images, PerSample

MOMENTUM = 0.75  # the share of the new step in a move; the rest is the move before
RHO = 0.75  # a step is halved unless more than this share of the moves raised the loss

# in l1
WIDER = ((3.0, 0.3), (2.0, 0.3))  # the balls to begin with: radius in budgets, share of the moves
EVERY = 0.04  # share of a ball's moves from one checkpoint to the next
THINNER = 1.5  # a step changes so many times fewer pixels than the best point does; it is shortened as much
SPARSER = 0.95  # share of the changed pixels, below which they count as fewer
SHORTEST = 0.1  # step, in radii
STILL = 1e-6  # change of a pixel that is none but for rounding: a cut often takes off just what a step had put on


class Geometry(NamedTuple):
    """What of Auto-PGD depends on the norm."""

    looks: int  # at points: one more than moves, in each ball
    begin: Callable[[Images, Tensor, Keys], State]  # x, budget, keys: the first point, and what is remembered besides
    way: Callable[[Images], Images]  # what of a gradient a step is made of
    check: Callable[[State, PerSample], tuple[Flags, State]]  # who goes back to the best point; what is new in a state
    move: Callable[[Images, Images, State], State]  # from a point, by a way: the next point, and what goes with it
    inside: Callable[[State], Flags | None]  # which points may be taken; None: all


def linf(steps: int) -> Geometry:
    """Signs of the gradient, steps of 2 budgets at first; every point is inside the box of the budget."""
    checks = Checkpoints.of(steps)
    begin, check = partial(_begin_linf, checks), partial(_halve, checks)
    return Geometry(steps + 1, begin, Tensor.sign, check, _move_linf, lambda state: None)


def l2(steps: int) -> Geometry:
    """The gradient itself, steps of 2 radii at first."""
    checks = Checkpoints.of(steps)
    begin, check = partial(_begin_l2, checks), partial(_halve, checks)
    return Geometry(steps + 1, begin, unit, check, _move_l2, partial(_inside, "l2"))


def l1(steps: int) -> Geometry:
    """Signs of the largest entries of the gradient, steps of one radius at first, in balls that get smaller."""
    balls = Balls.of(steps)
    begin, check, move = partial(_begin_l1, balls), partial(_thin_out, balls), partial(_move_l1, balls)
    return Geometry(balls.looks, begin, lambda grad: grad, check, move, partial(_inside, "l1"))


GEOMETRIES: dict[str, Callable[[int], Geometry]] = {"linf": linf, "l2": l2, "l1": l1}


def wide(values: Tensor) -> Tensor:
    """A number for each sample, as one for each of its pixels."""
    return values[:, None, None, None]


def _inside(norm: str, state: State) -> Flags:
    return inside(state["point"], state["x"], state["budget"], norm=norm)


# l_inf and l2: momentum, and steps that are halved


class Checkpoints(NamedTuple):
    """After how many moves the step size is looked at: `first`, then each time `shorter` fewer, down to `least`."""

    first: int
    shorter: int
    least: int

    @classmethod
    def of(cls, steps: int) -> "Checkpoints":
        """22 %, 3 % and 6 % of all moves: the paper's p_1 = 0.22, p_{j+1} = p_j + max(p_j - p_{j-1} - 0.03, 0.06)."""
        return cls(*(max(int(share * steps), 1) for share in (0.22, 0.03, 0.06)))


def _begin_linf(checks: Checkpoints, x: Images, budget: Tensor, keys: Keys) -> State:
    """At x + budget * u / max|u|, with u uniform in [-1, 1]."""
    u = 2 * hashed(keys, x.shape[1:].numel()).to(x.dtype) - 1
    u = (u / (u.abs().amax(1, keepdim=True) + 1e-12)).view_as(x)
    return _begin_halving(checks, project(x + budget * u, x, budget)) | {
        "low": project(torch.zeros_like(x), x, budget),  # the ends of the ball, so that a projection is one operation
        "high": project(torch.ones_like(x), x, budget),
    }


def _begin_l2(checks: Checkpoints, x: Images, budget: Tensor, keys: Keys) -> State:
    """At x + budget * t / |t|, with t normal."""
    t = hashed_normal(keys, x.shape[1:].numel()).to(x.dtype).view_as(x)
    return _begin_halving(checks, project_l2(x + budget * unit(t), x, budget))


def _begin_halving(checks: Checkpoints, start: Images) -> State:
    nothing = start.new_zeros(len(start))
    count = torch.zeros_like(nothing, dtype=torch.long)
    return {
        "point": start,  # to be looked at next
        "before": start.clone(),  # where the last move began
        "loss": nothing,  # the reference holds the loss after the first move against 0, not against the start's
        "rises": count,  # moves since the last checkpoint that raised the loss
        "checked_loss": nothing - torch.inf,  # best_loss at the last checkpoint; the first one sees progress
        "halved": torch.zeros_like(count, dtype=torch.bool),  # whether the last checkpoint halved the step
        "scale": nothing + 2,  # the step size, in budgets
        "window": count + checks.first,  # moves between the last checkpoint and the next
        "due": count + checks.first,  # the step of the next checkpoint
    }


def _halve(checks: Checkpoints, state: State, loss: PerSample) -> tuple[Flags, State]:
    """At a checkpoint, steps are halved where too few moves have raised the loss, and those rows go back."""
    step, best_loss = state["step"], state["best_loss"]
    rises = state["rises"] + ((loss > state["loss"]) & (step > 0))
    due = step == state["due"]
    stalled = ~state["halved"] & (state["checked_loss"] >= best_loss)
    halve = due & ((rises <= RHO * state["window"]) | stalled)
    window = torch.where(due, (state["window"] - checks.shorter).clamp(min=checks.least), state["window"])
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
    """project(o + share (project(o + scale budget sign) - o) + (1 - MOMENTUM) (o - before)), with o the origin.

    At the first move the share is 1, and o is `before`.
    """
    low, high = state["low"], state["high"]
    reach = torch.addcmul(origin, sign, wide(state["scale"]) * state["budget"]).clamp(low, high)
    moved = torch.lerp(origin, reach, _share(state))
    return {"point": moved.add(origin - state["before"], alpha=1 - MOMENTUM).clamp(low, high), "before": origin}


def _move_l2(origin: Images, way: Images, state: State) -> State:
    """The same, with the gradient's unit vector for its sign."""
    x, budget = state["x"], state["budget"]
    reach = project_l2(torch.addcmul(origin, way, wide(state["scale"]) * budget), x, budget)
    moved = torch.lerp(origin, reach, _share(state)).add(origin - state["before"], alpha=1 - MOMENTUM)
    return {"point": project_l2(moved, x, budget), "before": origin}


def _share(state: State) -> Tensor:
    """That of the new step in a move; the first move has none before it."""
    return wide(torch.ones_like(state["scale"]).masked_fill(state["step"] > 0, MOMENTUM))


# l1: few pixels at a time, and balls that get smaller


class Balls(NamedTuple):
    """The balls that are gone through, each from the best point of the one before.

    Of each: the look it begins with, its radius in budgets, and the moves from one checkpoint to the next.
    """

    looks: int  # in all
    begins: tuple[int, ...]
    radii: tuple[float, ...]
    windows: tuple[int, ...]

    @classmethod
    def of(cls, steps: int) -> "Balls":
        """30 % of the moves at 3 budgets, 30 % at 2, the others at 1, as in AutoAttack; below 3 moves, all at 1."""
        wider = [(radius, math.ceil(share * steps)) for radius, share in WIDER] if steps > len(WIDER) else []
        balls = [*wider, (1.0, steps - sum(moves for _, moves in wider))]
        begins = tuple(itertools.accumulate((moves + 1 for _, moves in balls), initial=0))
        windows = tuple(max(int(EVERY * moves), 1) for _, moves in balls)
        return cls(begins[-1], begins[:-1], tuple(radius for radius, _ in balls), windows)

    def of_step(self, step: Tensor, values: Sequence[int | float], dtype: torch.dtype = torch.long) -> Tensor:
        """Of the values, one for each ball, that of the ball in which a step is."""
        found = torch.full_like(step, values[0], dtype=dtype)
        for begins, value in zip(self.begins[1:], values[1:], strict=True):
            found = found.masked_fill(step >= begins, value)
        return found

    def opens(self, step: Tensor) -> Tensor:
        """Whether a step is the first in its ball."""
        return step == self.of_step(step, self.begins)


def _begin_l1(balls: Balls, x: Images, budget: Tensor, keys: Keys) -> State:
    """At the projection of x + t, with t normal, onto the first ball."""
    t = hashed_normal(keys, x.shape[1:].numel()).to(x.dtype).view_as(x)
    return {
        "point": project_l1(x + t, x, balls.radii[0] * budget),  # to be looked at next
        "scale": x.new_ones(len(x)),  # the step size, in radii
        "changed": x.new_zeros(len(x)),  # pixels that the best point changed at the last checkpoint
        "few": x.new_zeros(len(x)),  # the share of the pixels that a step changes
        "due": torch.zeros_like(keys),  # the step of the next checkpoint
    }


def _thin_out(balls: Balls, state: State, _: PerSample) -> tuple[Flags, State]:
    """At a checkpoint, a step is made to change fewer pixels than the best point does.

    Where that point changes fewer than before, steps have full length again, and those rows go back; elsewhere steps
    get shorter. At the end of a ball all go back: the best point is projected onto the next one.
    """
    step, changed = state["step"], state["changed"]
    opens, closes = balls.opens(step), balls.opens(step + 1)
    due = step == state["due"]
    count = ((state["best"] - state["x"]).abs() > STILL).flatten(1).sum(1).to(changed.dtype)
    sparser = due & (count / changed < SPARSER)
    shorter = torch.where(sparser, 1, state["scale"] / THINNER).clamp(SHORTEST, 1)
    new = opens | due
    return sparser | closes, {
        "scale": torch.where(due, shorter, state["scale"]).masked_fill(opens, 1),
        "changed": torch.where(new, count, changed),
        "few": torch.where(new, count / state["x"][0].numel() / THINNER, state["few"]),
        "due": torch.where(new, step + balls.of_step(step, balls.windows), state["due"]),
        "best_loss": state["best_loss"].masked_fill(closes, -torch.inf),
    }


def _move_l1(balls: Balls, origin: Images, grad: Images, state: State) -> State:
    """project(o + scale radius s / |s|_1), with s the sign of the gradient's largest entries and 0 at the others."""
    following, size = state["step"] + 1, grad.abs()
    pixels = size[0].numel()
    rank = ((1 - state["few"]) * pixels).clamp(0, pixels - 1).long()
    least = size.flatten(1).sort(dim=1).values.gather(1, rank[:, None])
    sign = torch.where(size >= wide(least.squeeze(1)), grad.sign(), 0)
    scale = state["scale"].masked_fill(balls.opens(following), 0)
    radius = wide(balls.of_step(following, balls.radii, state["budget"].dtype)) * state["budget"]
    count = sign.abs().sum((1, 2, 3), keepdim=True)
    stepped = torch.addcmul(origin, sign, wide(scale) * radius / (count + 1e-10))
    return {"point": project_l1(stepped, state["x"], radius)}
