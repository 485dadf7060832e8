"""Confidence intervals of accuracies, and tests of the difference between two."""

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from pixelpart.errors import UserError
from pixelpart.evaluation.result import FlagArray

MCNEMAR = "McNemar, exact"
BOOTSTRAP = "bootstrap over seeds and images"


@dataclass(frozen=True)
class Difference:
    """One accuracy minus another, its confidence interval, the p-value of "no difference" and the test used."""

    estimate: float
    low: float
    high: float
    p: float
    test: str

    def as_json(self) -> dict[str, Any]:
        return {"estimate": self.estimate, "interval": [self.low, self.high], "p": self.p, "test": self.test}


def wilson(successes: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson's score interval for a proportion of `successes` in `n`.

    (p + z²/2n ± z sqrt(p(1-p)/n + z²/4n²)) / (1 + z²/n), p = successes/n, z the normal quantile (Wilson, 1927).
    """
    p = successes / n
    low, high = score_interval(p, p * (1 - p), n, confidence)
    return low, 1.0 if successes == n else high  # the formula is exactly 1 there, but rounding may push it above


def score_interval(mean: float, variance: float, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson's interval for the mean of n independent shares in [0,1] with this variance instead of p(1-p).

    (mean + z²/2n ± z sqrt(variance/n + z²/4n²)) / (1 + z²/n): Wilson's if each share is 0 or 1, close to
    mean ± z sqrt(variance/n) for large n, and wider than 0 if all shares are equal.
    """
    spread = normal_quantile(confidence) ** 2 / n
    centre, half = mean + spread / 2, math.sqrt(spread * (variance + spread / 4))
    return (centre - half) / (1 + spread), (centre + half) / (1 + spread)


def difference(a: FlagArray, b: FlagArray) -> Difference:
    """Accuracy of runs a (seeds, images) minus that of runs b on the same images, with the test for that many runs.

    One run on each side: McNemar's test of the two models. Several: the crossed bootstrap, a test of the two methods.
    """
    if len(a) == len(b) == 1:
        return paired(a[0], b[0])
    return crossed_bootstrap(a, b)


# -- two models


def mcnemar(a_only: int, b_only: int) -> float:
    """The two-sided p-value of McNemar's exact test, from the numbers of images that only one of two models gets right.

    If the models were equally accurate, each such image would belong to either with probability 1/2:
    p = 2 P(K <= min(a_only, b_only)), K binomial(a_only + b_only, 1/2), at most 1 (McNemar, 1947; exact after
    Edwards, 1948).
    """
    from scipy.special import bdtr  # the binomial distribution function; scipy.stats takes four times as long to import

    return min(1.0, 2 * float(bdtr(min(a_only, b_only), a_only + b_only, 0.5)))


def paired(a: FlagArray, b: FlagArray) -> Difference:
    """Accuracy of one model minus that of another on the same images (n,), with McNemar's p-value.

    The interval is that of Bonett and Price (2012): d ± z sqrt((s - d²) / (n+2)), where d and s are difference and sum
    of (a_only+1)/(n+2) and (b_only+1)/(n+2). Close to p = 0.05, interval and p-value may disagree about 0.
    """
    if a.shape != b.shape or a.ndim != 1 or not a.size:
        raise UserError(f"flags of shape {a.shape} and {b.shape} are not those of two models on the same images")
    n, a_only, b_only = len(a), int((a & ~b).sum()), int((b & ~a).sum())
    d, s = (a_only - b_only) / (n + 2), (a_only + b_only + 2) / (n + 2)
    half = normal_quantile(0.95) * math.sqrt((s - d * d) / (n + 2))
    return Difference((a_only - b_only) / n, max(d - half, -1.0), min(d + half, 1.0), mcnemar(a_only, b_only), MCNEMAR)


# -- two methods


def crossed_bootstrap(a: FlagArray, b: FlagArray, *, confidence: float = 0.95) -> Difference:
    """Mean accuracy of runs a (seeds, images) minus that of runs b, tested against other seeds and other images.

    Seeds are resampled within each method, images for both methods at once, independently (Owen, 2007, "The pigeonhole
    bootstrap"). A resample changes the difference by a term from seeds, a term from images and their interaction, each
    rescaled by sqrt(s/(s-1)) for s seeds and for n images, without which few seeds would appear to vary too little. The
    noise of one seed on one image is part of all three terms, so the plain bootstrap counts it three times;
    V = V_seeds + V_images - V_interaction counts it once. With s >= 2 seeds (the smaller number, if the two differ)
    V_seeds is an estimate with 2(s-1) degrees of freedom, while the rest is known well, so the interval adds two
    half-widths in quadrature (Howe, 1974; Zou and Donner, 2008):

        d ± sqrt(t² V_seeds + z² max(V_images - V_interaction, 0)),   t Student's quantile, z the normal quantile;

    p is 1 - confidence of the interval that ends at 0. Accuracy is a mean, so all three variances are known in closed
    form: these are the values for infinitely many resamples.
    """
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[1] or a.shape[1] < 2:
        raise UserError(f"flags of shape {a.shape} and {b.shape} are not (seeds, images) on the same images")
    if min(len(a), len(b)) < 2:
        raise UserError(
            f"{len(a)} against {len(b)} runs: a single run does not show how much the accuracy varies with the seed; "
            "give two or more runs on both sides, or one run on each side to compare the two models"
        )
    df = 2 * (min(len(a), len(b)) - 1)
    seeds, images = _variances(a, b)
    estimate = int(a.sum()) / a.size - int(b.sum()) / b.size
    half = half_width(seeds, images, df, confidence)
    return Difference(estimate, estimate - half, estimate + half, p_value(abs(estimate), seeds, images, df), BOOTSTRAP)


def _variances(a: FlagArray, b: FlagArray) -> tuple[float, float]:
    """V_seeds and max(V_images - V_interaction, 0), from sums of integers, so that no order of summation matters.

    V_seeds = Σ_s (m_s - m)² / s(s-1) of both methods, m_s a seed's accuracy; V_images = Σ_i (d_i - d)² / n(n-1), d_i
    an image's difference; V_interaction = Σ_si (x_si - m_s - m_i + m)² / s(s-1)n(n-1) of both methods.
    """
    n = a.shape[1]
    seeds = interaction = 0.0
    for flags in (a, b):
        s = len(flags)
        rows, columns = flags.sum(1, dtype=np.int64), flags.sum(0, dtype=np.int64)
        total, rows2, columns2 = int(rows.sum()), int(rows @ rows), int(columns @ columns)
        # accuracy changes in steps of 1/n: seeds that tie do not prove that seeds do not matter, so at least one flag
        seeds += max((s * rows2 - total**2) / (s - 1), 1.0) / (s * n) ** 2
        interaction += (total - rows2 / n - columns2 / s + total**2 / (s * n)) / (s * (s - 1) * n * (n - 1))
    apart = len(b) * a.sum(0, dtype=np.int64) - len(a) * b.sum(0, dtype=np.int64)
    images = (n * int(apart @ apart) - int(apart.sum()) ** 2) / ((len(a) * len(b) * n) ** 2 * (n - 1))
    return seeds, max(images - interaction, 0.0)


def half_width(seeds: float, images: float, df: float, confidence: float) -> float:
    """sqrt(t² V_seeds + z² V_images), t Student's quantile with df degrees of freedom, z the normal quantile."""
    from scipy.special import stdtrit  # Student's quantile

    z, t = normal_quantile(confidence), float(stdtrit(df, (1 + confidence) / 2))
    return math.sqrt(t**2 * seeds + z**2 * images)


def p_value(distance: float, seeds: float, images: float, df: float) -> float:
    """The p-value at which `half_width` is this distance."""
    from scipy.optimize import brentq
    from scipy.special import ndtri, stdtr  # the normal quantile, Student's distribution function

    def p_of(t: float) -> float:
        return max(2 * float(stdtr(df, -t)), 1e-300)

    def excess(t: float) -> float:
        z = float(ndtri(p_of(t) / 2))
        return t * t * seeds + z * z * images - distance * distance

    longest = distance / math.sqrt(seeds) * (1 + 1e-9)  # V_images >= 0
    return p_of(brentq(excess, 0.0, longest, xtol=1e-15, rtol=1e-14)) if distance else 1.0


def normal_quantile(confidence: float) -> float:
    """The z with P(|Z| < z) = confidence for a standard normal Z."""
    return NormalDist().inv_cdf((1 + confidence) / 2)
