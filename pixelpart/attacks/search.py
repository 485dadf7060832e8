"""Attacks as searches: they look for an error step by step, each sample on its own, so that samples may enter and
leave the batch.

A search is two functions on states. A state is a dict of tensors with one row per sample. `begin` makes the rows of new
samples without calling the model. `advance` takes all rows one step further, each by its own `state["step"]`: rows of
one batch may be at different steps. `advance` consists of tensor operations only and never waits for the device, so
that it can be captured as a CUDA graph.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from pixelpart.attacks.ball import check_attack_inputs, check_attack_labels, default_generator
from pixelpart.draws import Keys
from pixelpart.errors import UserError
from pixelpart.losses import margin, without
from pixelpart.types import Budget, Flags, Images, Labels, Logits, Model
from pixelpart.view.borrow import FrozenView, borrowed

State = dict[str, Tensor]


@dataclass(frozen=True)
class Search:
    """`begin(x, y, budget, keys, target)`, then `steps` times `advance(model, state)`.

    A sample that is not broken is tried again with other keys, `restarts` times for each of the `targets` most likely
    wrong classes; with 0 targets the search is untargeted and `target` is the label. A key contains the number of its
    restart: see `keys_of_try`. `norm` is linf, or l2 or l1, where the budget is a radius.

    `leap(model, state, n)` is for searches whose steps rarely change the image: it takes each row up to n steps
    further, and stops at the first that does.
    """

    begin: Callable[[Images, Labels, Tensor, Keys, Labels], State]
    advance: Callable[[Model, State], State]
    steps: int
    targets: int = 0
    restarts: int = 1
    norm: str = "linf"
    min_classes: int = 2
    leap: Callable[[Model, State, int], State] | None = None

    def __post_init__(self) -> None:
        if self.targets < 0 or self.restarts < 1:
            raise UserError(f"targets {self.targets} must be at least 0, restarts {self.restarts} at least 1")

    def tries(self, classes: int) -> int:
        """The largest number of tries per sample."""
        return self.restarts * max(1, min(self.targets, classes - 1))


def initial_state(x: Images, y: Labels, budget: Tensor, keys: Keys, target: Labels) -> State:
    """The entries that every search's state has.

    x_adv is the best image so far by its margin, max_{k != y} z_k - z_y; hit says whether x_adv is new since the last
    check and the searched model errs on it.
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


def keep_best(state: State, x_new: Images, logits: Logits, inside: Flags | None = None) -> State:
    """x_adv, margin and hit after the model has given these logits for x_new.

    `inside` flags the images that are allowed (default: all). If the searched model returns NaN, the image is kept as a
    candidate unless an error was already found; the full-precision model decides.
    """
    reached = margin(logits.to(state["margin"].dtype), state["y"])
    better, unknown = reached > state["margin"], reached.isnan() & (state["margin"] < 0)
    if inside is not None:
        better, unknown = better & inside, unknown & inside
    return {
        "x_adv": torch.where((better | unknown)[:, None, None, None], x_new, state["x_adv"]),
        "margin": torch.where(better, reached, state["margin"]),
        "hit": state["hit"] | (better & (reached >= 0)) | unknown,
    }


def is_correct(logits: Logits, y: Labels) -> Flags:
    """Where the label's logit is the largest; False where a logit is NaN."""
    return (logits.argmax(1) == y) & ~logits.isnan().any(1)


def has_no_direction(grads: Images) -> Flags:
    """Where every entry of the gradient is zero or not finite: an attack cannot follow it."""
    return ~(grads.isfinite() & (grads != 0)).flatten(1).any(1)


def per_row(values: Tensor, like: Tensor) -> Tensor:
    """One value per sample, shaped so that it broadcasts over the other dimensions of `like`."""
    return values.view(-1, *[1] * (like.ndim - 1))


def budget_per_sample(budget: Budget, x: Images) -> Tensor:
    """The budget as a tensor with one row per sample."""
    if isinstance(budget, Tensor):
        return budget.to(x.dtype).expand(len(x), *budget.shape[1:])
    return x.new_full((len(x), 1, 1, 1), budget)


def keys_of_try(keys: Keys, number: int | Int[Tensor, " b"], restarts: int) -> Keys:
    """The keys for the try of this number, changed so that key % restarts is the number of its restart, from 0."""
    return keys - keys % restarts + number % restarts


def target_classes(logits: Logits, y: Labels, rank: int | Int[Tensor, " b"]) -> Labels:
    """The wrong class of this rank by the logits; rank 0 is the most likely."""
    order = without(logits, y).argsort(dim=1, descending=True, stable=True)
    return order.gather(1, (torch.zeros_like(y) + rank)[:, None]).squeeze(1)


@torch.no_grad()
def run_search(
    search: Search, model: Model, x: Images, y: Labels, budget: Budget, *, generator: torch.Generator | None = None
) -> Images:
    """The image with the largest margin that the search finds for each sample, over all its tries."""
    if not isinstance(model, FrozenView):
        check_attack_inputs(x, budget, step_size=0.0, steps=search.steps, norm=search.norm)
    generator = generator or default_generator(x)
    with borrowed(model) as net:
        clean = net(x)
        if not isinstance(model, FrozenView):
            check_attack_labels(y, clean.shape[1], n=len(x))
        best, best_margin = x, torch.full_like(clean[:, 0], -torch.inf, dtype=x.dtype)
        for number in range(search.tries(clean.shape[1])):
            target = target_classes(clean, y, number // search.restarts) if search.targets else y
            keys = torch.randint(2**62, (len(x),), generator=generator, device=generator.device).to(x.device)
            keys = keys_of_try(keys, number, search.restarts)
            state = search.begin(x, y, budget_per_sample(budget, x), keys, target)
            for _ in range(search.steps):
                state = search.advance(net, state)
            better = state["margin"] > best_margin
            best = torch.where(better[:, None, None, None], state["x_adv"], best)
            best_margin = torch.where(better, state["margin"], best_margin)
    return best
