"""`calibrate`: how often the tests of `compare` report a difference where there is none, one method against itself.

In simulation, an image is correct if its ease, the seed's skill and noise add up to more than a threshold:
sqrt(ρ) z_i + sqrt(1-ρ) e_si + α_s > -μ, with z_i and e_si standard normal. Both sides share μ and z_i: they are the
same method.
"""

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pixelpart.comparison.compare import check_same_method, read_results
from pixelpart.errors import UserError
from pixelpart.evaluation.result import FlagArray
from pixelpart.evaluation.statistics import BOOTSTRAP, MCNEMAR, difference, wilson
from pixelpart.runtime.progress import Progress, silent
from pixelpart.runtime.tables import text_table

LEVEL = 0.05
MAX_SPLITS = 1000  # if there are more, that many are drawn at random


@dataclass(frozen=True)
class SimulatedMethod:
    """A method to simulate: number of images, accuracy, its deviation between seeds, and how alike seeds are.

    `deviation` is the standard deviation of a seed's accuracy on infinitely many images. `correlation` is ρ above,
    between two seeds.
    """

    images: int = 10_000
    accuracy: float = 0.5
    deviation: float = 0.003
    correlation: float = 0.95

    def __post_init__(self) -> None:
        if self.images < 2:
            raise UserError(f"images {self.images} is not an integer above 1")
        for name, value in (("accuracy", self.accuracy), ("correlation", self.correlation)):
            if not 0 < value < 1:
                raise UserError(f"{name} {value} is not between 0 and 1")
        if not 0 <= self.deviation < 0.5:
            raise UserError(f"deviation {self.deviation} is not in [0, 0.5); 0.003 is 0.3 percentage points")

    @classmethod
    def estimate(cls, flags: FlagArray) -> "SimulatedMethod":
        """The method whose runs (seeds, images) these are, as far as they show it.

        The squared deviation is the variance of the accuracies minus what a finite number of images adds to it,
        Σ_si (x_si - m_s - m_i + m)² / (s-1)(n-1)n. ρ is the tetrachoric correlation.
        """
        s, n = flags.shape
        p = float(flags.mean())
        if not 0 < p < 1:
            raise UserError(f"the accuracy is {p:.0%} in all runs; nothing can be calibrated from that")
        rest = flags - flags.mean(1, keepdims=True) - flags.mean(0) + p
        variance = float(flags.mean(1).var(ddof=1)) - float((rest**2).sum()) / ((s - 1) * (n - 1) * n)
        correct = flags.sum(0)
        both = float((correct * (correct - 1)).mean()) / (s * (s - 1))
        theta, joint = _joint_accuracy(p)
        correlation = math.sin(np.interp(both, joint, theta))
        return cls(n, p, math.sqrt(max(variance, 0)), min(max(correlation, 0.0001), 0.9999))

    def draw(self, runs: int, generator: np.random.Generator) -> FlagArray:
        """Flags (runs, images) of that many seeds of this method."""
        mu = NormalDist().inv_cdf(self.accuracy)
        skill = self.deviation / NormalDist().pdf(mu)  # a shift of the threshold changes accuracy by the density there
        ease, noise = np.float32(math.sqrt(self.correlation)), np.float32(math.sqrt(1 - self.correlation))
        latent = noise * generator.standard_normal((runs, self.images), dtype=np.float32)
        latent += ease * generator.standard_normal(self.images, dtype=np.float32)
        latent += np.float32(skill) * generator.standard_normal((runs, 1), dtype=np.float32)
        return latent > -mu


@functools.lru_cache(64)
def _joint_accuracy(p: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """θ, and the probability that two seeds of accuracy p and correlation sin θ are both correct at an image.

    P(both correct) = p² + ∫_0^θ exp(-μ²/(1 + sin t)) dt / 2π (Drezner and Wesolowsky, 1990).
    """
    theta = np.linspace(0, math.pi / 2, 10_001)
    integrand = np.exp(-(NormalDist().inv_cdf(p) ** 2) / (1 + np.sin(theta)))
    area = np.concatenate(([0], np.cumsum(integrand[1:] + integrand[:-1]))) * (theta[1] / 2)
    return theta, p * p + area / (2 * math.pi)


def both_correct(accuracy: float, correlation: float) -> float:
    """The probability that two seeds of this accuracy and tetrachoric correlation are both correct at an image."""
    return float(np.interp(math.asin(correlation), *_joint_accuracy(accuracy)))


@dataclass(frozen=True)
class FalsePositives:
    """How often a test of `seeds` against `seeds` runs of one method reports a difference."""

    seeds: int
    test: str
    different: int
    repeats: int

    @property
    def share(self) -> float:
        return self.different / self.repeats

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"share": self.share, "interval": wilson(self.different, self.repeats)}


