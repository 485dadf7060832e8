"""AutoAttack (Croce and Hein 2020): several attacks one after the other, each at what those before it left standing."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from pixelpart.attacks.apgd import apgd_search
from pixelpart.attacks.ball import check, inside, seeded
from pixelpart.attacks.batching import Settle, Sweep, Try
from pixelpart.attacks.fab import fab_search
from pixelpart.attacks.mm3 import mm3_search
from pixelpart.attacks.search import Search, State, leads_nowhere, numbered, spread, targets_of
from pixelpart.attacks.square import square_search
from pixelpart.draws import keys as keys_of
from pixelpart.errors import UserError, choose
from pixelpart.runtime.precision import PRECISIONS, ieee_fp32
from pixelpart.types import Budget, Flags, Images, Labels, Logits, Model
from pixelpart.view.borrow import borrowed
from pixelpart.view.check import PROBES, agrees, view_for_search

SEARCHES: dict[str, Search] = {
    "apgd-ce": apgd_search(),
    "apgd-dlr": apgd_search(loss="dlr"),
    "apgd-t": apgd_search(targets=9),
    "fab": fab_search(targets=0),
    "fab-t": fab_search(),
    "mm3": mm3_search(),
    "square": square_search(),
    "apgd-ce-l2": apgd_search(norm="l2"),
    "apgd-t-l2": apgd_search(targets=9, norm="l2"),
    "apgd-ce-l1": apgd_search(norm="l1"),
    "apgd-t-l1": apgd_search(targets=9, norm="l1"),
}

# APGD-CE, then APGD-T at what it leaves: apgd, apgd-l2, apgd-l1
TOGETHER: dict[str, dict[str, Search]] = {
    f"apgd{norm}": {name: SEARCHES[name] for name in (f"apgd-ce{norm}", f"apgd-t{norm}")} for norm in ("", "-l2", "-l1")
}

# where the gradient leads nowhere chance decides, and a second run of Square, with draws of its own, breaks more
LAST = {"square-again": dataclasses.replace(SEARCHES["square"], blind=True)}

VERSIONS: dict[str, dict[str, Search]] = {
    "standard": {name: SEARCHES[name] for name in ("apgd-ce", "apgd-t", "fab-t", "square")} | LAST,
    "plus": {
        "apgd-ce": apgd_search(restarts=5),
        "apgd-dlr": apgd_search(loss="dlr", restarts=5),
        "fab": fab_search(targets=0, restarts=5),
        "square": SEARCHES["square"],
        "apgd-t": SEARCHES["apgd-t"],
        "fab-t": SEARCHES["fab-t"],
    }
    | LAST,
}

Take = Callable[[Tensor], tuple[Images, Labels, Tensor]]  # sample numbers to images, labels and budgets


def autoattack(
    model: Model,
    x: Images,
    y: Labels,
    budget: Budget,
    *,
    version: str = "standard",
    search: str = "fp32",
    slots: int | None = None,
    generator: torch.Generator | None = None,
) -> Flags:
    """Which images the model still classifies right after all attacks of the version, standard or plus.

    The search may run in bf16; IEEE fp32 decides. Images are attacked `slots` at a time. Of two classes there is no
    dlr, and plus goes without its apgd-dlr.
    """
    parts = choose(VERSIONS, version, "version")
    dtype = choose(PRECISIONS, search, "search")
    check(x, budget, step_size=0.0, steps=0)
    generator = generator or seeded(x)
    seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))
    room = spread(budget, x)
    if slots is not None and slots < 1:
        raise UserError(f"slots {slots} is not a whole number above 0")
    slots = slots or default_slots(x.device)
    with torch.no_grad(), ieee_fp32(x.device), borrowed(model) as judge:
        clean = torch.cat([judge(some) for some in x.split(slots)])
        net = view_for_search(judge, dtype, x.device)
        if net is not judge and not agrees(net, x[:PROBES], clean[:PROBES], dtype):
            net = judge
        if not bool(((y >= 0) & (y < clean.shape[1])).all()):
            raise UserError(f"labels lie in [{int(y.min())}, {int(y.max())}]; the model knows {clean.shape[1]} classes")
        robust = is_right(clean, y)

        def take(samples: Tensor) -> tuple[Images, Labels, Tensor]:
            return x[samples], y[samples], room[samples]

        for name, part in suited(parts, clean.shape[1]).items():
            samples = samples_for(part, net, take, robust.nonzero()[:, 0].tolist(), slots=slots)
            tries = all_tries(part, samples, clean.shape[1])
            robust[list(hunt(name, part, net, judge, take, clean, tries, seed=seed, slots=slots))] = False
    return robust


def hunt(
    name: str,
    search: Search,
    net: Model,
    judge: Model,
    take: Take,
    clean: Logits,
    tries: Sequence[Try],
    *,
    seed: int,
    slots: int,
    settle: Settle = lambda one, broken: None,
    say: Callable[[str], None] = lambda line: None,
) -> set[int]:
    """The samples that one search breaks; it goes through `net`, and `judge` decides.

    `clean` holds the logits of all samples as they are, by number. What a try draws depends on the seed, the name, its
    sample and its number alone.
    """

    def begin(rows: list[Try]) -> State:
        samples, numbers = torch.tensor(rows, device=clean.device).unbind(1)
        x, y, budget = take(samples)
        target = targets_of(clean[samples], y, numbers // search.restarts) if search.targets else y
        keys = numbered(keys_of(seed, f"attack/{name}", samples, numbers), numbers, search.restarts)
        return search.begin(x, y, budget, keys, target)

    def confirm(rows: list[Try], x_adv: Images) -> Flags:
        x, y, budget = take(torch.tensor([sample for sample, _ in rows], device=clean.device))
        return ~is_right(judge(x_adv), y) & inside(x_adv, x, budget, norm=search.norm)

    return Sweep(search, net, begin, confirm, slots, say)(tries, settle)


def suited(parts: Mapping[str, Search], classes: int) -> dict[str, Search]:
    """The searches that can be made with so many classes."""
    return {name: part for name, part in parts.items() if part.fewest <= classes}


def is_right(logits: Logits, y: Labels) -> Flags:
    """Where the label's logit is the largest; NaN says nothing, so it is not right."""
    return (logits.argmax(1) == y) & ~logits.isnan().any(1)


def default_slots(device: torch.device) -> int:
    return 1024 if device.type == "cuda" else 128


def samples_for(search: Search, net: Model, take: Take, standing: Sequence[int], *, slots: int) -> list[int]:
    """Which of the samples that stand are tried: all, or for a blind search those whose gradient leads nowhere."""
    if not search.blind or not standing:
        return list(standing)
    batches = torch.tensor(standing, dtype=torch.long).split(slots)
    return [sample for some in batches for sample in some[leads_nowhere(net, *take(some)).cpu()].tolist()]


def all_tries(search: Search, samples: Sequence[int], classes: int) -> list[Try]:
    """Every sample with its first try, then every sample with its second, and so on."""
    return [(sample, number) for number in range(search.tries(classes)) for sample in samples]
