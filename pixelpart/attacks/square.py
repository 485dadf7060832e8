"""Square attack (Andriushchenko et al. 2020), which uses only the logits, inside a budget that may differ by pixel."""

import math
from functools import partial

import torch
from torch import Tensor

from pixelpart.attacks.ball import project
from pixelpart.attacks.search import Search, State, initial_state, keep_best, per_row, run_search
from pixelpart.draws import Keys, hashed
from pixelpart.errors import UserError
from pixelpart.types import Budget, Images, Labels, Model

FIRST_SQUARES = (0, 11, 51, 201, 501, 1001, 2001, 4001, 6001, 8001)
SCHEDULE = [(first, 0.8 / 2**halvings) for halvings, first in enumerate(FIRST_SQUARES)]  # shares of the image

Schedule = list[tuple[int, float]]


def square(
    model: Model,
    x: Images,
    y: Labels,
    budget: Budget,
    *,
    queries: int = 5000,
    generator: torch.Generator | None = None,
) -> Images:
    """The images with the largest margin max_{k != y} z_k - z_y after `queries` random squares, kept if they raise it.

    It starts with vertical stripes, x +- budget, which take one more query. A square moves all its pixels by 2 budget,
    up or down by channel, and is projected back into the budget of x.
    """
    return run_search(square_search(queries), model, x, y, budget, generator=generator)


def square_search(queries: int = 5000) -> Search:
    """The search behind `square`; the schedule of sizes is not stretched to `queries`, as in AutoAttack."""
    if queries < 0:
        raise UserError(f"queries {queries} must not be negative")
    schedule = [(first, share) for first, share in SCHEDULE if first < queries]
    advance = partial(_advance, steps=queries + 1, schedule=schedule)
    return Search(_begin, advance, steps=queries + 1, leap=advance)


def side_of(share: float, h: int, w: int) -> int:
    """The side of a square that covers this share of the image, at least one pixel."""
    return min(max(round(math.sqrt(share * h * w)), 1), h, w)


def _begin(x: Images, y: Labels, budget: Tensor, keys: Keys, target: Labels) -> State:
    """x_adv is the striped image, not yet evaluated."""
    b, c, h, w = x.shape
    stripes, pixels = _signs(hashed(keys, c * w)).reshape(b, c, 1, w), budget.expand(-1, -1, h, w)
    return initial_state(x, y, budget, keys, target) | {"x_adv": project(x + pixels * stripes, x, pixels)}


@torch.no_grad()
def _advance(net: Model, state: State, ahead: int = 1, *, steps: int, schedule: Schedule) -> State:
    """Evaluates the next `ahead` proposals in one batch and keeps the first that improves the margin.

    This equals trying them one at a time; few are kept.
    """
    first, due = state["x_adv"], state["step"] < steps
    proposed = [_with_square(state, state["step"] + i, schedule) for i in range(ahead)]
    for x_new, logits in zip(proposed, net(torch.cat(proposed)).chunk(ahead), strict=True):
        new = keep_best(state, x_new, logits) | {"step": state["step"] + 1}
        state = state | {name: torch.where(per_row(due, tensor), tensor, state[name]) for name, tensor in new.items()}
        due = due & (state["x_adv"] == first).flatten(1).all(1) & (state["step"] < steps)
    return state


def _with_square(state: State, step: Tensor, schedule: Schedule) -> Images:
    """x_adv with the square of this step on it; at step 0 it has no pixels, and the stripes are evaluated."""
    x = state["x"]
    b, c, h, w = x.shape
    budget = state["budget"].expand(-1, -1, h, w)
    side = torch.zeros_like(step)
    for first, share in schedule:
        side = side.masked_fill(step > first, side_of(share, h, w))
    drawn = hashed(state["key"], 2 + c, counter=step)
    # the last position, h - side, is never drawn; neither is it in the authors' code
    rows, columns = (_span(n, (drawn[:, i] * (n - side)).long(), side) for i, n in enumerate((h, w)))
    window = rows[:, None, :, None] & columns[:, None, None, :]
    change = 2 * budget * _signs(drawn[:, 2:]).reshape(b, c, 1, 1)
    return project(state["x_adv"] + window * change, x, budget)


def _span(n: int, first: Tensor, length: Tensor) -> Tensor:
    """Which of n positions are in [first, first + length), row by row."""
    position = torch.arange(n, device=first.device)
    return (position >= first[:, None]) & (position < (first + length)[:, None])


def _signs(uniform: Tensor) -> Tensor:
    """-1 or 1, equally likely, for uniform numbers in [0, 1)."""
    return 2 * (uniform >= 0.5) - 1
