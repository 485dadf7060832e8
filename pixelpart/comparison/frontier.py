"""The vertical distance D of a method from the curve of robust over natural accuracy that uniform budgets draw.

Accuracies, distances and deviations are fractions: 0.003 is 0.3 points. Only text (`str`) is in points.

A uniform arm k has S_k runs, mean natural accuracy N_k and mean robust accuracy A_k. The curve is the regression of A
on (1, N, N²) over the arms' means with weights S_k; h_k(x) is its row of weights at x, b(x) its slope, and

    D = A_P - Σ_k h_k(N_P) A_k.

To first order the error of D is that of Σ_j w_j mean(y_j) with w = 1 for the policy and -h_k for uniform arms, where
y = a - b n for each run and image (a robust, n natural correctness), b at the mean natural accuracy of the run's arm.
`statistics.variances` gives its variances and Satterthwaite's degrees of freedom; arms count as independent. The
interval is D ± sqrt(t² V_seeds + z² max(V_images - V_interaction, 0)).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pixelpart.errors import UserError
from pixelpart.evaluation.statistics import FlagArray, PerImage, Variances, variances

Array = NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Arm:
    """The runs of one method: which images each classifies correctly, as they are and under attack, (runs, images).

    `seeds` names the runs, to find those of one seed in two arms; by default they are 0, 1, ...
    """

    natural: FlagArray
    robust: FlagArray
    seeds: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        shape = self.natural.shape
        if self.robust.shape != shape or len(shape) != 2 or shape[0] < 1 or shape[1] < 2:
            raise UserError(f"flags of shape {shape} and {self.robust.shape} are not (runs, images) of the same runs")
        if self.seeds and len(set(self.seeds)) != shape[0]:
            raise UserError(f"{len(self.seeds)} seeds for {shape[0]} runs; give each run's seed once")

    @property
    def runs(self) -> int:
        return len(self.natural)

    @cached_property
    def mean_natural(self) -> float:
        return float(self.natural.mean())

    @cached_property
    def mean_robust(self) -> float:
        return float(self.robust.mean())

    def run(self, seed: int) -> "Arm":
        """The run of one seed."""
        k = list(self.seeds or range(self.runs)).index(seed)
        return Arm(self.natural[k : k + 1], self.robust[k : k + 1], (seed,))

    def values(self, slope: float) -> PerImage:
        """y = a - b n of each run and image, (runs, images)."""
        return self.robust - slope * self.natural


@dataclass(frozen=True)
class Curve:
    """The quadratic through the uniform arms' means, weighted by their numbers of runs; see `fit_curve`."""

    arms: tuple[Arm, ...]
    centre: float  # powers of N - centre span the same curves as those of N, with less rounding
    projection: Array  # (XᵀWX)⁻¹ XᵀW, (3, arms): times the arms' robust accuracies, the coefficients

    def hat(self, natural: float) -> Array:
        """h_k: the weight of each arm in the curve's value at this natural accuracy; they sum to 1."""
        x = natural - self.centre
        return np.array([1, x, x * x]) @ self.projection

    def at(self, natural: float) -> float:
        return float(self.hat(natural) @ [arm.mean_robust for arm in self.arms])

    def slope(self, natural: float) -> float:
        row = np.array([0, 1, 2 * (natural - self.centre)]) @ self.projection
        return float(row @ [arm.mean_robust for arm in self.arms])

    def covers(self, natural: float) -> bool:
        """Whether this natural accuracy is in the range of the uniform arms."""
        known = [arm.mean_natural for arm in self.arms]
        return min(known) <= natural <= max(known)

    def values(self, arm: Arm) -> PerImage:
        """y = a - b n of each run and image, (runs, images), with b at the arm's mean natural accuracy."""
        return arm.values(self.slope(arm.mean_natural))

    def band(self, natural: float, confidence: float = 0.95) -> tuple[float, float]:
        """The interval of the curve's value at one natural accuracy, against other seeds and other images."""
        values = [self.values(arm) for arm in self.arms]
        return _combination(self.at(natural), values, self.hat(natural)).interval(confidence)


@dataclass(frozen=True)
class Distance:
    """A distance with its variances; outside the curve's range `estimate` and `p` are None."""

    estimate: float | None
    variances: Variances

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        assert self.estimate is not None, "an arm outside the range of the uniform arms has no distance"
        half = self.variances.half_width(confidence)
        return self.estimate - half, self.estimate + half

    @property
    def p(self) -> float | None:
        """1 - confidence of the interval that ends at 0."""
        return None if self.estimate is None else self.variances.p_value(abs(self.estimate))

    def as_json(self) -> dict[str, Any]:
        if self.estimate is None:
            return {"estimate": None}
        v = self.variances
        return {
            "estimate": self.estimate, "interval": list(self.interval()), "confidence": 0.95, "p": self.p,
            "interval 90 %": list(self.interval(0.9)), "interval 97.5 %": list(self.interval(0.975)),
            "df": v.df, "v_seeds": v.seeds, "v_images": v.images, "v_interaction": v.interaction,
        }  # fmt: skip

    def __str__(self) -> str:
        if self.estimate is None:
            return "outside the range of the uniform arms"
        low, high = self.interval()
        return f"{100 * self.estimate:+z.2f} [{100 * low:+z.2f}, {100 * high:+z.2f}]"


