"""`check`: does a model resist attacks, or only their gradients?

Athalye, Carlini and Wagner (2018) list five behaviours that an honest model does not show; the paper's appendix goes
through them one by one. Each is measured here, has a rule, and gets a verdict.
"""

import functools
import itertools
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pixelpart import data as sets
from pixelpart import defaults
from pixelpart.attacks import pgd
from pixelpart.attacks.autoattack import default_slots
from pixelpart.attacks.ball import start_point
from pixelpart.config import write_fraction
from pixelpart.errors import UserError
from pixelpart.evaluation import accuracy, cache, guards, identity
from pixelpart.evaluation.accuracy import Attempt, after_tries, errs_inside, start_images, start_noise
from pixelpart.evaluation.asked import AUTOATTACKS, in_range
from pixelpart.evaluation.pictures import Pictures
from pixelpart.evaluation.subject import Subject, resolve
from pixelpart.evaluation.suite import machine
from pixelpart.evaluation.surrogate import SMALL, train_surrogate
from pixelpart.frozen import frozen
from pixelpart.precision import full_precision
from pixelpart.run import Run
from pixelpart.runfolder import atomic_write
from pixelpart.types import Flags, Images, Labels, Model

SCHEMA = 1  # layout of check.json
IMAGES = 1000  # looked at unless told otherwise
STEPS = 20
POINTS = 100  # sampled in the ball of each image
# Shares of the images; one image is always allowed.
REST = 0.01  # that may be left where nothing should be
ELSEWHERE = 0.02  # that may fall to another attack alone; to another random start of PGD-20 about 1 % do
WHITE_BOX = ("apgd-ce", "apgd-t", "fab-t")  # AutoAttack's parts that follow gradients
HALF = 0.5  # with this eps every image can be made grey, about which a model can be right for one class alone

EXPECTED, SUSPICIOUS, SKIPPED = "as expected", "suspicious", "skipped"
Progress = Callable[[str, int, int], None]  # what is being done, how much of it, of how much


@dataclass(frozen=True)
class Behaviour:
    """One of the five: what was found, in words and numbers, the rule it was held to, and the verdict."""

    name: str
    found: str
    rule: str
    verdict: str
    numbers: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Report:
    """The five behaviours, what else speaks against the figures, and what was looked at."""

    behaviours: list[Behaviour]
    doubts: list[str]
    facts: dict[str, Any]
    kept: Path | None = None  # the check.json

    def __getitem__(self, name: str) -> Behaviour:
        return next(one for one in self.behaviours if one.name == name)

    @property
    def verdict(self) -> str:
        """Suspicious if one behaviour is, or if there is a doubt."""
        bad = self.doubts or any(one.verdict == SUSPICIOUS for one in self.behaviours)
        return SUSPICIOUS if bad else EXPECTED

    def as_json(self) -> dict[str, Any]:
        found = [asdict(one) for one in self.behaviours]
        return {
            "schema_version": SCHEMA, "verdict": self.verdict, **self.facts, "behaviours": found, "doubts": self.doubts
        }  # fmt: skip

    def __str__(self) -> str:
        lines = [f"{one.name:<11}  {one.verdict:<11}  {one.found}" for one in self.behaviours]
        lines += [f"* {doubt}" for doubt in self.doubts]
        bad = [one.name for one in self.behaviours if one.verdict == SUSPICIOUS]
        why = f": {', '.join([*bad, *(['doubts'] if self.doubts else [])])}" if bad or self.doubts else ""
        return "\n".join([*lines, f"verdict: {self.verdict}{why}; n = {self.facts['n']}"])


