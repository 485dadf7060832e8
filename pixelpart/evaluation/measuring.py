"""One attack, measured: by whoever runs attacks of its kind, in one process or in several that share the images."""

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

from pixelpart.evaluation import accuracy, adaptive
from pixelpart.evaluation.attack_spec import AUTOATTACKS, AttackSpec
from pixelpart.evaluation.checks import sanity
from pixelpart.evaluation.journal import Journal
from pixelpart.evaluation.reference import under_reference
from pixelpart.evaluation.searching import under_searches
from pixelpart.evaluation.store import Entry, FlagArray
from pixelpart.evaluation.target import Target
from pixelpart.runtime.world import World
from pixelpart.types import Flags, Model
from pixelpart.view.check import PROBES, trusted_view

Progress = Callable[[str, int, int, float], None]  # attack, how much of it is done, of how much, share still right


@dataclass(frozen=True)
class Work:
    """What is to be done, where it is written down, and who is told."""

    attack: AttackSpec
    facts: Entry
    batch_size: int
    journal: Journal
    tell: Progress
    warnings: list[str]
    say: Callable[[str], None]
    used: dict[str, Any] = field(default_factory=dict)  # settings that turned out otherwise than asked for

    def warning(self, line: str) -> None:
        """Goes with the figure, and is told once."""
        if line not in self.warnings:
            self.warnings.append(line)
            self.say(line)


def measure(model: nn.Module, target: Target, work: Work, clean: FlagArray | None, world: World) -> FlagArray:
    """Which samples one attack leaves right; each process of a world attacks every so many-th of those right at all."""
    n = len(target.pictures)
    if work.attack.kind == "natural":
        told = functools.partial(_report, work, n)
        return accuracy.natural(model, target.pictures, batch_size=work.batch_size, report=told).numpy()
    assert clean is not None
    tell, mine = work.tell, clean & (np.arange(n) % world.size == world.rank)
    # its own share of what is right tells a process how the whole stands
    scale = float(clean.sum()) / max(1, float(mine.sum()))
    own = dataclasses.replace(
        work, tell=lambda name, done, total, share: tell(name, done, total, min(1.0, share * scale))
    )
    stands = _under_attack(model, target, own, torch.from_numpy(mine))
    if len(work.attack.parts) > 1 and work.facts["settings"]["engine"] == "own":
        for warning in sanity.square_warnings(_after_each(work, torch.from_numpy(mine), world), n):
            work.warning(warning)
    return world.any_of(stands).numpy()


def _under_attack(model: nn.Module, target: Target, work: Work, right: Flags) -> Flags:
    """Which of the samples that are right the attack leaves so, by whoever runs attacks of its kind."""
    name, facts, pictures = work.attack.name, work.facts, target.pictures
    limits = {"eps": facts["eps"], "seed": facts["seed"]}
    if not work.attack.parts:
        adapted = work.attack.kind in adaptive.ADAPTIVE
        run: Callable[..., Flags] = adaptive.under_adaptive if adapted else accuracy.under_attack
        return run(
            model,
            pictures,
            net=_searched_through(model, target, work),
            kind=work.attack.kind,
            right=right,
            **limits,
            **{name: value for name, value in facts["settings"].items() if name != "search"},
            batch_size=work.batch_size,
            journal=work.journal,
            report=functools.partial(_report, work, len(pictures)),
        )
    if facts["settings"]["engine"] == "reference":
        version = AUTOATTACKS[work.attack.plain]
        flags = under_reference(model, pictures, right=right, **limits, version=version, batch_size=work.batch_size)
        _report(work, len(pictures), len(pictures), int(flags.sum()))
        return flags
    single = len(work.attack.parts) == 1
    return under_searches(
        model,
        pictures,
        work.attack.parts,
        right=right,
        **limits,
        search=facts["settings"]["search"],
        slots=work.batch_size,
        journal=work.journal,
        tell=lambda part, done, total, share: work.tell(name if single else f"{name} {part}", done, total, share),
        say=functools.cache(work.say),  # how the search is done is told once; it does not bear on the figure
        used=lambda precision: work.used.update(search=precision),
    )


def _searched_through(model: nn.Module, target: Target, work: Work) -> Model:
    """What the gradients are taken of: the model itself, or a view in the precision that was asked for."""
    search = work.facts["settings"].get("search", "fp32")
    if search == "fp32":
        return model
    probes, _ = target.pictures.take(torch.arange(min(PROBES, len(target.pictures))))
    net, reason = trusted_view(model, probes, search)
    if reason:
        work.say(reason)
        work.used.update(search="fp32")
    return net


def _after_each(work: Work, right: Flags, world: World) -> dict[str, int]:
    """How many of all images stand after each part, over all processes."""
    after, standing = dict[str, int](), right.clone()
    for number, part in enumerate(work.attack.parts):
        standing[list(work.journal.broken(number))] = False
        after[part] = int(world.any_of(standing).sum())
    return after


def _report(work: Work, n: int, settled: int, right: int) -> None:
    work.tell(work.attack.name, settled, n, right / max(settled, 1))