OUTSIDE = Distance(None, Variances(math.nan, math.nan, math.nan, math.nan))


def fit_curve(uniform: Sequence[Arm]) -> Curve:
    """The curve of the uniform arms; an arm of one run may be among them, but then the curve has no band."""
    natural = np.array([arm.mean_natural for arm in uniform])
    if len(set(natural)) < 3:
        raise UserError(f"a quadratic needs three arms of different natural accuracy, not {len(set(natural))}")
    centre, root = float(natural.mean()), np.sqrt([float(arm.runs) for arm in uniform])
    powers = np.vander(natural - centre, 3, increasing=True)
    return Curve(tuple(uniform), centre, np.linalg.pinv(root[:, None] * powers) * root)


def distance(policy: Arm, uniform: Sequence[Arm], other: Arm | None = None) -> Distance:
    """D of the policy from the curve of the uniform arms; every arm needs two runs or more.

    With `other`, D of the policy minus D of the other, from the same curve: what the two share in it cancels.
    """
    policies, curve = _sides(policy, other), fit_curve(uniform)
    if not all(curve.covers(arm.mean_natural) for arm in policies):
        return OUTSIDE
    estimate, weights = _combine(policies, curve)
    return _combination(estimate, [curve.values(arm) for arm in (*policies, *uniform)], weights)


def distance_within_seeds(policy: Arm, uniform: Sequence[Arm], other: Arm | None = None) -> Distance:
    """The mean over seeds of D from the curve of that seed's own uniform runs; with `other`, D minus its D.

    What all runs of a seed share cancels. V_seeds is the variance of D between the seeds that all arms have.
    """
    k, arms = len(_sides(policy, other)), [*_sides(policy, other), *uniform]
    estimates, rows = [], []
    for seed in sorted(set.intersection(*({*(arm.seeds or range(arm.runs))} for arm in arms))):
        runs = [arm.run(seed) for arm in arms]
        curve = fit_curve(runs[k:])
        if not all(curve.covers(run.mean_natural) for run in runs[:k]):
            return OUTSIDE
        estimate, weights = _combine(runs[:k], curve)
        values = sum(weight * curve.values(run)[0] for weight, run in zip(weights, runs, strict=True))
        estimates.append(estimate)
        rows.append(values)  # with mean D, since h reproduces the quadratic b(N) N
    if len(rows) < 2:
        raise UserError("D within seeds needs two seeds or more that all arms have")
    return _combination(float(np.mean(estimates)), [np.stack(rows)], [1.0])


def secant_distance(policy: Arm, middle: Arm, ends: tuple[Arm, Arm]) -> Distance:
    """(A_P - A_M) - b (N_P - N_M), b the slope of the secant through the two ends: D without a fitted curve.

    The slope's own error enters with weights ∓(N_P - N_M) / (N_2 - N_1) for the two ends.
    """
    first, second = ends
    run = second.mean_natural - first.mean_natural
    if not run:
        raise UserError("the two ends of the secant have the same natural accuracy")
    slope, gap = (second.mean_robust - first.mean_robust) / run, policy.mean_natural - middle.mean_natural
    estimate = policy.mean_robust - middle.mean_robust - slope * gap
    weights = [1.0, -1.0, gap / run, -gap / run]
    return _combination(estimate, [arm.values(slope) for arm in (policy, middle, first, second)], weights)


def negative_control(uniform: Sequence[Arm]) -> list[Distance]:
    """D of each uniform arm from the curve of the others: its interval should contain 0."""
    return [distance(arm, [*uniform[:k], *uniform[k + 1 :]]) for k, arm in enumerate(uniform)]


def _sides(policy: Arm, other: Arm | None) -> list[Arm]:
    return [policy] if other is None else [policy, other]


def _combine(policies: Sequence[Arm], curve: Curve) -> tuple[float, list[float]]:
    """The first policy's distance from the curve, minus that of a second; and the weight of each arm in its error."""
    estimate, hat, signs = 0.0, np.zeros(len(curve.arms)), [1.0, -1.0][: len(policies)]
    for policy, sign in zip(policies, signs, strict=True):
        estimate += sign * (policy.mean_robust - curve.at(policy.mean_natural))
        hat += sign * curve.hat(policy.mean_natural)
    return estimate, [*signs, *-hat]


def _combination(estimate: float, values: Sequence[PerImage], weights: Sequence[float] | Array) -> Distance:
    """An estimate whose error is that of Σ_j w_j mean(y_j)."""
    if any(y.shape[1] != values[0].shape[1] for y in values):
        raise UserError("the arms were not evaluated on the same images")
    if min(map(len, values)) < 2:
        raise UserError("an arm of one run does not show how much accuracy varies with the seed; give each two or more")
    return Distance(estimate, variances(values, list(map(float, weights))))
