"""One frozen network: the uniform eps whose damage, sum b |g|, is that of a mask 8|7, of another image's, of its mean.

255 sum b |g| / sum |g| over the first 2,048 test images, with a bootstrap over images. Nothing is attacked.
"""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from pixelpart.experiments.common import plots
from pixelpart.experiments.common.experiment import Experiment, Runner
from pixelpart.experiments.common.results import Results
from pixelpart.experiments.common.scales import DEMO, EPS, FAST
from pixelpart.experiments.common.tables import Table

BUDGETS = ("CAM", "shuffled", "flat")
PAIRS = (("CAM", "flat"), ("shuffled", "flat"), ("CAM", "shuffled"))
RESAMPLES = 2000


def equivalent(per_image: Sequence[Sequence[float]]) -> dict[str, list[float]]:
    """The equivalent eps of each budget, and the difference of each pair: estimate and 95 % bootstrap interval.

    `per_image` is that of `measures.damage`.
    """
    n, draw = len(per_image), np.random.default_rng(0)
    counts = np.vstack([np.ones((1, n)), draw.multinomial(n, np.full(n, 1 / n), size=RESAMPLES)])  # the first: all once
    totals = counts @ np.array(per_image)
    eps = dict(zip(BUDGETS, (totals[:, 1:] / totals[:, :1]).T, strict=True))
    found = eps | {f"{a} - {b}": eps[a] - eps[b] for a, b in PAIRS}
    return {
        name: [float(values[0]), *map(float, np.quantile(values[1:], (0.025, 0.975)))] for name, values in found.items()
    }


def analyse(results: Results, runner: Runner) -> list[Table]:
    runs = [run for run in results.runs["U8"] if "damage" in run.measures]
    if not runs:
        return []
    results.runs["U8"] = runs[:1]  # one network
    results.analysis = equivalent(runs[0].measures["damage"]["per image"])
    rows = [[name, "{:.3f} [{:.3f}, {:.3f}]".format(*found)] for name, found in results.analysis.items()]
    head = ["budget", "equivalent eps, 1/255 [95 % interval]"]
    return [Table(f"8|7 on the network of seed {runs[0].seed}", head, rows)]


def plot(results: Results) -> Figure:
    with plots.style():
        figure, (axes,) = plots.panels(1, width=5.0, height=2.2, title=plots.heading(results))
        for row, budget in enumerate(BUDGETS if results.analysis else ()):
            estimate, low, high = results.analysis[budget]
            axes.plot([low, high], [row, row], color=plots.COLOURS[0], linewidth=1.6, solid_capstyle="butt")
            axes.plot(estimate, row, "o", color=plots.COLOURS[0], markersize=5)
        axes.set_yticks(range(len(BUDGETS)), BUDGETS)
        axes.set_ylim(len(BUDGETS) - 0.5, -0.5)
        axes.set_xlabel("uniform eps of the same damage, 1/255")
        return figure


EXPERIMENT = Experiment(
    arms=lambda scale: {"U8": scale.uniform(EPS)},
    scales={"paper": FAST, "demo": DEMO},
    measures=("pixelpart.experiments.common.measures:damage",),
    seeds={"paper": range(100, 101), "demo": range(1)},
    analyse=analyse,
    plot=plot,
    notes=(
        "shuffled: the mask of another image; flat: the mean of the mask. Predicted: CAM above flat, shuffled between. "
        "Descriptive: one network, intervals over images only.",
    ),
)
