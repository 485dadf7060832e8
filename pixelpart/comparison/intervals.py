"""Intervals of an accuracy over seeds and images."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pixelpart.evaluation.statistics import normal_quantile, wilson

PerImage = NDArray[Any]  # (n,) or (seeds, n): whether an image is classified correctly, or a share of its versions


def accuracy_interval(flags: PerImage) -> tuple[float, float]:
    """The interval, in %, of the mean of runs (seeds, images) against other seeds and other images.

    Wilson's for one run; for several that of `crossed_interval`.
    """
    if len(flags) == 1 and flags.dtype == bool:
        low, high = wilson(int(flags.sum()), flags.shape[1])
        return 100 * low, 100 * high
    return crossed_interval([(1.0, flags)])[1:]


def crossed_interval(groups: Sequence[tuple[float, PerImage]]) -> tuple[float, float, float]:
    """sum_j w_j mean(x_j) in points, x_j (seeds, images) on the same images, with its interval.

    ± sqrt(t² V_seeds + z² max(V_images - V_interaction, 0)), as in `statistics.crossed_bootstrap`, for any numbers and
    groups. With one seed in each group, only the images count.
    """
    seeds = interaction = mean = 0.0
    n, fewest = groups[0][1].shape[1], min(len(x) for _, x in groups)
    columns = np.zeros(n)
    for weight, flags in groups:
        x, s = 100.0 * weight * flags, len(flags)
        rows, images = x.mean(1, keepdims=True), x.mean(0, keepdims=True)
        mean, columns = mean + float(x.mean()), columns + images[0]
        if fewest > 1:
            # seeds that tie do not prove that seeds do not matter
            seeds += max(float(rows.var(ddof=1)), (100 * weight / n) ** 2) / s
            interaction += float(((x - rows - images + x.mean()) ** 2).sum()) / (s * (s - 1) * n * (n - 1))
    z = normal_quantile(0.95)
    t = student(len(groups) * (fewest - 1)) if fewest > 1 else 0.0
    images_variance = max(float(columns.var(ddof=1)) / n - interaction, 0.0)
    half = math.sqrt(t**2 * seeds + z**2 * images_variance)
    return mean, mean - half, mean + half


def student(df: int) -> float:
    """The t with P(|T| < t) = 95 % for Student's T."""
    from scipy.special import stdtrit

    return float(stdtrit(df, 0.975))
