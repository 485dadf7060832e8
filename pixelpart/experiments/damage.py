"""One frozen network: the uniform eps whose damage, sum b |g|, is that of a mask 8|7, of another image's, of its mean.

255 sum b |g| / sum |g| over the first 2,048 test images, with a bootstrap over images. Nothing is attacked.
"""

from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from pixelpart import data
from pixelpart.config import MaskConfig
from pixelpart.data import as_float
from pixelpart.evaluation.explain import apply_policy
from pixelpart.experiments.common import plots
from pixelpart.experiments.common.experiment import Experiment, More
from pixelpart.experiments.common.results import Results
from pixelpart.experiments.common.scales import DEMO, EPS, FAST
from pixelpart.experiments.common.tables import Table
from pixelpart.experiments.sensitivity import sensitivity
from pixelpart.runs import Run
from pixelpart.runtime.device import choose_device
from pixelpart.runtime.precision import ieee_fp32

CONTROLS = {"CAM": "none", "shuffled": "shuffled", "flat": "flat"}
IMAGES, BATCH, RESAMPLES = 2048, 128, 2000


def sums(run: Run) -> Any:
    """(images, 4): sum |g|, and 255 sum b |g| for each of CONTROLS; masks shuffled within batches of 128."""
    device = choose_device(None)
    model = run.load("last")[0].to(device)
    images, labels = (tensor[:IMAGES] for tensor in data.load(run.config.dataset, split="test"))
    rows = []
    with ieee_fp32(device):
        for index in torch.arange(len(images)).split(BATCH):
            x, y = as_float(images[index].to(device)), labels[index].to(device)
            grads = sensitivity(model, x, y)
            masks = [MaskConfig(rule="mean", control=control) for control in CONTROLS.values()]
            budgets = [apply_policy(model, x, y, mask, eps=EPS, eps_low=7 / 255).budget for mask in masks]
            damage = [255 * (budget[:, 0].double().cpu() * grads).sum((1, 2)) for budget in budgets]
            rows.append(torch.stack([grads.sum((1, 2)), *damage], 1))
    return torch.cat(rows).numpy()


def equivalent(per_image: Any) -> dict[str, dict[str, list[float]]]:
    """For each budget its equivalent eps, and that minus the one of `flat`: estimate and 95 % bootstrap interval."""
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


def analyse(results: Results, more: More) -> list[Table]:
    runs = [run for run in results.runs["U8"] if (run.folder / "checkpoints" / "last.safetensors").exists()]
    if not runs:
        results.notes.append("There is no U8 run with its last checkpoint.")
        return []
    results.analysis = found = equivalent(sums(Run(runs[0].folder)))
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
