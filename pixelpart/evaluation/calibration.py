"""`calibrate`: how often the tests of `compare` see a difference where there is none, AT against AT.

In simulation, an image is right if its ease, the seed's skill and chance add up to more than a threshold:
sqrt(ρ) z_i + sqrt(1-ρ) e_si + α_s > -μ, with z_i and e_si standard normal. Both sides share μ and z_i: they are one
method.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np

from pixelpart.errors import UserError
from pixelpart.evaluation.compare import align, check_method, read_figures
from pixelpart.evaluation.statistics import BOOTSTRAP, MCNEMAR, difference, wilson
from pixelpart.evaluation.store import FlagArray

LEVEL = 0.05
MOST_SPLITS = 1000  # more are drawn at random
Progress = Callable[[str, int, int], None]  # what, done, of how many


@dataclass(frozen=True)
class World:
    """What is simulated: how many images, the accuracy, how far seeds differ in it, how alike they find the images.

    `deviation` is that of a seed's accuracy on infinitely many images. `correlation` is ρ above, between two seeds.
    """

    images: int = 10_000
    accuracy: float = 0.5
    deviation: float = 0.003
    correlation: float = 0.95

    def __post_init__(self) -> None:
        if self.images < 2:
            raise UserError(f"images {self.images} is not a number of images above 1")
        for name, value in (("accuracy", self.accuracy), ("correlation", self.correlation)):
            if not 0 < value < 1:
                raise UserError(f"{name} {value} is not between 0 and 1")
        if not 0 <= self.deviation < 0.5:
            raise UserError(f"deviation {self.deviation} is not a share below 0.5, such as 0.003")


@dataclass(frozen=True)
class Rate:
    """How often a test of equals, so many runs against so many, says that they differ."""

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
class Case:
    """One attack (none: a world made up): its runs against each other, and the simulation of a world like theirs."""

    attack: str | None
    runs: int
    splits: list[Rate]
    world: World
    simulated: list[Rate]

    def __str__(self) -> str:
        w, cells = self.world, [["runs a side", "test", "says different", "interval of 95 %"]]
        for rate in self.simulated:
            low, high = wilson(rate.different, rate.repeats)
            times = f"{rate.share:.1%} of {rate.repeats:,} times"
            cells.append([str(rate.seeds), rate.test, times, f"[{100 * low:.1f}, {100 * high:.1f}]"])
        lines = [
            f"{rate.seeds} against {rate.seeds} of these runs, {rate.test}: {rate.different} of {rate.repeats} ways to "
            f"choose them say different ({rate.share:.1%})"
            for rate in self.splits
        ]
        if self.attack and not lines:
            lines = ["four runs or more can also be set against each other"]
        head = f"{self.attack}, {self.runs} runs" if self.attack else "no runs given"
        world = (
            f"simulated: {w.images:,} images, accuracy {w.accuracy:.2%}, deviation between seeds {w.deviation:.2%}, "
            f"correlation {w.correlation:.3f}"
        )
        return "\n".join([head, *lines, world, *align(cells)])


@dataclass(frozen=True)
class Calibration:
    """What a test at 5 % does where nothing differs: it should say different 5 % of the time."""

    cases: list[Case]

    def as_json(self) -> dict[str, Any]:
        cases = [
            {"attack": case.attack, "runs": case.runs, "splits": [rate.as_json() for rate in case.splits]}
            | {"world": asdict(case.world), "simulated": [rate.as_json() for rate in case.simulated]}
            for case in self.cases
        ]
        return {"level": LEVEL, "cases": cases}

    def __str__(self) -> str:
        head = f"One method against itself: a test of methods at {LEVEL:.0%} should say different that often."
        tail = "McNemar is about two models, and models differ as soon as seeds do."
        return "\n\n".join([head, *map(str, self.cases), tail])


def calibrate(
    runs: Sequence[Path | str] = (),
    *,
    attacks: Sequence[str] | None = None,
    checkpoint: str = "best",
    seeds: Sequence[int] = (1, 2, 3, 5, 8),
    repeats: int = 2000,
    seed: int = 0,
    images: int | None = None,
    accuracy: float | None = None,
    deviation: float | None = None,
    correlation: float | None = None,
    progress: Progress | None = None,
) -> Calibration:
    """How often the tests say "different" of one method against itself.

    With four runs or more of one method: over all ways to choose two equal groups of them. Always: in simulation, with
    so many seeds a side, in a World like that of the runs, or the default one; what is given replaces its fields.
    """
    if any(count < 1 for count in seeds) or not seeds or repeats < 1:
        raise UserError(f"seeds {list(seeds)} and repeats {repeats} are not whole numbers above 0")
    given: dict[str, Any] = {"accuracy": accuracy, "deviation": deviation, "correlation": correlation}
    given = {name: value for name, value in (given | {"images": images}).items() if value is not None}
    folders = [Path(folder) for folder in runs]
    found: list[tuple[str | None, FlagArray | None]] = [(None, None)]
    if folders:
        check_method(folders)
        if len(folders) < 2:
            raise UserError(f"{folders[0]} alone does not show how far seeds differ; give two runs of it, or none")
        figures, _ = read_figures(folders, attacks=attacks, checkpoint=checkpoint)
        found = [(one.attack, one.flags) for one in figures]
    cases = []
    for attack, flags in found:
        here = replace(World() if flags is None else like(flags), **given)
        splits = []
        if flags is not None and len(flags) >= 4:
            splits = [split(flags, size, seed=seed) for size in (1, len(flags) // 2)]
        simulated = [simulate(here, count, repeats=repeats, seed=seed, progress=progress) for count in seeds]
        cases.append(Case(attack, len(folders), splits, here, simulated))
    return Calibration(cases)


def simulate(world: World, seeds: int, *, repeats: int, seed: int, progress: Progress | None = None) -> Rate:
    """How often so many seeds a side are told apart in a world where both sides are the same method."""
    generator, different = np.random.default_rng([seed, seeds]), 0
    for done in range(repeats):
        flags = draw(world, 2 * seeds, generator)
        different += difference(flags[:seeds], flags[seeds:]).p < LEVEL
        if progress:
            progress(f"{seeds} against {seeds}", done + 1, repeats)
    return Rate(seeds, MCNEMAR if seeds == 1 else BOOTSTRAP, different, repeats)


def draw(world: World, runs: int, generator: np.random.Generator) -> FlagArray:
    """Flags (runs, images) of so many seeds of one method."""
    mu = NormalDist().inv_cdf(world.accuracy)
    skill = world.deviation / NormalDist().pdf(mu)  # a shift of the threshold moves the accuracy by its density there
    ease, chance = np.float32(math.sqrt(world.correlation)), np.float32(math.sqrt(1 - world.correlation))
    latent = chance * generator.standard_normal((runs, world.images), dtype=np.float32)
    latent += ease * generator.standard_normal(world.images, dtype=np.float32)
    latent += np.float32(skill) * generator.standard_normal((runs, 1), dtype=np.float32)
    return latent > -mu


def split(flags: FlagArray, size: int, *, seed: int = 0) -> Rate:
    """How often two groups of `size` out of these runs of one method are told apart, over all ways to choose them."""
    results = [difference(flags[list(a)], flags[list(b)]).p < LEVEL for a, b in _ways(len(flags), size, seed)]
    return Rate(size, MCNEMAR if size == 1 else BOOTSTRAP, sum(results), len(results))


def _ways(runs: int, size: int, seed: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    if math.comb(runs, size) * math.comb(runs - size, size) // 2 > MOST_SPLITS:
        generator = np.random.default_rng([seed, runs, size])
        for _ in range(MOST_SPLITS):
            order = generator.permutation(runs).tolist()
            yield tuple(order[:size]), tuple(order[size : 2 * size])
        return
    for a in itertools.combinations(range(runs), size):
        rest = [run for run in range(runs) if run > a[0] and run not in a]  # a holds the lowest number of both
        yield from ((a, b) for b in itertools.combinations(rest, size))


def like(flags: FlagArray) -> World:
    """The World of some runs (seeds, images) of one method, as far as they show it.

    The squared deviation is the variance of the accuracies less what so few images alone bring into it,
    Σ_si (x_si - m_s - m_i + m)² / (s-1)(n-1)n. ρ is the tetrachoric correlation, of which θ is the arcsine:
    P(both right) = p² + ∫_0^θ exp(-μ²/(1 + sin t)) dt / 2π (Drezner and Wesolowsky, 1990).
    """
    s, n = flags.shape
    p = float(flags.mean())
    if not 0 < p < 1:
        raise UserError(f"an accuracy of {p:.0%} in all runs leaves nothing to calibrate")
    rest = flags - flags.mean(1, keepdims=True) - flags.mean(0) + p
    spare = float(flags.mean(1).var(ddof=1)) - float((rest**2).sum()) / ((s - 1) * (n - 1) * n)
    right = flags.sum(0)
    both = float((right * (right - 1)).mean()) / (s * (s - 1))
    theta = np.linspace(0, math.pi / 2, 10_001)
    rise = np.exp(-(NormalDist().inv_cdf(p) ** 2) / (1 + np.sin(theta)))
    area = np.concatenate(([0], np.cumsum(rise[1:] + rise[:-1]))) * (theta[1] / 2)
    correlation = math.sin(np.interp(both, p * p + area / (2 * math.pi), theta))
    return World(n, accuracy=p, deviation=math.sqrt(max(spare, 0)), correlation=min(max(correlation, 0.0001), 0.9999))
