"""Which samples remain correct under one attack.

A sample counts as broken only if the model errs, in fp32, on an input inside the ball and inside [0,1]. The image
itself is such an input, so attacks run only on samples that are correct to begin with, and robust accuracy is never
above natural accuracy.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from pixelpart import draws
from pixelpart.attacks import ATTACKS
from pixelpart.attacks.autoattack import run_searches
from pixelpart.attacks.batching import Samples, Try
from pixelpart.attacks.search import is_correct
from pixelpart.evaluation.adaptive import attack_budget, try_inside
from pixelpart.evaluation.attack_spec import ADAPTIVE_IN, AUTOATTACKS, MASK_BUDGET, AttackSpec
from pixelpart.evaluation.images import ImageSet, check_adversarial, errs_inside, logits_of, start_images
from pixelpart.evaluation.partial import PartialResult
from pixelpart.evaluation.reference import under_reference
from pixelpart.runtime.progress import Progress, silent
from pixelpart.runtime.world import World
from pixelpart.types import Flags, Images, Labels, Logits, Model
from pixelpart.view.check import COMPARED_IMAGES, trusted_view

Attempt = Callable[[Tensor, Images, Labels, int], Flags]  # sample numbers, images, labels, number of the try -> broken
ImageProgress = Callable[[int, int], None]  # images settled so far, how many of them are correct


class Measured(NamedTuple):
    """The samples that remain correct, the attack as it ran, and how many samples each of its searches left."""

    correct: Flags
    spec: AttackSpec
    left_after: dict[str, int]  # samples that remain correct after each of its searches


def clean_logits(model: nn.Module, pictures: ImageSet, on_done: Callable[[int], None] = lambda done: None) -> Logits:
    """The model's logits of all images as they are; `on_done` is called with the number of images done."""
    logits = []
    for index in torch.arange(len(pictures)).split(pictures.batch_size):
        logits.append(logits_of(model, pictures.take(index)[0], "clean images"))
        on_done(int(index[-1]) + 1)
    return torch.cat(logits)


def natural(model: nn.Module, pictures: ImageSet, on_done: Callable[[int], None] = lambda done: None) -> Flags:
    """Which images the model classifies correctly as they are."""
    return is_correct(clean_logits(model, pictures, on_done).cpu(), pictures.labels)


def measure(
    model: nn.Module,
    pictures: ImageSet,
    spec: AttackSpec,
    clean: Logits,
    *,
    partial: PartialResult | None = None,
    progress: Progress = silent,
    say: Callable[[str], None] = lambda line: None,
    world: World | None = None,
) -> Measured:
    """The samples that remain correct under one attack; `clean` are the logits of all images as they are.

    `partial` has the tries that a killed evaluation had settled, and gets every new one. Each process of a world
    attacks every size-th sample, and all return the same result.
    """
    partial, world = partial or PartialResult(), world or World()
    correct = is_correct(clean.cpu(), pictures.labels)
    if spec.kind == "natural":
        progress(spec.name, len(correct), len(correct), f"{float(correct.double().mean()):.2%} correct")
        return Measured(correct, spec, {})
    attacked, n = correct & (torch.arange(len(correct)) % world.size == world.rank), len(correct)
    scale = int(correct.sum()) / max(1, int(attacked.sum()))  # from this process's samples to all

    def report(done: int, left: int) -> None:
        progress(spec.name, done, n, f"{min(1.0, left * scale / max(1, done)):.2%} correct")

    def report_search(search: str, done: int, total: int, left: int) -> None:
        title = spec.name if len(spec.searches) == 1 else f"{spec.name} {search}"
        progress(title, done, total, f"{min(1.0, left * scale / n):.2%} correct")

    if spec.engine == "reference":
        version = AUTOATTACKS[spec.kind]
        left = under_reference(model, pictures, correct=attacked, eps=spec.eps, version=version, seed=spec.seed)
        report(n, int(left.sum()))
        return Measured(world.any_of(left), spec, {})
    view: Model = model
    if spec.searches or spec.search != "fp32":
        view, reason = trusted_view(model, pictures.first(COMPARED_IMAGES)[0], spec.search)
        if reason:
            say(reason)
            spec = dataclasses.replace(spec, search="fp32")  # for the stored settings; the key keeps the requested one
    if not spec.searches:
        try_once: Callable[..., Flags] = try_inside if spec.kind == ADAPTIVE_IN else try_steps
        attempt = functools.partial(try_once, spec, model, view)
        left = after_tries(
            attempt, pictures, correct=attacked, tries=spec.tries, report=report, name=spec.kind, partial=partial
        )
        return Measured(world.any_of(left), spec, {})
    left, left_after = run_searches(
        spec.searches,
        view,
        Samples(
            pictures.take, spec.eps, clean, functools.partial(logits_of, model, kind="adversarial images"), spec.seed
        ),
        attacked,
        slots=pictures.batch_size,
        settled=partial.settled,
        on_settled=partial.add,
        progress=report_search,
        say=functools.cache(say),  # each search may report the same line
    )
    counts = world.total(torch.tensor(list(left_after.values())))
    return Measured(world.any_of(left), spec, dict(zip(left_after, counts.tolist(), strict=True)))


def try_steps(
    spec: AttackSpec, model: nn.Module, view: Model, index: Tensor, x: Images, y: Labels, restart: int
) -> Flags:
    """Which samples one restart breaks; `view` gives the gradients, `model` the mask and the verdict."""
    kind, budget = MASK_BUDGET.get(spec.kind, spec.kind), attack_budget(spec, model, x, y)
    start = start_images(index, x, budget, kind=kind, steps=spec.steps, seed=spec.seed, restart=restart)
    with torch.random.fork_rng([x.device] if x.is_cuda else []):  # for an attack that draws from torch's generator
        draws.seed_torch(spec.seed, f"torch's generator in attack/{kind}{spec.steps}", restart, int(index[0]))
        x_adv = ATTACKS[kind].run(view, x, y, budget, step_size=spec.step_size, steps=spec.steps, start=start)
    check_adversarial(x_adv, x, budget, attack=kind)
    return errs_inside(model, x, x_adv, y, eps=budget)


def after_tries(
    attempt: Attempt,
    pictures: ImageSet,
    *,
    correct: Flags,
    tries: int,
    report: ImageProgress,
    name: str,
    partial: PartialResult,
) -> Flags:
    """Which of the correct samples no try breaks; a broken sample is not tried again, nor are tries of `partial`."""
    correct, samples, settled = correct.clone(), correct.nonzero()[:, 0], partial.settled
    for batch in samples.split(pictures.batch_size) if len(samples) else ():
        for number in range(tries):
            known = {n: settled[try_] for n in batch.tolist() if (try_ := Try(name, n, number)) in settled}
            correct[[n for n, broken in known.items() if broken]] = False
            live = torch.tensor([n for n in batch.tolist() if correct[n] and n not in known], dtype=torch.long)
            if not len(live):
                continue
            broken = attempt(live, *pictures.take(live), number).cpu()
            correct[live[broken]] = False
            for n, wrong in zip(live.tolist(), broken.tolist(), strict=True):
                partial.add(Try(name, n, number), wrong)
        done = int(batch[-1]) + 1  # samples in between that were wrong from the start are settled too
        report(done, int(correct[:done].sum()))
    report(len(pictures), int(correct.sum()))
    return correct
