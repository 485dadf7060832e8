"""Intervals of differences between arms, and of ours minus the paper's."""

import math
import re
from collections.abc import Sequence
from statistics import fmean, stdev

from pixelpart.comparison.intervals import PerImage, crossed_interval, student
from pixelpart.evaluation.statistics import difference
from pixelpart.experiments.common.paper import Number

SAME_AS_IN_PAPER = {"apgd": "autoattack"}  # columns that the paper has under another name: the two differ by < .05
PAPER_SEEDS = 3
# Standard deviations between seeds of accuracies on CIFAR-10, in points, for the interval of ours - paper.
DEVIATIONS = {r"natural|.+-[1-5]": 0.30, r"(adaptive-)?(pgd|mma)\d+": 0.25, r"autoattack": 0.20}


def apart(a: PerImage, b: PerImage) -> tuple[float, float, float]:
    """a - b in points with its interval: of `statistics.difference` if these are flags."""
    if a.dtype == b.dtype == bool:
        found = difference(a, b)
        return 100 * found.estimate, 100 * found.low, 100 * found.high
    return crossed_interval([(1.0, a), (-1.0, b)])


def minus_paper(mean: float, seeds: int, column: str, paper: Number | None) -> tuple[float, float, float] | None:
    """Ours minus the paper's, ± 1.96 s sqrt(1/k + 1/3), s the deviation between seeds and k our seeds; else None."""
    name = SAME_AS_IN_PAPER.get(column, column)
    s = next((s for pattern, s in DEVIATIONS.items() if re.fullmatch(pattern, name)), None)
    if paper is None or s is None:
        return None
    apart, half = mean - paper[0], 1.96 * s * math.sqrt(1 / seeds + 1 / PAPER_SEEDS)
    return apart, apart - half, apart + half


def paired(apart: Sequence[float]) -> tuple[float, float, float, float]:
    """Mean, 95 % interval and two-sided p of Student's paired test."""
    from scipy.special import stdtr

    df, error = len(apart) - 1, stdev(apart) / math.sqrt(len(apart))
    mean, half = fmean(apart), student(df) * error
    return mean, mean - half, mean + half, 2 * float(stdtr(df, -abs(mean) / error)) if error else float(mean == 0)