def check(
    subject: Run | str | Path | nn.Module,
    *,
    surrogate: Run | str | Path | nn.Module | None = None,
    eps: float = defaults.EPS,
    step_size: float = defaults.STEP_SIZE,
    images: int | None = None,
    checkpoint: str = "best",
    seed: int = defaults.SEED,
    batch_size: int | None = None,
    device: torch.device | str | None = None,
    progress: Progress = lambda what, done, total: None,
    data: str | tuple[Tensor, Tensor] | None = None,
    root: str | Path | None = None,
    out: str | Path | None = None,
) -> Report:
    """Whether a model shows the five behaviours of obfuscated gradients, on the first 1000 test images or `images`.

    `subject`, `data`, `checkpoint`, `root` and `out` are as in `evaluate`. `surrogate` is another model for the same
    images; without one a small one is trained where the training set is small, else the black-box behaviour is skipped.
    The report of a run goes to check.json in its folder, all others to `out` if that is given.
    """
    began = time.perf_counter()
    eps, step_size = in_range("eps", eps), in_range("step_size", step_size)
    for what, count in (("images", images), ("batch_size", batch_size)):
        if count is not None and (not isinstance(count, int) or isinstance(count, bool) or count < 1):
            raise UserError(f"{what} {count!r} is not a whole number above 0")
    them = resolve(subject, checkpoint=checkpoint, data=data, images=images, device=device, root=root, out=out)
    pictures = them.pictures
    if images is None:
        pictures = Pictures(pictures.images[:IMAGES], pictures.labels[:IMAGES], pictures.device)
    with full_precision(pictures.device), frozen(them.model) as model:
        probe = identity.signature(accuracy.check_model(model, pictures, probes=identity.PROBES))
        accuracy.check_gradient(model, pictures, probes=identity.PROBES)
        batch = batch_size or default_slots(pictures.device)
        right = accuracy.natural(model, pictures, batch_size=batch)
        if not right.any():
            raise UserError(f"the model gets none of {len(right)} images right: there is nothing to attack")
        trial = Trial(model, pictures, right, eps, step_size, seed, batch, progress)
        other, about = another(trial, them, surrogate, root)
        doubts = [
            *them.doubts,
            *guards.of_model(model, pictures),
            *guards.of_gradients(model, pictures),
            *guards.of_settings(eps, {"steps": STEPS, "step_size": step_size}),
            *(of_square(them.folder, probe, eps) if them.folder else []),
        ]
        left = trial.after("pgd20", trial.pgd20())
        behaviours = [
            one_step(trial, left),
            black_box(trial, left, other, about),
            unbounded(trial),
            random_points(trial, left),
            growing_eps(trial, left),
        ]
    facts = {
        **them.tags, "n": len(pictures), "natural": trial.share(right), "eps": eps, "step_size": step_size,
        "steps": STEPS, "seed": seed, "seconds": round(time.perf_counter() - began, 3),
        "machine": machine(pictures.device),
    }  # fmt: skip
    kept = them.folder / "check.json" if them.folder else None
    report = Report(behaviours, list(dict.fromkeys(doubts)), facts, kept)
    if kept:
        atomic_write(kept, json.dumps(report.as_json(), indent=2, allow_nan=False) + "\n")
    return report


