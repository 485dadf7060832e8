"""The five behaviours that reveal obfuscated gradients (Athalye, Carlini and Wagner 2018), each with its threshold."""

import itertools
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from pixelpart import losses
from pixelpart.attacks import pgd
from pixelpart.attacks.ball import project, start_point
from pixelpart.config import write_fraction
from pixelpart.evaluation.images import ImageSet, errs_inside, start_images, start_noise
from pixelpart.evaluation.measure import Attempt, after_tries, natural
from pixelpart.evaluation.partial import PartialResult
from pixelpart.runtime.progress import Progress
from pixelpart.types import Flags, Images, Labels, Model
from pixelpart.view.borrow import borrowed

STEPS = 20
POINTS = 100  # random points in the ball of each image
# Largest shares of the images; one image is always allowed.
MAX_LEFT = 0.01  # correct where none should be
MAX_OTHER_ONLY = 0.02  # broken only by another attack; another random start of PGD-20 breaks about 1 %
MAX_AVERAGED_ONLY = 0.03  # broken only by a step along averaged gradients; up to 1.5 % of sound models
GREY_EPS = 0.5  # with this eps every image can become uniformly grey, which is correct for one class at most

EXPECTED, SUSPICIOUS, SKIPPED = "as expected", "suspicious", "skipped"


@dataclass(frozen=True)
class BehaviourResult:
    """The result for one behaviour: what was found, in words and numbers, the rule, and the verdict."""

    name: str
    found: str
    rule: str
    verdict: str
    numbers: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class CheckedModel:
    """A model, its images and the attack's settings; starts and verdicts are those of pgd20 in `evaluate`."""

    model: nn.Module
    pictures: ImageSet
    correct: Flags  # without an attack
    eps: float
    step_size: float
    seed: int
    progress: Progress

    def robust(self, title: str, attempt: Attempt, *, correct: Flags | None = None, tries: int = 1) -> Flags:
        """Which of the correct images remain correct."""
        n = len(self.pictures)
        return after_tries(
            attempt,
            self.pictures,
            correct=self.correct if correct is None else correct,
            tries=tries,
            report=lambda done, left: self.progress(title, done, n, ""),
            name=title,
            partial=PartialResult(),
        )

    def pgd20(self, *, eps: float | None = None, gradients_of: Model | None = None) -> Attempt:
        """PGD along the gradients of the model, or of another model, with its eps or another.

        Step sizes grow with eps: 20 steps of 2/255 cannot cross 64/255. The start is within the model's own eps, since
        a model errs on unbounded noise, before any gradient is used.
        """
        limit = self.eps if eps is None else eps
        step_size = self.step_size * limit / self.eps

        def attempt(index: Tensor, x: Images, y: Labels, number: int) -> Flags:
            start = start_images(index, x, self.eps, kind="pgd", steps=STEPS, seed=self.seed, restart=number)
            x_adv = pgd(gradients_of or self.model, x, y, limit, step_size=step_size, steps=STEPS, start=start)
            return errs_inside(self.model, x, x_adv, y, eps=limit)

        return attempt

    def fgsm(self, index: Tensor, x: Images, y: Labels, number: int) -> Flags:
        """x + eps sign(gradient) (Goodfellow et al. 2015)."""
        x_adv = pgd(self.model, x, y, self.eps, step_size=self.eps, steps=1, start="none")
        return errs_inside(self.model, x, x_adv, y, eps=self.eps)

    def averaged_step(self, index: Tensor, x: Images, y: Labels, number: int) -> Flags:
        """x + eps sign(sum of sign(gradient) over 20 random points of the ball), which averages out ripples."""
        total = torch.zeros_like(x)
        for point in range(STEPS):
            noise = start_noise(index, x, stream="check/averaged", seed=self.seed, number=point)
            near = start_point(x, self.eps, noise, kind="uniform").requires_grad_()
            with torch.enable_grad():
                loss = losses.ce(self.model(near), y).sum()
            total += torch.autograd.grad(loss, near)[0].sign()
        return errs_inside(self.model, x, project(x + self.eps * total.sign(), x, self.eps), y, eps=self.eps)

    def random_point(self, index: Tensor, x: Images, y: Labels, number: int) -> Flags:
        noise = start_noise(index, x, stream="check/random", seed=self.seed, number=number)
        return errs_inside(self.model, x, start_point(x, self.eps, noise, kind="uniform"), y, eps=self.eps)

    def share(self, flags: Flags) -> float:
        return int(flags.sum()) / len(self.pictures)

    def exceeds(self, count: int, share: float) -> bool:
        return count > max(1, share * len(self.pictures))


