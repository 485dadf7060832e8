"""Attacks that look for an error step by step, each sample on its own, so that samples may come and go.

A search is two functions on states. A state is a dict of tensors, one row a sample. `begin` makes the rows of new
samples without asking the model. `advance` takes all rows one step on, each by its own `state["step"]`: samples in one
batch may be at different steps. It is made of tensor operations alone, without waiting for the device, so that it can
be captured as a graph.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from pixelpart.attacks.ball import check, seeded
from pixelpart.draws import Keys
from pixelpart.errors import UserError
from pixelpart.losses import margin, without
from pixelpart.types import Budget, Flags, Images, Labels, Logits, Model
from pixelpart.view.borrow import FrozenView, borrowed

State = dict[str, Tensor]


@dataclass(frozen=True)
class Search:
    """How one is run: `begin(x, y, budget, keys, target)`, then `advance(net, state)` as often as `steps` says.

    A sample that is not broken is tried again with other keys, `restarts` times for each of the `targets` most likely
    wrong classes; with 0 targets it aims at none, and `target` is the label. A key tells its restart: see `numbered`.
    The norm says in which ball it stays: linf, or l2 or l1, whose budget is a radius. With less than `fewest` classes
    it has nothing to climb.

    Where most steps change nothing there may be a `leap(net, state, ahead)`: for each row so many steps at once, or as
    many as it takes to change the image.
    """

    begin: Callable[[Images, Labels, Tensor, Keys, Labels], State]
    advance: Callable[[Model, State], State]
    steps: int
    targets: int = 0
    restarts: int = 1
    norm: str = "linf"
    fewest: int = 2
    leap: Callable[[Model, State, int], State] | None = None

    def __post_init__(self) -> None:
        if self.targets < 0 or self.restarts < 1:
            raise UserError(f"targets {self.targets} must not be negative, restarts {self.restarts} not below 1")

    def tries(self, classes: int) -> int:
        """How often a sample is tried at most."""
        return self.restarts * max(1, min(self.targets, classes - 1))


def opening(x: Images, y: Labels, budget: Tensor, keys: Keys, target: Labels) -> State:
    """The part of a state that every search has.

    x_adv is the image to be judged, by its margin (max_{k != y} z_k - z_y) the best so far; hit, whether it has
    changed since it was last looked at and the searched model errs there.
    """
    return {
        "x": x,
        "y": y,
        "budget": budget,
        "key": keys,
        "target": target,
        "step": torch.zeros_like(y),
        "x_adv": x.clone(),
        "margin": x.new_full((len(x),), -torch.inf),
        "hit": torch.zeros_like(y, dtype=torch.bool),
    }


def keep(state: State, x_new: Images, logits: Logits, inside: Flags | None = None) -> State:
    """x_adv, margin and hit, brought up to date with images and what the model says of them.

    `inside` tells which of the images may be taken at all. One on which the model says NaN is taken where no error has
    been found yet, and leaves the margin as it is: it is for the model itself to tell.
    """
    reached = margin(logits.to(state["margin"].dtype), state["y"])
    better, unsaid = reached > state["margin"], reached.isnan() & (state["margin"] < 0)
    if inside is not None:
        better, unsaid = better & inside, unsaid & inside
    return {
        "x_adv": torch.where((better | unsaid)[:, None, None, None], x_new, state["x_adv"]),
        "margin": torch.where(better, reached, state["margin"]),
        "hit": state["hit"] | (better & (reached >= 0)) | unsaid,
    }


def is_correct(logits: Logits, y: Labels) -> Flags:
    """Where the label's logit is the largest; False where a logit is NaN."""
    return (logits.argmax(1) == y) & ~logits.isnan().any(1)


def has_no_direction(grads: Images) -> Flags:
    """Where every entry of the gradient is zero or not finite: an attack cannot follow it."""
    return ~(grads.isfinite() & (grads != 0)).flatten(1).any(1)


def wide(flags: Flags, like: Tensor) -> Tensor:
    """A flag for each sample, in a shape that goes with the tensor's."""
    return flags.view(-1, *[1] * (like.ndim - 1))


def spread(budget: Budget, x: Images) -> Tensor:
    """The budget as a tensor with a row for each sample."""
    if isinstance(budget, Tensor):
        return budget.to(x.dtype).expand(len(x), *budget.shape[1:])
    return x.new_full((len(x), 1, 1, 1), budget)


def numbered(keys: Keys, number: int | Int[Tensor, " b"], restarts: int) -> Keys:
    """The keys for a try of this number, moved so that key % restarts is the number of its restart, from 0."""
    return keys - keys % restarts + number % restarts


def targets_of(logits: Logits, y: Labels, ranks: int | Int[Tensor, " b"]) -> Labels:
    """The wrong class of this rank, 0 being the likeliest, by the logits."""
    order = without(logits, y).argsort(dim=1, descending=True, stable=True)
    return order.gather(1, (torch.zeros_like(y) + ranks)[:, None]).squeeze(1)


@torch.no_grad()
def run(
    search: Search, model: Model, x: Images, y: Labels, budget: Budget, *, generator: torch.Generator | None = None
) -> Images:
    """The image with the largest margin that the search finds for each sample, over all its tries."""
    if not isinstance(model, FrozenView):
        check(x, budget, step_size=0.0, steps=search.steps, norm=search.norm)
    generator = generator or seeded(x)
    with borrowed(model) as net:
        clean = net(x)
        best, best_margin = x, torch.full_like(clean[:, 0], -torch.inf, dtype=x.dtype)
        for number in range(search.tries(clean.shape[1])):
            target = targets_of(clean, y, number // search.restarts) if search.targets else y
            keys = torch.randint(2**62, (len(x),), generator=generator, device=generator.device).to(x.device)
            keys = numbered(keys, number, search.restarts)
            state = search.begin(x, y, spread(budget, x), keys, target)
            for _ in range(search.steps):
                state = search.advance(net, state)
            better = state["margin"] > best_margin
            best = torch.where(better[:, None, None, None], state["x_adv"], best)
            best_margin = torch.where(better, state["margin"], best_margin)
    return best