@dataclass(frozen=True)
class Trial:
    """A model, and how it is attacked: starts, length of steps and verdict are those of `evaluate`'s pgd20."""

    model: nn.Module
    pictures: Pictures
    right: Flags  # to begin with
    eps: float
    step_size: float
    seed: int
    batch_size: int
    progress: Progress

    def after(self, what: str, attempt: Attempt, *, right: Flags | None = None, tries: int = 1) -> Flags:
        """Which of the images that are right stay so."""
        n = len(self.pictures)
        return after_tries(
            attempt,
            self.pictures,
            right=self.right if right is None else right,
            tries=tries,
            batch_size=self.batch_size,
            report=lambda settled, left: self.progress(what, settled, n),
        )

    def pgd20(self, *, eps: float | None = None, through: Model | None = None) -> Attempt:
        """PGD by the gradients of the model, or of another, within eps or another.

        Steps grow with eps: 20 of 2/255 cannot cross 64/255. The start is that of the own eps, however large the ball:
        on noise without limits a model errs before any gradient is asked.
        """
        limit = self.eps if eps is None else eps
        length = self.step_size * limit / self.eps

        def attempt(index: Tensor, x: Images, y: Labels, number: int) -> Flags:
            start = start_images(index, x, self.eps, kind="pgd", steps=STEPS, seed=self.seed, restart=number)
            x_adv = pgd(through or self.model, x, y, limit, step_size=length, steps=STEPS, start=start)
            return errs_inside(self.model, x, x_adv, y, eps=limit)

        return attempt

    def fgsm(self, index: Tensor, x: Images, y: Labels, number: int) -> Flags:
        """x + eps sign(gradient) (Goodfellow et al. 2015)."""
        x_adv = pgd(self.model, x, y, self.eps, step_size=self.eps, steps=1, start="none")
        return errs_inside(self.model, x, x_adv, y, eps=self.eps)

    def sample(self, index: Tensor, x: Images, y: Labels, number: int) -> Flags:
        noise = start_noise(index, x, stream="check/random", seed=self.seed, number=number)
        return errs_inside(self.model, x, start_point(x, self.eps, noise, kind="uniform"), y, eps=self.eps)

    def share(self, flags: Flags) -> float:
        return int(flags.sum()) / len(self.pictures)

    def too_many(self, count: int, share: float = REST) -> bool:
        return count > max(1, share * len(self.pictures))


def one_step(trial: Trial, left: Flags) -> Behaviour:
    """One step must not find what twenty miss: then the way there is blocked, not the place."""
    after = trial.after("one step", trial.fgsm)
    only = int((left & ~after).sum())
    return Behaviour(
        "one step",
        f"FGSM leaves {trial.share(after):.2%} right, PGD-20 {trial.share(left):.2%}; {only} fall to FGSM alone",
        f"at most {ELSEWHERE:.0%} of the images fall to one step and not to twenty",
        _verdict(trial.too_many(only, ELSEWHERE)),
        {"fgsm": trial.share(after), "pgd20": trial.share(left), "fgsm_only": only},
    )


def black_box(trial: Trial, left: Flags, other: nn.Module | None, about: str) -> Behaviour:
    """Images made on another model must not break what images made on the model itself do not."""
    name, rule = "black box", f"at most {ELSEWHERE:.0%} of the images fall to another model's PGD-20 and not to the own"
    if other is None:
        return Behaviour(name, about, rule, SKIPPED)
    with frozen(other) as through:
        accurate = trial.share(accuracy.natural(through, trial.pictures, batch_size=trial.batch_size))
        after = trial.after(name, trial.pgd20(through=through))
    only = int((left & ~after).sum())
    return Behaviour(
        name,
        f"PGD-20 on {about} ({accurate:.2%} right) leaves {trial.share(after):.2%} right, on the model itself "
        f"{trial.share(left):.2%}; {only} fall to the other alone",
        rule,
        _verdict(trial.too_many(only, ELSEWHERE)),
        {"surrogate": about, "surrogate_natural": accurate, "transfer": trial.share(after),
         "pgd20": trial.share(left), "transfer_only": only},
    )  # fmt: skip


def unbounded(trial: Trial) -> Behaviour:
    """With no limit but [0,1] an attack must reach everything."""
    after = trial.after("unbounded", trial.pgd20(eps=1.0))
    return Behaviour(
        "unbounded",
        f"PGD-20 with eps 1 leaves {trial.share(after):.2%} right",
        f"at most {REST:.0%} of the images stay right",
        _verdict(trial.too_many(int(after.sum()))),
        {"unbounded": trial.share(after)},
    )


def random_points(trial: Trial, left: Flags) -> Behaviour:
    """Points drawn blindly must not break what the gradient does not."""
    after = trial.after("random", trial.sample, right=left, tries=POINTS)
    only = int((left & ~after).sum())
    return Behaviour(
        "random",
        f"{POINTS} random points in the ball break {only} of {int(left.sum())} images that PGD-20 does not",
        f"at most {REST:.0%} of the images fall to them and not to PGD-20",
        _verdict(trial.too_many(only)),
        {"points": POINTS, "random_only": only, "pgd20": trial.share(left)},
    )


