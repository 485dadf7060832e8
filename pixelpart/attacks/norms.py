"""Auto-PGD's steps in l2 (Croce and Hein 2020) and in l1 (Croce and Hein 2021, "Mind the box").

The budget is the ball's radius, one number per sample, (b, 1, 1, 1).
"""

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pixelpart.attacks.apgd import MOMENTUM, LInf, step_share
from pixelpart.attacks.ball import inside, project_l1, project_l2, unit
from pixelpart.attacks.search import State, per_row
from pixelpart.draws import Keys, hashed_normal
from pixelpart.types import Flags, Images, PerSample

LARGER_BALLS = ((3.0, 0.3), (2.0, 0.3))  # searched first: radius in budgets, fraction of the moves
CHECK_EVERY = 0.04  # fraction of a ball's moves between two checkpoints
SPARSITY_FACTOR = 1.5  # a step changes 1 / 1.5 of the pixels that the best point changes, and is shortened by 1.5
SPARSER = 0.95  # the best point counts as sparser if it changes less than this fraction of the pixels it did before
MIN_SCALE = 0.1  # of a step, in radii
ROUNDING = 1e-6  # smaller changes of a pixel are rounding: a projection often removes exactly what a step added


class L2(LInf):
    """Steps along the gradient, of 2 radii at first."""

    def start(self, x: Images, budget: Tensor, keys: Keys) -> State:
        """Starts at x + budget * t / |t|, with t normal."""
        t = hashed_normal(keys, x.shape[1:].numel()).to(x.dtype).view_as(x)
        return self.state_at(project_l2(x + budget * unit(t), x, budget))

    def direction(self, grad: Images) -> Images:
        return unit(grad)

    def move(self, origin: Images, direction: Images, state: State) -> State:
        """As in l_inf, with the gradient's unit vector instead of its sign."""
        x, budget = state["x"], state["budget"]
        reach = project_l2(torch.addcmul(origin, direction, per_row(state["scale"], origin) * budget), x, budget)
        moved = torch.lerp(origin, reach, step_share(state)).add(origin - state["previous"], alpha=1 - MOMENTUM)
        return {"point": project_l2(moved, x, budget), "previous": origin}

    def inside(self, state: State) -> Flags | None:
        return inside(state["point"], state["x"], state["budget"], norm="l2")


class L1(NamedTuple):
    """Steps along the signs of the largest gradient entries, of one radius at first, in balls that get smaller.

    The balls are searched in turn, each from the best point of the previous ball. For each ball: its first step, its
    radius in budgets, and the moves between two checkpoints.
    """

    steps: int  # points evaluated: one more than moves, in each ball
    first_steps: tuple[int, ...]
    radii: tuple[float, ...]
    windows: tuple[int, ...]

    @classmethod
    def of(cls, moves: int) -> "L1":
        """30 % of the moves at 3 budgets, 30 % at 2, the rest at 1, as in AutoAttack; below 3 moves, all at 1."""
        larger = [(radius, math.ceil(share * moves)) for radius, share in LARGER_BALLS if moves > 2]
        balls = [*larger, (1.0, moves - sum(count for _, count in larger))]
        first_steps = tuple(itertools.accumulate((count + 1 for _, count in balls), initial=0))
        windows = tuple(max(int(CHECK_EVERY * count), 1) for _, count in balls)
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

    def start(self, x: Images, budget: Tensor, keys: Keys) -> State:
        """Starts at the projection of x + t, with t normal, onto the first ball."""
        t = hashed_normal(keys, x.shape[1:].numel()).to(x.dtype).view_as(x)
        return {
            "point": project_l1(x + t, x, self.radii[0] * budget),  # to be evaluated next
            "scale": x.new_ones(len(x)),  # the step size, in radii
            "changed": x.new_zeros(len(x)),  # number of pixels that the best point changed at the last checkpoint
            "density": x.new_zeros(len(x)),  # the fraction of the pixels that a step changes
            "due": torch.zeros_like(keys),  # the step of the next checkpoint
        }

    def direction(self, grad: Images) -> Images:
        return grad

    def adapt(self, state: State, loss: PerSample) -> tuple[Flags, State]:
        """At a checkpoint, sets the number of pixels that a step changes to 2/3 of those that the best point changes.

        Where the best point has become sparser, steps get their full length again and the row returns to that point;
        elsewhere steps get shorter. At the end of a ball all rows return, and are projected onto the next ball.
        """
        step, changed = state["step"], state["changed"]
        first, last = self.is_first(step), self.is_first(step + 1)
        due = step == state["due"]
        count = ((state["best"] - state["x"]).abs() > ROUNDING).flatten(1).sum(1).to(changed.dtype)
        sparser = due & (count / changed < SPARSER)
        scale = torch.where(sparser, 1, state["scale"] / SPARSITY_FACTOR).clamp(MIN_SCALE, 1)
        new = first | due
        return sparser | last, {
            "scale": torch.where(due, scale, state["scale"]).masked_fill(first, 1),
            "changed": torch.where(new, count, changed),
            "density": torch.where(new, count / state["x"][0].numel() / SPARSITY_FACTOR, state["density"]),
            "due": torch.where(new, step + self.of_step(step, self.windows), state["due"]),
            "best_loss": state["best_loss"].masked_fill(last, -torch.inf),
        }

    def move(self, origin: Images, direction: Images, state: State) -> State:
        """project(o + scale radius s / |s|_1), s the sign of the gradient's largest entries, else 0."""
        following, size, budget = state["step"] + 1, direction.abs(), state["budget"]
        pixels = size[0].numel()
        rank = ((1 - state["density"]) * pixels).clamp(0, pixels - 1).long()
        least = size.flatten(1).sort(dim=1).values.gather(1, rank[:, None])
        sign = torch.where(size >= per_row(least, size), direction.sign(), 0)
        scale = state["scale"].masked_fill(self.is_first(following), 0)
        radius = per_row(self.of_step(following, self.radii, budget.dtype), budget) * budget
        count = sign.abs().sum((1, 2, 3), keepdim=True)
        stepped = torch.addcmul(origin, sign, per_row(scale, origin) * radius / (count + 1e-10))
        return {"point": project_l1(stepped, state["x"], radius)}

    def inside(self, state: State) -> Flags | None:
        return inside(state["point"], state["x"], state["budget"], norm="l1")