def one_step(checked: CheckedModel, under_pgd: Flags) -> BehaviourResult:
    """One step must not break images that twenty steps do not."""
    fgsm = checked.robust("one step", checked.fgsm)
    averaged = checked.robust("one averaged step", checked.averaged_step)
    fgsm_only, averaged_only = (int((under_pgd & ~after).sum()) for after in (fgsm, averaged))
    numbers = {"fgsm": checked.share(fgsm), "averaged": checked.share(averaged), "pgd20": checked.share(under_pgd)}
    return BehaviourResult(
        "one step",
        f"accuracy is {numbers['fgsm']:.2%} under FGSM, {numbers['averaged']:.2%} under one step along averaged "
        f"gradients and {numbers['pgd20']:.2%} under PGD-20; {fgsm_only} and {averaged_only} images are broken by one "
        "step only",
        f"at most {MAX_OTHER_ONLY:.0%} of the images are broken by FGSM only, "
        f"at most {MAX_AVERAGED_ONLY:.0%} by the averaged step only",
        _verdict(checked.exceeds(fgsm_only, MAX_OTHER_ONLY) or checked.exceeds(averaged_only, MAX_AVERAGED_ONLY)),
        numbers | {"fgsm_only": fgsm_only, "averaged_only": averaged_only},
    )


def black_box(
    checked: CheckedModel, under_pgd: Flags, surrogate: nn.Module | None, description: str
) -> BehaviourResult:
    """Adversarial images of another model must not break images that the model's own gradients do not.

    `description` is that of the surrogate, or why there is none.
    """
    name, rule = "black box", f"at most {MAX_OTHER_ONLY:.0%} of the images are broken through the other model only"
    if surrogate is None:
        return BehaviourResult(name, description, rule, SKIPPED)
    with borrowed(surrogate) as other:
        accuracy = checked.share(natural(other, checked.pictures))
        after = checked.robust(name, checked.pgd20(gradients_of=other))
    only = int((under_pgd & ~after).sum())
    return BehaviourResult(
        name,
        f"accuracy is {checked.share(after):.2%} under PGD-20 through {description} ({accuracy:.2%} accurate) and "
        f"{checked.share(under_pgd):.2%} under PGD-20 on the model itself; {only} images are broken through the other "
        "model only",
        rule,
        _verdict(checked.exceeds(only, MAX_OTHER_ONLY)),
        {"surrogate": description, "surrogate_natural": accuracy, "transfer": checked.share(after),
         "pgd20": checked.share(under_pgd), "transfer_only": only},
    )  # fmt: skip


def unbounded(checked: CheckedModel) -> BehaviourResult:
    """Without a limit other than [0,1], an attack must break every image."""
    after = checked.robust("unbounded", checked.pgd20(eps=1.0))
    return BehaviourResult(
        "unbounded",
        f"accuracy is {checked.share(after):.2%} under PGD-20 with eps 1",
        f"at most {MAX_LEFT:.0%} of the images remain correct",
        _verdict(checked.exceeds(int(after.sum()), MAX_LEFT)),
        {"unbounded": checked.share(after)},
    )


def random_points(checked: CheckedModel, under_pgd: Flags) -> BehaviourResult:
    """Random points must not break images that gradients do not."""
    after = checked.robust("random", checked.random_point, correct=under_pgd, tries=POINTS)
    only = int((under_pgd & ~after).sum())
    return BehaviourResult(
        "random",
        f"{POINTS} random points in the ball break {only} of {int(under_pgd.sum())} images that PGD-20 does not break",
        f"at most {MAX_LEFT:.0%} of the images are broken by random points only",
        _verdict(checked.exceeds(only, MAX_LEFT)),
        {"points": POINTS, "random_only": only, "pgd20": checked.share(under_pgd)},
    )


def growing_eps(checked: CheckedModel, under_pgd: Flags) -> BehaviourResult:
    """A larger ball contains the smaller one, so accuracy must fall, to nearly 0 once every image can become grey."""
    counts, eps = {checked.eps: int(under_pgd.sum())}, checked.eps
    while eps < GREY_EPS:
        eps = min(1.0, 2 * eps)
        counts[eps] = int(checked.robust(f"eps {write_fraction(eps)}", checked.pgd20(eps=eps)).sum())
    rises = any(checked.exceeds(b - a, MAX_LEFT) for a, b in itertools.pairwise(counts.values()))
    shares = {str(write_fraction(eps)): count / len(checked.pictures) for eps, count in counts.items()}
    return BehaviourResult(
        "growing eps",
        "accuracy under PGD-20 is " + ", ".join(f"{share:.2%} at {eps}" for eps, share in shares.items()),
        f"accuracy never rises by more than {MAX_LEFT:.0%} and falls to at most {MAX_LEFT:.0%}",
        _verdict(rises or checked.exceeds(counts[eps], MAX_LEFT)),
        {"accuracy": shares},
    )


def describe_verdict(verdict: str, eps: float, pgd20: float | None) -> str:
    """The verdict on all behaviours in words, with accuracy under PGD-20: a model without defence hides nothing."""
    if verdict == SUSPICIOUS:
        return verdict
    text = "no sign of hidden gradients"
    if pgd20 is not None:
        text += f"; accuracy under PGD-20 at {write_fraction(eps)} is {pgd20:.2%}"
        text += ", which is no robustness" * (pgd20 <= MAX_LEFT)
    return text


def _verdict(suspicious: bool) -> str:
    return SUSPICIOUS if suspicious else EXPECTED
