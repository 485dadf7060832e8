"""The vertical distance D of a method from the curve of robust over natural accuracy that uniform budgets draw.

Accuracies, distances and deviations are fractions: 0.003 is 0.3 points. Only text (`str`) is in points.

A uniform arm k has S_k runs, mean natural accuracy N_k and mean robust accuracy A_k. The curve is the regression of A
on (1, N, N²) over the arms' means with weights S_k; h_k(x) is its row of weights at x, b(x) its slope, and

    D = A_P - Σ_k h_k(N_P) A_k.

To first order the error of D is that of Σ_j w_j mean(y_j) with w = 1 for the policy and -h_k for uniform arms, where
y = a - b n for each run and image (a robust, n natural correctness), b at the mean natural accuracy of the run's arm:

    V_seeds     = Σ_j w_j² var(y_j) / S_j                    var over the runs of an arm, of each run's mean y
    V_images    = Σ_i (z_i - z)² / n(n-1)                    z_i = Σ_j w_j (mean over runs of y_j,i)
    V_interplay = Σ_j w_j² Σ_si (y_si - y_s - y_i + y)² / S_j(S_j-1)n(n-1)     as in statistics.crossed_bootstrap

    interval: D ± sqrt(t² V_seeds + z² max(V_images - V_interplay, 0)),

t with Satterthwaite's degrees of freedom, V_seeds² / Σ_j (w_j² var(y_j)/S_j)² / (S_j-1). Arms count as independent.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pixelpart.errors import UserError
from pixelpart.evaluation.result import FlagArray
from pixelpart.evaluation.statistics import half_width, p_value

Row = NDArray[np.floating[Any]]
Values = NDArray[np.floating[Any]]  # (runs, images)


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

    def values(self, slope: float) -> Values:
        """y = a - b n of each run and image, (runs, images)."""
        return self.robust - slope * self.natural


@dataclass(frozen=True)
class Curve:
    """The quadratic through the uniform arms' means, weighted by their numbers of runs; see `fit_curve`."""

    arms: tuple[Arm, ...]
    centre: float  # powers of N - centre span the same curves as those of N, with less rounding
    projection: Values  # (XᵀWX)⁻¹ XᵀW, (3, arms): times the arms' robust accuracies, the coefficients

    def hat(self, natural: float) -> Row:
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

    def values(self, arm: Arm) -> Values:
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
    v_seeds: float = math.nan
    v_images: float = math.nan
    v_interplay: float = math.nan
    df: float = math.nan

    @property
    def v_rest(self) -> float:
        """max(V_images - V_interplay, 0), the part of the variance that seeds do not show."""
        return max(self.v_images - self.v_interplay, 0.0)

    def half_width(self, confidence: float) -> float:
        return half_width(self.v_seeds, self.v_rest, self.df, confidence)

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        assert self.estimate is not None, "an arm outside the range of the uniform arms has no distance"
        half = self.half_width(confidence)
        return self.estimate - half, self.estimate + half

    @property
    def p(self) -> float | None:
        """1 - confidence of the interval that ends at 0."""
        return None if self.estimate is None else p_value(abs(self.estimate), self.v_seeds, self.v_rest, self.df)

    def as_json(self) -> dict[str, Any]:
        if self.estimate is None:
            return {"estimate": None}
        return {
            "estimate": self.estimate, "interval": list(self.interval()), "confidence": 0.95, "p": self.p,
            "interval 90 %": list(self.interval(0.9)), "interval 97.5 %": list(self.interval(0.975)),
            "df": self.df, "v_seeds": self.v_seeds, "v_images": self.v_images, "v_interplay": self.v_interplay,
        }  # fmt: skip

    def __str__(self) -> str:
        if self.estimate is None:
            return "outside the range of the uniform arms"
        low, high = self.interval()
        return f"{100 * self.estimate:+z.2f} [{100 * low:+z.2f}, {100 * high:+z.2f}]"


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
        return Distance(None)
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
            return Distance(None)
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


def _combination(estimate: float, values: Sequence[Values], weights: Sequence[float] | Row) -> Distance:
    """An estimate whose error is that of Σ_j w_j mean(y_j), with the variances above."""
    n = values[0].shape[1]
    if any(y.shape[1] != n for y in values):
        raise UserError("the arms were not evaluated on the same images")
    if min(map(len, values)) < 2:
        raise UserError("an arm of one run does not show how much accuracy varies with the seed; give each two or more")
    terms, interplay, z = [], 0.0, np.zeros(n)
    for y, weight in zip(values, map(float, weights), strict=True):
        s, by_run, by_image = len(y), y.mean(1), y.mean(0)
        # accuracy changes in steps of 1/n: runs that tie do not prove that seeds do not matter (as crossed_bootstrap)
        terms.append(weight**2 * max(float(by_run.var(ddof=1)), 1 / (s * n * n)) / s)
        z += weight * by_image
        rest = y - by_run[:, None] - (by_image - by_image.mean())
        squares = float(np.square(rest, out=rest).sum())  # np.vdot would wait for BLAS threads: 8x slower on busy cores
        interplay += weight**2 * squares / (s * (s - 1) * n * (n - 1))
    df = sum(terms) ** 2 / sum(term**2 / (len(y) - 1) for term, y in zip(terms, values, strict=True))
    return Distance(estimate, sum(terms), float(z.var(ddof=1)) / n, interplay, df)
