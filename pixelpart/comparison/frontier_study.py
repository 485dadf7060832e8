"""What a study reports next to the distances of `frontier`: verdict, correlation of seeds, false alarms and power.

In simulation, image i has the ease z_i, and a run s of arm k classifies it by u = sqrt(ρ) z_i + sqrt(1-ρ) e_si:
correctly if u > -μ_k - α_s, robustly if u > -ν_k - β_s, where α_s and β_s are the run's skills. One u for both, so that
robust images are always naturally correct, as in measured flags. Accuracies and deviations are fractions.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import NormalDist, fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pixelpart.comparison.frontier import Arm, Distance, distance, fit_curve
from pixelpart.errors import UserError
from pixelpart.evaluation.statistics import FlagArray, PerImage, wilson

MARGIN = 0.003  # "on the curve" is within ±0.30 points


@dataclass(frozen=True)
class Verdict:
    """On which side of the curve a policy is, and whether it is close to it; both can hold, or neither."""

    side: str  # above, below, or empty: whether the 97.5 % interval of D excludes 0
    on_curve: bool  # the 90 % interval of D lies inside ±MARGIN
    distance: Distance

    def __str__(self) -> str:
        if not self.side and not self.on_curve:
            seen = f"{100 * smallest_effect(self.distance):.2f} points (80 % power)"
            return f"undecided; the smallest effect that could have been seen is {seen}"
        side = [f"{self.side} the curve"] if self.side else []
        return ", and ".join([*side, *[f"on the curve within ±{100 * MARGIN:.2f} points"] * self.on_curve])


def verdict(policy: Arm, uniform: Sequence[Arm]) -> Verdict:
    """Above or below the curve if the 97.5 % interval of D excludes 0; on it if the 90 % interval is inside ±MARGIN."""
    found = distance(policy, uniform)
    if found.estimate is None:
        raise UserError("the policy's natural accuracy is outside the range of the uniform arms: it has no distance")
    (low, high), (least, most) = found.interval(0.975), found.interval(0.9)
    return Verdict("above" if low > 0 else "below" if high < 0 else "", -MARGIN < least <= most < MARGIN, found)


def smallest_effect(found: Distance) -> float:
    """The true |D| at which the 97.5 % interval would exclude 0 with probability 0.8: two half-widths added."""
    return found.variances.half_width(0.975) + found.variances.half_width(2 * 0.8 - 1)


def pooled_deviation(arms: Sequence[Arm], uniform: Sequence[Arm]) -> float:
    """The standard deviation of a run's mean y between the seeds of an arm, pooled over these arms."""
    curve = fit_curve(uniform)
    return _pooled([curve.values(arm) for arm in arms])


def seed_correlation(arms: Sequence[Arm], uniform: Sequence[Arm]) -> float:
    """The correlation of mean y between two arms' runs of one seed, pooled over all pairs; NaN without a pair.

    Σ cov / Σ sqrt(var var) over the pairs, each on the seeds that both have, if these are three or more.
    """
    curve, together, apart = fit_curve(uniform), 0.0, 0.0
    named = [dict(zip(arm.seeds or range(arm.runs), curve.values(arm).mean(1), strict=True)) for arm in arms]
    for k, first in enumerate(named):
        for second in named[k + 1 :]:
            shared = [seed for seed in first if seed in second]
            if len(shared) > 2:
                (a, both), (_, b) = np.cov([first[seed] for seed in shared], [second[seed] for seed in shared])
                together, apart = together + both, apart + math.sqrt(a * b)
    return together / apart if apart else math.nan


# -- how alike two runs are


def tetrachoric(flags: FlagArray) -> float:
    """The tetrachoric correlation ρ of two runs of a method, estimated from several, (runs, images)."""
    s, p = len(flags), float(flags.mean())
    if not 0 < p < 1:
        raise UserError(f"the accuracy is {p:.0%} in all runs, which shows no correlation between them")
    correct = flags.sum(0)
    both = float((correct * (correct - 1)).mean()) / (s * (s - 1))
    theta, joint = _joint_accuracy(p)
    return min(max(math.sin(np.interp(both, joint, theta)), 0.0001), 0.9999)


def both_correct(accuracy: float, correlation: float) -> float:
    """The probability that two runs of this accuracy and tetrachoric correlation are both correct at an image."""
    return float(np.interp(math.asin(correlation), *_joint_accuracy(accuracy)))


