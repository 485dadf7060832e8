"""Figures 2 and 5 to 7: heat maps of AT and PART after some epochs; as a number, how much of a map lies on the object.

The raw map of the predicted class, brought to the size of the image and scaled to sum 1: its share on the object over
the object's share of the area, mean over images, next to that of the source `centre`, a Gaussian.
"""

from typing import Any

import torch
from matplotlib.figure import Figure

from pixelpart import data, masks
from pixelpart.errors import UserError
from pixelpart.experiments.common import plots
from pixelpart.experiments.common.experiment import Experiment, Runner
from pixelpart.experiments.common.measures import PICTURES
from pixelpart.experiments.common.results import Results, mean_of
from pixelpart.experiments.common.scales import Scale
from pixelpart.experiments.common.tables import Table, number


def analyse(results: Results, runner: Runner) -> list[Table]:
    found = [run.measures["heat_maps"] for runs in results.runs.values() for run in runs if "heat_maps" in run.measures]
    middle = mean_of(one["gaussian"] for one in found)
    results.analysis = {"gaussian": middle, "dead": [one["dead"] for one in found]}
    rows = [["centred Gaussian", number(middle)], ["a flat map", "1.00"]]
    return [Table("Share on the object over its share of the area", ["map", "number"], rows)]


def plot(results: Results) -> Figure:
    """A row per picture: the image, then the maps of both methods after each epoch."""
    runs = {arm: found[0] for arm, found in results.runs.items() if found and "heat_maps" in found[0].measures}
    kept = {arm: run.measures["heat_maps"] for arm, run in runs.items()}
    epochs = list(next(iter(kept.values()))["maps"]) if kept else []
    with plots.style():
        columns = 1 + len(kept) * len(epochs)
        figure = Figure(figsize=(1.05 * columns, 1.05 * PICTURES + 0.9), layout="constrained")
        figure.suptitle(plots.heading(results, intervals=False), fontsize=9.5, x=0.01, ha="left")
        axes = figure.subplots(PICTURES, columns, squeeze=False)
        for one in axes.flat:
            one.set_xticks([])
            one.set_yticks([])
        for row, place in enumerate(next(iter(kept.values()))["index"] if kept else []):
            picture = _picture(results.data, place)
            if picture is not None:
                axes[row, 0].imshow(picture)
            for column, (arm, epoch) in enumerate([(arm, epoch) for arm in kept for epoch in epochs], start=1):
                raw = torch.tensor(kept[arm]["maps"][epoch][row])
                heat = masks.upscale(raw[None], (32, 32) if picture is None else picture.shape[:2])[0]
                if picture is not None:
                    axes[row, column].imshow(picture.mean(-1), cmap="gray", vmin=0, vmax=255)
                axes[row, column].imshow(heat.numpy(), cmap="inferno", alpha=0.65, vmin=0, vmax=1)
                axes[0, column].set_title(f"{arm}\nepoch {epoch}", fontsize=8)
        return figure


def _picture(name: str, place: int) -> Any:
    try:
        return data.load(name, split="test")[0][place].permute(1, 2, 0).numpy()
    except UserError:  # the set is not at hand: the maps alone
        return None


EXPERIMENT = Experiment(
    arms=Scale.at_and_part,
    attacks=("natural",),
    measures=("pixelpart.experiments.common.measures:heat_maps",),
    columns=lambda scale: ["natural", *(f"epoch {epoch}" for epoch in scale.keep)],
    analyse=analyse,
    plot=plot,
    notes=("epoch N: how many times more of the map lies on the object than of a flat one. CIFAR-10 has no objects.",),
)