def growing_eps(trial: Trial, left: Flags) -> Behaviour:
    """A larger ball holds the smaller one, so accuracy falls, and nearly to nothing once every image can be grey."""
    counts, eps = {trial.eps: int(left.sum())}, trial.eps
    while eps < HALF:
        eps = min(1.0, 2 * eps)
        counts[eps] = int(trial.after(f"eps {write_fraction(eps)}", trial.pgd20(eps=eps)).sum())
    falls = list(counts.values())
    rises = any(trial.too_many(later - earlier) for earlier, later in itertools.pairwise(falls))
    shares = {str(write_fraction(eps)): count / len(trial.pictures) for eps, count in counts.items()}
    return Behaviour(
        "growing eps",
        "PGD-20 leaves " + ", ".join(f"{share:.2%} at {eps}" for eps, share in shares.items()),
        f"it never rises, by more than {REST:.0%}, and falls to {REST:.0%} at most",
        _verdict(rises or trial.too_many(falls[-1])),
        {"accuracy": shares},
    )


def of_square(folder: Path, probe: list[float], eps: float) -> list[str]:
    """What eval.json tells of AutoAttack on this model: its doubts, and Square's share where the parts ran singly."""
    doubts: list[str] = []
    flags: dict[str, dict[str, cache.FlagArray]] = {}
    for entry in cache.read_entries(folder):
        if entry.get("eps") != eps or not cache.whole(entry) or not identity.agree(entry["probe"], probe):
            continue
        attack = str(entry["attack"]).partition("@")[0]
        if attack in AUTOATTACKS:
            doubts += entry["doubts"]
        elif (found := cache.read_flags(folder, entry)) is not None:
            flags.setdefault(str(entry.get("pixels")), {})[attack] = found
    for one in flags.values():
        if one.keys() >= {*WHITE_BOX, "square"}:
            white = one[WHITE_BOX[0]] & one[WHITE_BOX[1]] & one[WHITE_BOX[2]]
            left = {"white-box": int(white.sum()), "square": int((white & one["square"]).sum())}
            doubts += guards.of_parts(left, len(white))
    return doubts


def another(trial: Trial, them: Subject, surrogate: Any, root: str | Path | None) -> tuple[nn.Module | None, str]:
    """Another model for the same images and words for it, or none and why not; one that will not do is a UserError."""
    pictures, name = trial.pictures, them.tags["dataset"]
    if surrogate is None:
        hint = "give another model for the same images (--surrogate RUN)"
        if name not in sets.SETS:
            return None, f"the images came without a training set to train a surrogate on; {hint}"
        if (n := sets.SETS[name].counts["train"]) > SMALL:
            return None, f"{name} has {n} training images, too many to train a surrogate on the way; {hint}"
        report = functools.partial(trial.progress, "training a surrogate")
        made = train_surrogate(name, eps=trial.eps, seed=trial.seed, device=pictures.device, root=root, report=report)
        return made, "a tiny-cnn trained for it"
    other = resolve(surrogate, data=(pictures.images, pictures.labels), device=pictures.device)
    if other.config and name in sets.SETS and other.config.dataset != name:
        raise UserError(f"the surrogate is for {other.config.dataset}, the model for {name}; give one for {name}")
    with frozen(other.model) as model:
        classes = [accuracy.check_model(one, pictures, probes=identity.PROBES).shape[1] for one in (trial.model, model)]
        if classes[0] != classes[1]:
            raise UserError(f"the surrogate knows {classes[1]} classes, the model {classes[0]}")
        accuracy.check_gradient(model, pictures, probes=identity.PROBES)
        mine, its = ((identity.hash_weights(one), identity.describe(one)) for one in (trial.model, model))
        if mine == its:
            raise UserError("the surrogate is the model itself; give another")
    return other.model, "a module" if isinstance(surrogate, nn.Module) else str(getattr(surrogate, "dir", surrogate))


def _verdict(bad: bool) -> str:
    return SUSPICIOUS if bad else EXPECTED
