"""Confidence intervals of accuracies, and tests of the difference between two."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, stdev
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pixelpart.errors import UserError

FlagArray = NDArray[np.bool_]  # (n,) or (seeds, n): which images are classified correctly
PerImage = NDArray[
    Any
]  # (n,) or (seeds, n): such flags, or numbers such as the share of an image's versions that are classified correctly

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
    mean ± z sqrt(variance/n) for large n, and of nonzero width if all shares are equal.
    """
    spread = normal_quantile(confidence) ** 2 / n
    centre, half = mean + spread / 2, math.sqrt(spread * (variance + spread / 4))
    return (centre - half) / (1 + spread), (centre + half) / (1 + spread)


def difference(a: FlagArray, b: FlagArray) -> Difference:
    """Accuracy of runs a (seeds, images) minus that of runs b on the same images, tested as their number allows.

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


# -- several seeds


def accuracy_interval(x: PerImage) -> tuple[float, float]:
    """The interval of the mean of runs (seeds, images): Wilson's for the flags of one run, else `crossed_interval`.

    For flags it is clipped to [0, 1].
    """
    if len(x) == 1 and x.dtype == bool:
        return wilson(int(x.sum()), x.shape[1])
    _, low, high = crossed_interval(x)
    return (max(low, 0.0), min(high, 1.0)) if x.dtype == bool else (low, high)


def crossed_interval(*groups: PerImage) -> tuple[float, float, float]:
    """The mean of runs (seeds, images), or that of runs a minus that of runs b on the same images, with its interval.

    The interval of `crossed_bootstrap`, also for numbers. With one seed in a group, only the images count.
    """
    signs, fewest = (1, -1)[: len(groups)], min(map(len, groups))
    estimate = float(sum(sign * x.mean() for sign, x in zip(signs, groups, strict=True)))
    if fewest > 1:
        half = variances(groups, signs, df=len(groups) * (fewest - 1)).half_width(0.95)
    else:
        by_image = sum(sign * x.mean(0) for sign, x in zip(signs, groups, strict=True))
        half = normal_quantile(0.95) * math.sqrt(np.var(by_image, ddof=1) / groups[0].shape[1])
    return estimate, estimate - half, estimate + half


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
    form (`variances`): these are the values for infinitely many resamples.
    """
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[1] or a.shape[1] < 2:
        raise UserError(f"flags of shape {a.shape} and {b.shape} are not (seeds, images) on the same images")
    if min(len(a), len(b)) < 2:
        raise UserError(
            f"{len(a)} against {len(b)} runs: a single run does not show how much the accuracy varies with the seed; "
            "give two or more runs on both sides, or one run on each side to compare the two models"
        )
    estimate = int(a.sum()) / a.size - int(b.sum()) / b.size
    found = variances((a, b), (1, -1), df=2 * (min(len(a), len(b)) - 1))
    half = found.half_width(confidence)
    return Difference(estimate, estimate - half, estimate + half, found.p_value(abs(estimate)), BOOTSTRAP)


@dataclass(frozen=True)
class Variances:
    """The parts of a variance, as `variances` computes them, and the degrees of freedom of V_seeds."""

    seeds: float
    images: float
    interaction: float
    df: float

    @property
    def rest(self) -> float:
        """max(V_images - V_interaction, 0), the part of the variance that seeds do not show."""
        return max(self.images - self.interaction, 0.0)

    def half_width(self, confidence: float) -> float:
        """sqrt(t² V_seeds + z² rest), t Student's quantile with df degrees of freedom, z the normal quantile."""
        z, t = normal_quantile(confidence), student_quantile(confidence, self.df)
        return math.sqrt(t**2 * self.seeds + z**2 * self.rest)

    def p_value(self, distance: float) -> float:
        """The p-value at which `half_width` is this distance."""
        from scipy.optimize import brentq
        from scipy.special import ndtri, stdtr  # the normal quantile, Student's distribution function

        def p_of(t: float) -> float:
            return max(2 * float(stdtr(self.df, -t)), 1e-300)

        def excess(t: float) -> float:
            z = float(ndtri(p_of(t) / 2))
            return t * t * self.seeds + z * z * self.rest - distance * distance

        longest = distance / math.sqrt(self.seeds) * (1 + 1e-9)  # rest >= 0
        return p_of(brentq(excess, 0.0, longest, xtol=1e-15, rtol=1e-14)) if distance else 1.0


def variances(values: Sequence[PerImage], weights: Sequence[float], *, df: float | None = None) -> Variances:
    """The variances of Σ_j w_j mean(x_j), x_j (seeds, images) with S_j >= 2 seeds on the same n images.

        V_seeds       = Σ_j w_j² var(x_js) / S_j     x_js: the mean of a seed
        V_images      = var(z_i) / n                 z_i = Σ_j w_j x_ji, x_ji: the mean of an image
        V_interaction = Σ_j w_j² Σ_si (x_jsi - x_js - x_ji + x_j)² / S_j(S_j-1)n(n-1)

    Seeds that tie do not prove that seeds do not matter: var(x_js) is at least 1/(S_j n²), which is its value if one
    seed has one more correct image than the others. Without `df`, Satterthwaite's, V_seeds² / Σ_j t_j² / (S_j-1),
    with the terms t_j of V_seeds.
    Flags with weights of 1 and -1 are summed as integers, so that no order of summation matters.
    """
    n, common = values[0].shape[1], math.lcm(*map(len, values))
    terms, interaction, z = list[float](), 0.0, np.zeros(n, dtype=np.int64)
    for x, weight in zip(values, weights, strict=True):
        s, exact = len(x), np.int64 if x.dtype == bool else x.dtype
        rows, columns = x.sum(1, dtype=exact), x.sum(0, dtype=exact)
        total = rows.sum().item()
        terms.append(weight**2 * max(_squares(s * rows - total) / (s * (s - 1)), 1.0) / (s * n) ** 2)
        within = (x * x).sum(dtype=exact).item() - _squares(rows) / n - _squares(columns) / s + total**2 / (s * n)
        interaction += weight**2 * within / (s * (s - 1) * n * (n - 1))
        z = z + weight * (common // s) * columns
    images = (n * _squares(z) - z.sum().item() ** 2) / ((common * n) ** 2 * (n - 1))
    if df is None:
        df = sum(terms) ** 2 / sum(term**2 / (len(x) - 1) for term, x in zip(terms, values, strict=True))
    return Variances(sum(terms), images, interaction, df)


def _squares(values: NDArray[Any]) -> Any:
    """The sum of squares, an int for integers. (`@` would wait for BLAS threads: 8x slower on busy cores.)"""
    return np.square(values).sum().item()


def t_test(values: Sequence[float]) -> tuple[float, float, float, float]:
    """Mean, 95 % interval and two-sided p of Student's test of mean 0; of differences by seed, it is paired."""
    from scipy.special import stdtr

    df, error = len(values) - 1, stdev(values) / math.sqrt(len(values))
    mean, half = fmean(values), student_quantile(0.95, df) * error
    return mean, mean - half, mean + half, 2 * float(stdtr(df, -abs(mean) / error)) if error else float(mean == 0)


def normal_quantile(confidence: float) -> float:
    """The z with P(|Z| < z) = confidence for a standard normal Z."""
    return NormalDist().inv_cdf((1 + confidence) / 2)


def student_quantile(confidence: float, df: float) -> float:
    """The t with P(|T| < t) = confidence for Student's T with df degrees of freedom."""
    from scipy.special import stdtrit

    return float(stdtrit(df, (1 + confidence) / 2))
