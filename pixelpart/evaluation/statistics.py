"""How certain an accuracy is, and a difference between two."""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from pixelpart.errors import UserError
from pixelpart.evaluation.store import FlagArray

MCNEMAR = "McNemar, exact"
BOOTSTRAP = "bootstrap over seeds and images"


@dataclass(frozen=True)
class Difference:
    """One accuracy minus another, the ends of its interval, the p of "no difference", and the test that gave it."""

    estimate: float
    low: float
    high: float
    p: float
    test: str

    def as_json(self) -> dict[str, Any]:
        return {"estimate": self.estimate, "interval": [self.low, self.high], "p": self.p, "test": self.test}


def wilson(successes: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """The ends of Wilson's score interval for a share of `successes` in `n`.

    (p + z²/2n ± z sqrt(p(1-p)/n + z²/4n²)) / (1 + z²/n), p = successes/n, z the normal quantile (Wilson, 1927).
    """
    if not 0 <= successes <= n or n < 1:
        raise UserError(f"{successes} of {n} is not a share; choose 0 <= successes <= n and n >= 1")
    z = _normal(confidence)
    p, spread = successes / n, z * z / n
    centre, half = p + spread / 2, math.sqrt(spread * (p * (1 - p) + spread / 4))
    # for successes == n the formula gives 1 exactly, rounding does not
    return (centre - half) / (1 + spread), 1.0 if successes == n else (centre + half) / (1 + spread)


def difference(a: FlagArray, b: FlagArray, *, confidence: float = 0.95) -> Difference:
    """Accuracy of runs a (seeds, images) minus that of runs b, on the same images, by the test that suits their number.

    One run on each side: McNemar, about these two models. Several: the crossed bootstrap, about their methods.
    """
    if len(a) == len(b) == 1:
        return paired(a[0], b[0], confidence=confidence)
    return crossed_bootstrap(a, b, confidence=confidence)


# -- two models


def mcnemar(a_only: int, b_only: int) -> float:
    """The two-sided p of McNemar's exact test, from the images that only one of two models gets right.

    If the models were equal, each such image would fall to either with probability 1/2: p = 2 P(K <= min(a_only,
    b_only)), K binomial(a_only + b_only, 1/2), at most 1 (McNemar, 1947; exact after Edwards, 1948).
    """
    if min(a_only, b_only) < 0:
        raise UserError(f"{a_only} and {b_only} are not counts of images")
    n, tail, term = a_only + b_only, 0, 1
    for k in range(min(a_only, b_only) + 1):
        tail += term
        term = term * (n - k) // (k + 1)
    return min(1.0, 2 * tail / 2**n)


def paired(a: FlagArray, b: FlagArray, *, confidence: float = 0.95) -> Difference:
    """Accuracy of one model minus that of another on the same images (n,), with McNemar's p.

    The interval is Bonett and Price's (2012): d ± z sqrt((s - d²) / (n+2)), where d and s are difference and sum of
    (a_only+1)/(n+2) and (b_only+1)/(n+2). Close to p = 1 - confidence the two may disagree about 0.
    """
    if a.shape != b.shape or a.ndim != 1 or not a.size:
        raise UserError(f"flags of shape {a.shape} and {b.shape} are not those of two models on the same images")
    n, a_only, b_only = len(a), int((a & ~b).sum()), int((b & ~a).sum())
    d, s = (a_only - b_only) / (n + 2), (a_only + b_only + 2) / (n + 2)
    half = _normal(confidence) * math.sqrt((s - d * d) / (n + 2))
    return Difference((a_only - b_only) / n, max(d - half, -1.0), min(d + half, 1.0), mcnemar(a_only, b_only), MCNEMAR)


# -- two methods


def crossed_bootstrap(
    a: FlagArray, b: FlagArray, *, draws: int | None = None, seed: int = 0, confidence: float = 0.95
) -> Difference:
    """Mean accuracy of runs a (seeds, images) minus that of runs b, where other seeds and other images might have come.

    Seeds are resampled within each method, images for both at once, independently (Owen, 2007, "The pigeonhole
    bootstrap"). A draw moves the difference by a part from seeds, a part from images and a part from their interplay,
    each rescaled by sqrt(s/(s-1)) for s seeds and for n images, without which few seeds seem to spread less than they
    do. What is peculiar to one seed on one image is in all three, so the plain bootstrap counts it three times:
    V = V_seeds + V_images - V_interplay counts it once. Of s >= 2 seeds (the smaller number, if the two differ) V_seeds
    is a guess with 2(s-1) degrees of freedom, the rest is known well, so the interval adds two half-widths as squares
    (Howe, 1974; Zou and Donner, 2008):

        d ± sqrt(t² V_seeds + z² max(V_images - V_interplay, 0)),   t Student's quantile, z the normal one;

    p is 1 - confidence of the interval that ends at 0. As accuracy is a mean, all three variances are known without
    drawing: draws=None takes them as they are for infinitely many draws.
    """
    _check_groups(a, b)
    z, df = _normal(confidence), 2 * (min(len(a), len(b)) - 1)
    seeds, images = _limit(a, b) if draws is None else _drawn(a, b, draws=draws, seed=seed)
    estimate = _share(a) - _share(b)
    half = math.sqrt(_student(confidence, df) ** 2 * seeds + z**2 * images)
    return Difference(estimate, estimate - half, estimate + half, _p(abs(estimate), seeds, images, df), BOOTSTRAP)


def _check_groups(a: FlagArray, b: FlagArray) -> None:
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[1] or a.shape[1] < 2:
        raise UserError(f"flags of shape {a.shape} and {b.shape} are not (seeds, images), on the same images")
    if min(len(a), len(b)) < 2:
        raise UserError(
            f"{len(a)} against {len(b)} runs: from a single run it cannot be known how far another seed would move it; "
            "give two runs or more on both sides, or one run on each to compare the two models"
        )


def _share(flags: FlagArray) -> float:
    return int(flags.sum()) / flags.size


def _limit(a: FlagArray, b: FlagArray) -> tuple[float, float]:
    """V_seeds and max(V_images - V_interplay, 0) of infinitely many draws; sums of whole numbers, so order is nothing.

    V_seeds = Σ_s (m_s - m)² / s(s-1) of both methods, m_s a seed's accuracy; V_images = Σ_i (d_i - d)² / n(n-1), d_i
    an image's difference; V_interplay = Σ_si (x_si - m_s - m_i + m)² / s(s-1)n(n-1) of both methods.
    """
    n = a.shape[1]
    seeds = interplay = 0.0
    for flags in (a, b):
        s = len(flags)
        rows, columns = flags.sum(1, dtype=np.int64), flags.sum(0, dtype=np.int64)
        total, rows2, columns2 = int(rows.sum()), int(rows @ rows), int(columns @ columns)
        # accuracy moves in steps of 1/n: seeds that tie do not show that seeds do not matter, so one flag is the least
        seeds += max((s * rows2 - total**2) / (s - 1), 1.0) / (s * n) ** 2
        interplay += (total - rows2 / n - columns2 / s + total**2 / (s * n)) / (s * (s - 1) * n * (n - 1))
    apart = len(b) * a.sum(0, dtype=np.int64) - len(a) * b.sum(0, dtype=np.int64)
    images = (n * int(apart @ apart) - int(apart.sum()) ** 2) / ((len(a) * len(b) * n) ** 2 * (n - 1))
    return seeds, max(images - interplay, 0.0)


def _drawn(a: FlagArray, b: FlagArray, *, draws: int, seed: int) -> tuple[float, float]:
    """What `_limit` gives, from so many draws."""
    if draws < 2:
        raise UserError(f"draws {draws} is not a number of draws above 1")
    generator, n = np.random.default_rng(seed), a.shape[1]
    # images with the same flags in all runs are alike: how many of each kind are drawn is all that matters
    kinds, counts = np.unique(np.concatenate((a, b)), axis=1, return_counts=True)
    drawn = generator.multinomial(n, counts / n, size=draws) @ kinds.T / n  # accuracy of each run, (draws, runs)
    moved = math.sqrt(n / (n - 1)) * (drawn - np.concatenate((a, b)).mean(1))
    seeds = interplay = 0.0
    for flags, move in ((a, moved[:, : len(a)]), (b, moved[:, len(a) :])):
        s = len(flags)
        weights = generator.multinomial(s, [1 / s] * s, size=draws) / s - 1 / s
        weights *= math.sqrt(s / (s - 1))
        seeds += max(float((weights @ flags.mean(1)).var()), (s * n) ** -2)
        interplay += float((weights * move).sum(1).var())
    images = float((moved[:, : len(a)].mean(1) - moved[:, len(a) :].mean(1)).var())
    return seeds, max(images - interplay, 0.0)


def _p(distance: float, seeds: float, images: float, df: int) -> float:
    """The p at which the interval's half-width is this distance."""

    def too_short(t: float) -> bool:
        z = -NormalDist().inv_cdf(_beyond(t, df) / 2)
        return t * t * seeds + z * z * images < distance * distance

    return _beyond(_bisect(too_short, 0.0, distance / math.sqrt(seeds)), df)


def _normal(confidence: float) -> float:
    """The z that a normal variable stays within with this probability, both ways."""
    if not 0 < confidence < 1:
        raise UserError(f"confidence {confidence} is not between 0 and 1")
    return NormalDist().inv_cdf((1 + confidence) / 2)


@functools.cache
def _student(confidence: float, df: int) -> float:
    """The t that Student's variable stays within with this probability, both ways."""
    high = 1.0
    while _beyond(high, df) > 1 - confidence:
        high *= 2
    return _bisect(lambda t: _beyond(t, df) > 1 - confidence, 0.0, high)


def _beyond(t: float, df: int) -> float:
    """P(|T| > t) for Student's T with an even number of degrees of freedom, and never quite 0.

    1 - sin θ (1 + cos²θ/2 + 1·3/(2·4) cos⁴θ + ... + 1·3···(df-3)/(2·4···(df-2)) cos^(df-2) θ), tan θ = t/sqrt(df)
    (Abramowitz and Stegun, 26.7.4).
    """
    sine, cosine2 = t / math.hypot(t, math.sqrt(df)), df / (df + t * t)
    total = term = 1.0
    for k in range(2, df, 2):
        term *= cosine2 * (k - 1) / k
        total += term
    return max(1 - sine * total, 1e-16)


def _bisect(below: Callable[[float], bool], low: float, high: float) -> float:
    """Where `below` turns from true to false, to the last bit but a few."""
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if below(middle) else (low, middle)
        if high - low <= 1e-14 * high:
            break
    return high
