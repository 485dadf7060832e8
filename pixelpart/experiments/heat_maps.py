"""Figures 2 and 5 to 7: heat maps of AT and PART after some epochs; as a number, how much of a map lies on the object.

The raw map of the predicted class, brought to the size of the image and scaled to sum 1: its share on the object over
the object's share of the area, mean over images, next to that of the source `centre`, a Gaussian.
"""

from typing import Any

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor

from pixelpart import data, masks
from pixelpart.data import as_float
from pixelpart.errors import UserError
from pixelpart.evaluation.explain import spread_over_classes
from pixelpart.experiments.common import plots
from pixelpart.experiments.common.experiment import Experiment, More
from pixelpart.experiments.common.results import Results, mean_of
from pixelpart.experiments.common.scales import Arms, Scale
from pixelpart.experiments.common.tables import Table, number
from pixelpart.experiments.sensitivity import share_on
from pixelpart.runs import Run
from pixelpart.runtime.device import choose_device
from pixelpart.sweeps.work import Job

PICTURES, CHUNK = 4, 250


def arms(scale: Scale) -> Arms:
    return {label: scale.method(label) for label in ("AT", "PART s=1")}


def measure(run: Run, job: Job) -> dict[str, Any]:
    """For every kept epoch the concentration on the object, if the data set knows its objects, and some maps."""
    device = choose_device(None)
    images, labels = data.load(run.config.dataset, split="test")
    x = as_float(images[: job.images or 10_000])
    dataset = data.of_config(run.config)
    inside = dataset.masks("test")[: len(x)] if dataset.masks else None
    shown = spread_over_classes(labels[: len(x)], PICTURES)
    columns, pictures, dead = {}, {}, {}
    for epoch in job.config.keep:
        model = run.load(f"epoch-{epoch}")[0].to(device)
        raw = torch.cat([masks.cam(model, part.to(device)).cpu() for part in x.split(CHUNK)])
        pictures[epoch] = raw[shown].tolist()
        dead[epoch] = int((raw.amax((1, 2)) <= 0).sum())
        if inside is not None:
            columns[f"epoch {epoch}"] = concentration(raw, inside)
    middle = None if inside is None else concentration(masks.centre(masks.SourceInputs(x, labels)), inside)
    return {"columns": columns, "gaussian": middle, "dead": dead, "index": shown.tolist(), "maps": pictures}


def concentration(maps: Tensor, inside: Tensor) -> float:
    """mean over images of (share of the map on the object) / (share of the area), without maps that are all zero."""
    full = F.interpolate(maps[:, None], size=inside.shape[-2:], mode="bicubic", antialias=True)[:, 0]
    return float(share_on(full.clamp_min(0).double(), inside).nanmean())


def analyse(results: Results, more: More) -> list[Table]:
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
                axes[row, column].imshow(heat, cmap="inferno", alpha=0.65, vmin=0, vmax=1)
                axes[0, column].set_title(f"{arm}\nepoch {epoch}", fontsize=8)
        return figure


def _picture(name: str, place: int) -> Any:
    try:
        return data.load(name, split="test")[0][place].permute(1, 2, 0).numpy()
    except UserError:  # the set is not at hand: the maps alone
        return None


EXPERIMENT = Experiment(
    arms=arms,
    attacks={"paper": ("natural",), "demo": ("natural",)},
    measures=("pixelpart.experiments.heat_maps:measure",),
    columns=lambda scale: ["natural", *(f"epoch {epoch}" for epoch in scale.looks)],
    analyse=analyse,
    plot=plot,
    notes=("epoch N: how many times more of the map lies on the object than of a flat one. CIFAR-10 has no objects.",),
)
