"""Is it the pixels? Each policy's distance from the curve of robust over natural accuracy that uniform budgets draw."""

from dataclasses import replace

import numpy as np

from pixelpart.evaluation.statistics import t_test
from pixelpart.experiments.common.distances import distances, plot_frontier
from pixelpart.experiments.common.experiment import Experiment, Runner
from pixelpart.experiments.common.measures import SENSITIVITY
from pixelpart.experiments.common.results import Results
from pixelpart.experiments.common.scales import DEMO, FAST, Arms, Scale, uniform_label
from pixelpart.experiments.common.tables import Table, signed

UNIFORM = {"paper": (5, 6, 7, 7.5, 8, 9), "demo": (4, 6, 8, 10, 12)}  # levels of 255
CONTROLS = {"paper": ("shuffled", "flat", "blobs", "inverted"), "demo": ("shuffled", "flat", "inverted")}
FULL_DEMO = replace(DEMO, epochs=12, burn_in=3, images=1000, settings={}, keep=())  # the recipe's own length


def arms(scale: Scale) -> Arms:
    found = {uniform_label(level / 255): scale.uniform(level / 255) for level in UNIFORM[scale.name]}
    if scale.name == "paper":
        found["8|7 CAM"] = scale.config("part")
    found |= eight_four(scale, CONTROLS[scale.name])
    if scale.name == "demo":
        found["8|4 object"] = scale.config("part", eps_low=4 / 255, mask={"source": "object"})
    return found


def eight_four(scale: Scale, controls: tuple[str, ...]) -> Arms:
    """PART 8|4 with fresh masks, a dose large enough to see pixels, and its controls."""
    found = {"8|4 CAM": scale.config("part", eps_low=4 / 255)}
    return found | {f"8|4 {one}": scale.config("part", eps_low=4 / 255, mask={"control": one}) for one in controls}


def analyse(results: Results, runner: Runner) -> list[Table]:
    pairs = [("8|4 CAM", other) for other in results.arms if other.startswith("8|4") and other != "8|4 CAM"]
    tables = distances(results, pairs, simulate=True)
    return tables if results.scale == "paper" else [*tables, *gradient_shares(results)]


def gradient_shares(results: Results) -> list[Table]:
    """|g| on the object minus that of a uniform budget of the same mean, interpolated between the seed's own arms."""
    levels = [uniform_label(level / 255) for level in UNIFORM[results.scale]]
    by_seed: dict[int, dict[str, tuple[float, float]]] = {}  # mean budget and share, by seed and arm
    for arm, runs in results.runs.items():
        for run in runs:
            if run.budget is not None and SENSITIVITY in run.values:
                by_seed.setdefault(run.seed, {})[arm] = (run.budget, run.values[SENSITIVITY])
    rows = []
    for arm in (arm for arm in results.arms if arm not in levels):
        found = [found for found in by_seed.values() if found.keys() >= {arm, *levels}]
        apart = [one[arm][1] - float(np.interp(one[arm][0], *zip(*map(one.get, levels), strict=True))) for one in found]
        if len(apart) > 1:
            mean, low, high, p = t_test(apart)
            rows.append([arm, str(len(apart)), signed(mean, low, high)])
            results.analysis.setdefault("gradient shares", {})[arm] = {"mean": mean, "interval": [low, high], "p": p}
    head = ["arm", "seeds", "mean [95 % interval over seeds]"]
    return [Table(f"{SENSITIVITY} minus that of a uniform budget of the same mean", head, rows)] if rows else []


EXPERIMENT = Experiment(
    arms=arms,
    attacks=("natural", "apgd"),
    measures=("pixelpart.experiments.common.measures:sensitivity",),
    columns=lambda scale: ("natural", "apgd", SENSITIVITY) if scale.name == "demo" else ("natural", "apgd"),
    scales={"paper": FAST, "demo": FULL_DEMO},
    seeds={"paper": range(100, 108), "demo": range(3)},
    fewer={"U5": 4, "U6": 4, "U7": 4, "U9": 4, "8|4 blobs": 4, "8|4 inverted": 4},
    blind={"paper": ""},
    analyse=analyse,
    plot=plot_frontier,
    notes=(
        "U6: 8/255 in the burn-in, then 6/255. D: robust accuracy above the quadratic through the uniform arms.",
        "|g| on object: share of the gradient on the object over the object's share of the area.",
    ),
)
