"""One frozen network: the uniform eps whose damage, sum b |g|, is that of a mask 8|7, of another image's, of its mean.

255 sum b |g| / sum |g| over the first 2,048 test images, with a bootstrap over images. Nothing is attacked.
"""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from pixelpart.experiments.common import plots
from pixelpart.experiments.common.experiment import Experiment, Runner
from pixelpart.experiments.common.measures import damage_sums
from pixelpart.experiments.common.results import Results
from pixelpart.experiments.common.scales import DEMO, EPS, FAST
from pixelpart.experiments.common.tables import Table
from pixelpart.runs import Run

CONTROLS = {"CAM": "none", "shuffled": "shuffled", "flat": "flat"}
RESAMPLES = 2000


def equivalent(per_image: Any) -> dict[str, dict[str, list[float]]]:
    """For each budget its equivalent eps, and that minus the one of `flat`: estimate and 95 % bootstrap interval.

    `per_image` is that of `damage_sums`.
    """
    n, draw = len(per_image), np.random.default_rng(0)
    counts = np.vstack([np.ones((1, n)), draw.multinomial(n, np.full(n, 1 / n), size=RESAMPLES)])  # the first: all once
    totals = counts @ per_image
    eps = dict(zip(CONTROLS, (totals[:, 1:] / totals[:, :1]).T, strict=True))
    found = {}
    for name, values in eps.items():
        columns = {"eps": values} | ({"minus flat": values - eps["flat"]} if name != "flat" else {})
        found[name] = {
            key: [float(value[0]), *map(float, np.quantile(value[1:], (0.025, 0.975)))]
            for key, value in columns.items()
        }
    return found


def analyse(results: Results, runner: Runner) -> list[Table]:
    runs = [run for run in results.runs["U8"] if (run.folder / "checkpoints" / "last.safetensors").exists()]
    if not runs:
        results.notes.append("There is no U8 run with its last checkpoint.")
        return []
    results.analysis = found = equivalent(damage_sums(Run(runs[0].folder), list(CONTROLS.values()), runner.device))
    rows = [[name, *(written(one.get(key)) for key in ("eps", "minus flat"))] for name, one in found.items()]
    return [Table(f"8|7, seed {runs[0].seed}", ["budget", "equivalent eps, 1/255 [95 % interval]", "minus flat"], rows)]


def written(found: list[float] | None) -> str:
    return "{:.4f} [{:.4f}, {:.4f}]".format(*found) if found else ""


def plot(results: Results) -> Figure:
    with plots.style():
        figure, (axes,) = plots.panels(1, width=5.0, height=2.2, title=plots.heading(results))
        for row, one in enumerate(results.analysis.values()):
            estimate, low, high = one["eps"]
            axes.plot([low, high], [row, row], color=plots.COLOURS[0], linewidth=1.6, solid_capstyle="butt")
            axes.plot(estimate, row, "o", color=plots.COLOURS[0], markersize=5)
        axes.set_yticks(range(len(CONTROLS)), list(CONTROLS))
        axes.set_ylim(len(CONTROLS) - 0.5, -0.5)
        axes.set_xlabel("uniform eps of the same damage, 1/255")
        return figure


EXPERIMENT = Experiment(
    arms=lambda scale: {"U8": scale.uniform(EPS)},
    scales={"paper": FAST, "demo": DEMO},
    seeds={"paper": range(100, 101), "demo": range(1)},
    analyse=analyse,
    plot=plot,
    notes=("Predicted: CAM above flat, shuffled between. Descriptive: one network, intervals over images only.",),
)
