"""The five behaviours that give obfuscated gradients away (Athalye, Carlini and Wagner 2018), each with its rule."""

import itertools
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from pixelpart import losses
from pixelpart.attacks import pgd
from pixelpart.attacks.ball import project, start_point
from pixelpart.config import write_fraction
from pixelpart.evaluation.image_set import ImageSet, start_images, start_noise
from pixelpart.evaluation.measure import Attempt, after_tries, natural
from pixelpart.evaluation.validate import errs_inside
from pixelpart.runtime.progress import Progress
from pixelpart.types import Flags, Images, Labels, Model
from pixelpart.view.borrow import borrowed

STEPS = 20
POINTS = 100  # sampled in the ball of each image
# Shares of the images; one image is always allowed.
REST = 0.01  # that may be left where nothing should be
ELSEWHERE = 0.02  # that may fall to another attack alone; to another random start of PGD-20 about 1 % do
AVERAGED = 0.03  # that may fall to a step by averaged gradients alone; of honest models up to 1.5 % were seen to
HALF = 0.5  # with this eps every image can be made grey, about which a model can be right for one class alone


EXPECTED, SUSPICIOUS, SKIPPED = "as expected", "suspicious", "skipped"


@dataclass(frozen=True)
class Behaviour:
    """One of the five: what was found, in words and numbers, the rule it was held to, and the verdict."""

    name: str
    found: str
    rule: str
    verdict: str
    numbers: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Trial:
    """A model, and how it is attacked: starts, length of steps and verdict are those of `evaluate`'s pgd20."""

    model: nn.Module
    pictures: ImageSet
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
            correct=self.right if right is None else right,
            tries=tries,
            batch_size=self.batch_size,
            report=lambda settled, left: self.progress(what, settled, n, ""),
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

    def averaged(self, index: Tensor, x: Images, y: Labels, number: int) -> Flags:
        """x + eps sign(sum of sign(gradient) over 20 random points of the ball): ripples of the model average out."""
        total = torch.zeros_like(x)
        for point in range(STEPS):
            noise = start_noise(index, x, stream="check/averaged", seed=self.seed, number=point)
            near = start_point(x, self.eps, noise, kind="uniform").requires_grad_()
            with torch.enable_grad():
                loss = losses.ce(self.model(near), y).sum()
            total += torch.autograd.grad(loss, near)[0].sign()
        return errs_inside(self.model, x, project(x + self.eps * total.sign(), x, self.eps), y, eps=self.eps)

    def sample(self, index: Tensor, x: Images, y: Labels, number: int) -> Flags:
        noise = start_noise(index, x, stream="check/random", seed=self.seed, number=number)
        return errs_inside(self.model, x, start_point(x, self.eps, noise, kind="uniform"), y, eps=self.eps)

    def share(self, flags: Flags) -> float:
        return int(flags.sum()) / len(self.pictures)

    def too_many(self, count: int, share: float = REST) -> bool:
        return count > max(1, share * len(self.pictures))


def one_step(trial: Trial, left: Flags) -> Behaviour:
    """One step must not find what twenty miss: then the way there is blocked, not the place."""
    after, averaged = trial.after("one step", trial.fgsm), trial.after("one averaged step", trial.averaged)
    only, smooth = int((left & ~after).sum()), int((left & ~averaged).sum())
    return Behaviour(
        "one step",
        f"FGSM leaves {trial.share(after):.2%} right, by a gradient averaged over the ball "
        f"{trial.share(averaged):.2%}, PGD-20 {trial.share(left):.2%}; {only} and {smooth} fall to one step alone",
        f"at most {ELSEWHERE:.0%} of the images fall to one step and not to twenty, {AVERAGED:.0%} to an averaged one",
        _verdict(trial.too_many(only, ELSEWHERE) or trial.too_many(smooth, AVERAGED)),
        {"fgsm": trial.share(after), "averaged": trial.share(averaged), "pgd20": trial.share(left), "fgsm_only": only,
         "averaged_only": smooth},
    )  # fmt: skip


def black_box(trial: Trial, left: Flags, other: nn.Module | None, about: str) -> Behaviour:
    """Images made on another model must not break what images made on the model itself do not."""
    name, rule = "black box", f"at most {ELSEWHERE:.0%} of the images fall to another model's PGD-20 and not to the own"
    if other is None:
        return Behaviour(name, about, rule, SKIPPED)
    with borrowed(other) as through:
        accurate = trial.share(natural(through, trial.pictures, batch_size=trial.batch_size))
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


def _verdict(bad: bool) -> str:
    return SUSPICIOUS if bad else EXPECTED