@dataclass(frozen=True)
class CalibrationCase:
    """One attack (None without runs): its runs tested against each other, and simulations of a method like theirs."""

    attack: str | None
    runs: int
    splits: list[FalsePositives]
    method: SimulatedMethod
    simulated: list[FalsePositives]

    def as_json(self) -> dict[str, Any]:
        return {
            "attack": self.attack, "runs": self.runs, "splits": [rate.as_json() for rate in self.splits],
            "method": asdict(self.method), "simulated": [rate.as_json() for rate in self.simulated],
        }  # fmt: skip

    def __str__(self) -> str:
        lines = [
            f"{rate.seeds} against {rate.seeds} of these runs, {rate.test}: {rate.different} of {rate.repeats} splits "
            f"report a difference ({rate.share:.1%})"
            for rate in self.splits
        ]
        if self.attack and not lines:
            lines = ["with four or more runs, these are also compared with each other"]
        title, m = f"{self.attack}, {self.runs} runs" if self.attack else "no runs given", self.method
        method = (
            f"simulated: {m.images:,} images, accuracy {m.accuracy:.2%}, deviation between seeds {m.deviation:.2%}, "
            f"correlation {m.correlation:.3f}"
        )
        head, cells = ["runs per side", "test", "reports a difference", "95 % interval"], []
        for rate in self.simulated:
            low, high = wilson(rate.different, rate.repeats)
            times = f"{rate.share:.1%} of {rate.repeats:,} times"
            cells.append([str(rate.seeds), rate.test, times, f"[{100 * low:.1f}, {100 * high:.1f}]"])
        return "\n".join([title, *lines, method, text_table(head, cells)])


@dataclass(frozen=True)
class Calibration:
    """How often tests at the 5 % level report a difference where there is none; 5 % of the time is right."""

    cases: list[CalibrationCase]

    def as_json(self) -> dict[str, Any]:
        return {"level": LEVEL, "cases": [case.as_json() for case in self.cases]}

    def __str__(self) -> str:
        head = f"One method against itself: a test of methods should report a difference {LEVEL:.0%} of the time."
        tail = "McNemar's test is about two models, and two models differ as soon as their seeds do."
        return "\n\n".join([head, *map(str, self.cases), tail])


def calibrate(
    runs: Sequence[Path | str] = (),
    *,
    attacks: Sequence[str] | None = None,
    checkpoint: str = "best",
    split: str = "test",
    seeds: Sequence[int] = (1, 2, 3, 5, 8),
    repeats: int = 2000,
    seed: int = 0,
    images: int | None = None,
    accuracy: float | None = None,
    deviation: float | None = None,
    correlation: float | None = None,
    progress: Progress = silent,
) -> Calibration:
    """How often the tests report a difference between one method and itself.

    With four or more runs of one method: over all ways to split them into two equal groups. Always: in simulation, with
    each number of `seeds` per side, of a SimulatedMethod like the runs, or the default one; `images`, `accuracy`,
    `deviation` and `correlation` replace its fields.
    """
    if any(count < 1 for count in seeds) or not seeds or repeats < 1:
        raise UserError(f"seeds {list(seeds)} and repeats {repeats} are not integers above 0")
    fields = {"images": images, "accuracy": accuracy, "deviation": deviation, "correlation": correlation}
    given: dict[str, Any] = {name: value for name, value in fields.items() if value is not None}
    folders = [Path(folder) for folder in runs]
    found: list[tuple[str | None, FlagArray | None]] = [(None, None)]
    if folders:
        check_same_method(folders)
        if len(folders) < 2:
            raise UserError(f"{folders[0]} is a single run; give at least two runs of the method, or none")
        results, _ = read_results(folders, attacks=attacks, checkpoint=checkpoint, split=split)
        found = [(result.attack, result.flags) for result in results]
    cases = []
    for attack, flags in found:
        method = replace(SimulatedMethod() if flags is None else SimulatedMethod.estimate(flags), **given)
        splits = []
        if flags is not None and len(flags) >= 4:
            splits = [compare_splits(flags, size, seed=seed) for size in (1, len(flags) // 2)]
        simulated = [simulate(method, count, repeats=repeats, seed=seed, progress=progress) for count in seeds]
        cases.append(CalibrationCase(attack, len(folders), splits, method, simulated))
    return Calibration(cases)


def simulate(
    method: SimulatedMethod, seeds: int, *, repeats: int, seed: int, progress: Progress = silent
) -> FalsePositives:
    """How often a test reports a difference between two groups of `seeds` runs of this method."""
    generator, different = np.random.default_rng([seed, seeds]), 0
    for done in range(repeats):
        flags = method.draw(2 * seeds, generator)
        different += difference(flags[:seeds], flags[seeds:]).p < LEVEL
        progress(f"{seeds} against {seeds}", done + 1, repeats, "")
    return FalsePositives(seeds, MCNEMAR if seeds == 1 else BOOTSTRAP, different, repeats)


def compare_splits(flags: FlagArray, size: int, *, seed: int = 0) -> FalsePositives:
    """How often a test reports a difference between two groups of `size` of these runs, over all splits."""
    results = [difference(flags[list(a)], flags[list(b)]).p < LEVEL for a, b in splits_of(len(flags), size, seed)]
    return FalsePositives(size, MCNEMAR if size == 1 else BOOTSTRAP, sum(results), len(results))


def splits_of(runs: int, size: int, seed: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """All pairs of disjoint groups of `size` runs, or MAX_SPLITS at random if there are more."""
    if math.comb(runs, size) * math.comb(runs - size, size) // 2 > MAX_SPLITS:
        generator = np.random.default_rng([seed, runs, size])
        for _ in range(MAX_SPLITS):
            order = generator.permutation(runs).tolist()
            yield tuple(order[:size]), tuple(order[size : 2 * size])
        return
    for a in itertools.combinations(range(runs), size):
        rest = [run for run in range(runs) if run > a[0] and run not in a]  # a has the lowest number of both
        yield from ((a, b) for b in itertools.combinations(rest, size))
