"""How often `pixelpart compare` calls a method different from itself, in simulation: the table of docs/evaluation.md.

    python benchmarks/calibration.py [--repeats N]

Seed s classifies image i correctly if sqrt(ρ) z_i + sqrt(1-ρ) e_si + α_s > 0, with z_i and e_si standard normal: half
of the images, with a correlation ρ between two seeds. Both sides share z_i: they are the same method.
"""

import argparse
import math
from statistics import NormalDist

import numpy as np

from pixelpart.evaluation.statistics import FlagArray, difference, wilson

LEVEL = 0.05
CORRELATION = 0.95  # ρ
DEVIATIONS = (0.0, 0.003, 0.01)  # of a seed's accuracy on infinitely many images
SEEDS = (1, 2, 3, 5, 8)  # per side


def draw(runs: int, images: int, deviation: float, generator: np.random.Generator) -> FlagArray:
    """Flags (runs, images) of this many seeds of one method."""
    skill = deviation / NormalDist().pdf(0)  # a shift of the threshold changes accuracy by the density there
    ease, noise = np.float32(math.sqrt(CORRELATION)), np.float32(math.sqrt(1 - CORRELATION))
    latent = noise * generator.standard_normal((runs, images), dtype=np.float32)
    latent += ease * generator.standard_normal(images, dtype=np.float32)
    latent += np.float32(skill) * generator.standard_normal((runs, 1), dtype=np.float32)
    return latent > 0


def false_alarms(seeds: int, deviation: float, *, repeats: int, images: int = 10_000) -> int:
    """In how many of `repeats` comparisons of `seeds` against `seeds` runs the test reports a difference."""
    generator, found = np.random.default_rng([0, seeds]), 0
    for _ in range(repeats):
        flags = draw(2 * seeds, images, deviation, generator)
        found += difference(flags[:seeds], flags[seeds:]).p < LEVEL
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=10_000)
    repeats = parser.parse_args().repeats
    for deviation in DEVIATIONS:
        for seeds in SEEDS:
            found = false_alarms(seeds, deviation, repeats=repeats)
            low, high = (f"{100 * end:.1f}" for end in wilson(found, repeats))
            row = f"deviation {deviation:.1%}, {seeds} against {seeds}"
            print(f"{row}: {found / repeats:.1%} of {repeats:,} [{low}, {high}]", flush=True)