@functools.lru_cache(64)
def _joint_accuracy(p: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """θ, and the probability that two runs of accuracy p and correlation sin θ are both correct at an image.

    P(both correct) = p² + ∫_0^θ exp(-μ²/(1 + sin t)) dt / 2π (Drezner and Wesolowsky, 1990).
    """
    theta = np.linspace(0, math.pi / 2, 10_001)
    integrand = np.exp(-(NormalDist().inv_cdf(p) ** 2) / (1 + np.sin(theta)))
    area = np.concatenate(([0], np.cumsum(integrand[1:] + integrand[:-1]))) * (theta[1] / 2)
    return theta, p * p + area / (2 * math.pi)


# -- simulated studies


@dataclass(frozen=True)
class SimulatedArm:
    """The expected accuracies of an arm, and its number of runs."""

    natural: float
    robust: float
    runs: int


@dataclass(frozen=True)
class StudyDesign:
    """A study to simulate: one policy, whose D is estimated, or two, whose D are compared; and the uniform arms.

    The deviations are those of a run's measured accuracy between seeds, on `images` images; what the noise e_si of a
    finite number of images does not explain is skill. `correlation` is ρ, between two runs.
    """

    policies: tuple[SimulatedArm, ...]
    uniform: tuple[SimulatedArm, ...]
    images: int = 10_000
    natural_deviation: float = 0.0030
    robust_deviation: float = 0.0018
    correlation: float = 0.98

    @classmethod
    def like(cls, policies: Sequence[Arm], uniform: Sequence[Arm]) -> "StudyDesign":
        """The design of a measured study, with its deviations, and all policies on its curve."""
        curve, arms = fit_curve(uniform), [*policies, *uniform]
        simulated = [SimulatedArm(arm.mean_natural, curve.at(arm.mean_natural), arm.runs) for arm in arms]
        deviations = _pooled([arm.natural for arm in arms]), _pooled([arm.robust for arm in arms])
        rho = fmean(tetrachoric(arm.robust) for arm in arms if arm.runs > 1)
        k, n = len(policies), arms[0].natural.shape[1]
        return cls(tuple(simulated[:k]), tuple(simulated[k:]), n, *deviations, rho)

    def draw(self, generator: np.random.Generator) -> tuple[list[Arm], list[Arm]]:
        """Flags of the policies and of the uniform arms in one study."""
        n, rho = self.images, self.correlation
        ease, arms = _normal(generator, math.sqrt(rho), (1, n)), []
        for arm in (*self.policies, *self.uniform):
            u = ease + _normal(generator, math.sqrt(1 - rho), (arm.runs, n))
            flags = []
            for accuracy, deviation in ((arm.natural, self.natural_deviation), (arm.robust, self.robust_deviation)):
                mu = NormalDist().inv_cdf(accuracy)
                skill = math.sqrt(max(deviation**2 - (accuracy - both_correct(accuracy, rho)) / n, 0))
                skill /= NormalDist().pdf(mu)  # a shift of the threshold changes accuracy by the density there
                flags.append(u > -np.float32(mu) - _normal(generator, skill, (arm.runs, 1)))
            arms.append(Arm(*flags))
        return arms[: len(self.policies)], arms[len(self.policies) :]


@dataclass(frozen=True)
class Detections:
    """In how many simulated studies the interval lies above or below 0, or the policy outside the curve's range."""

    studies: int
    above: int
    below: int
    outside: int

    @property
    def share(self) -> float:
        """False alarms if the true D is 0, else power."""
        return (self.above + self.below) / self.studies

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"share": self.share, "interval": wilson(self.above + self.below, self.studies)}

    def __str__(self) -> str:
        low, high = wilson(self.above + self.below, self.studies)
        return f"{self.share:.1%} of {self.studies:,} studies [{100 * low:.1f}, {100 * high:.1f}]"


def simulate_studies(design: StudyDesign, *, confidence: float = 0.95, studies: int = 2000) -> Detections:
    """How often the interval of D (two policies: of the difference of their D) excludes 0."""
    generator, above, below, outside = np.random.default_rng(0), 0, 0, 0
    for _ in range(studies):
        policies, uniform = design.draw(generator)
        found = distance(policies[0], uniform, *policies[1:])
        if found.estimate is None:
            outside += 1
        else:
            low, high = found.interval(confidence)
            above, below = above + (low > 0), below + (high < 0)
    return Detections(studies, above, below, outside)


def _normal(generator: np.random.Generator, scale: float, shape: tuple[int, int]) -> Any:
    return np.float32(scale) * generator.standard_normal(shape, dtype=np.float32)


def _pooled(values: Sequence[PerImage]) -> float:
    """The standard deviation of a run's mean between the runs of an arm, pooled over the arms with several."""
    by_run = [runs.mean(1) for runs in values if len(runs) > 1]
    if not by_run:
        raise UserError("no arm has two runs or more")
    return math.sqrt(sum(((m - m.mean()) ** 2).sum() for m in by_run) / sum(len(m) - 1 for m in by_run))
