"""Does a smaller budget make a network sensitive where it is small? The share of |g| on the object, on `shapes`.

Training with budget b adds about sum b |g| to the loss, g = d CE / d x: a lower b makes sensitivity cheaper exactly
there. With 8/255 on the object and 4/255 elsewhere (oracle), and with CAM, less of |g| should lie on the object than
with a uniform budget of the same mean, with the inverted CAM more. Test: oracle - uniform, paired over seeds.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pixelpart import data
from pixelpart.attacks import pgd
from pixelpart.config import DEFAULT_SEED
from pixelpart.data import as_float
from pixelpart.evaluation.images import start_images
from pixelpart.experiments.common import plots
from pixelpart.experiments.common.experiment import Experiment, More
from pixelpart.experiments.common.results import Results, paired
from pixelpart.experiments.common.scales import DEMO, EPS, Arms, Scale, uniform_label
from pixelpart.experiments.common.tables import Table, signed
from pixelpart.experiments.frontier import FULL_DEMO, eight_four
from pixelpart.losses import ce
from pixelpart.runs import Run
from pixelpart.runtime.device import choose_device
from pixelpart.runtime.precision import ieee_fp32
from pixelpart.sweeps.work import Job
from pixelpart.types import Images, Labels, Model

CLEAN, AFTER = "|g| on object", "after PGD-10"
OBJECT = 0.225  # the object's mean share of a training image
CHUNK, TINY = 250, 1e-12


def arms(scale: Scale) -> Arms:
    """Three placements of 8|4, each followed by the uniform budget of its mean."""
    cams = eight_four(scale, ("inverted",))
    oracle = scale.config("part", eps_low=4 / 255, mask={"source": "object"})
    uniform = [scale.uniform((4 + 4 * area) / 255) for area in (OBJECT, scale.area, 1 - scale.area)]
    placed = {"8|4 object": oracle, **cams}
    pairs = zip(placed.items(), ((uniform_label(config.eps), config) for config in uniform), strict=True)
    return dict(arm for pair in pairs for arm in pair)


def measure(run: Run, job: Job) -> dict[str, Any]:
    """The share of sum |g| on the object over its share of the area, mean over images, at two points of the ball."""
    dataset, device = data.of_config(run.config), choose_device(None)
    if dataset.masks is None:
        return {"columns": {}}
    images, labels = data.load(run.config.dataset, split="test")
    inside, model = dataset.masks("test"), run.load(job.checkpoint)[0].to(device)
    found: dict[str, list[Tensor]] = {CLEAN: [], AFTER: []}
    with ieee_fp32(device):
        for index in torch.arange(len(images))[: job.images].split(CHUNK):
            x, y = as_float(images[index].to(device)), labels[index].to(device)
            start = start_images(index, x, EPS, kind="pgd", steps=10, seed=DEFAULT_SEED, restart=0)
            x_adv = pgd(model, x, y, EPS, step_size=2 / 255, steps=10, start=start)
            for column, point in ((CLEAN, x), (AFTER, x_adv)):
                found[column].append(share_on(sensitivity(model, point, y), inside[index]))
    ratios = {column: torch.cat(parts) for column, parts in found.items()}
    dropped = {column: int(values.isnan().sum()) for column, values in ratios.items()}
    return {"columns": {column: float(values.nanmean()) for column, values in ratios.items()}, "dropped": dropped}


def sensitivity(model: Model, x: Images, y: Labels) -> Tensor:
    """|d CE / d x| summed over channels, (b, h, w), on the CPU in fp64."""
    leaf = x.detach().requires_grad_()
    return torch.autograd.grad(ce(model(leaf), y).sum(), leaf)[0].abs().sum(1).double().cpu()


def share_on(grads: Tensor, inside: Tensor) -> Tensor:
    """For each image the share of `grads` inside over the share of the area; NaN where their sum is below 1e-12."""
    total, on = grads.sum((1, 2)), (grads * inside).sum((1, 2))
    return torch.where(total > TINY, on / total, torch.nan) / inside.double().mean((1, 2))


def analyse(results: Results, more: More) -> list[Table]:
    """Each placement minus the uniform arm of its mean, with Student's interval over seeds that both have."""
    rows = []
    for arm, base in results.baselines:
        sides = [{run.seed: run.values for run in results.runs[label]} for label in (arm, base)]
        for column in (CLEAN, AFTER):
            seeds = [s for s in sides[0] if s in sides[1] and all(column in side[s] for side in sides)]
            apart = [sides[0][seed][column] - sides[1][seed][column] for seed in seeds]
            if len(apart) > 1:
                mean, low, high, p = paired(apart)
                predicted = (low > 0) if arm.endswith("inverted") else (high < 0)
                judged = "as predicted" if predicted else "against it" if low > 0 or high < 0 else "undecided"
                rows.append([f"{arm} - {base}", column, str(len(apart)), signed(mean, low, high), f"{p:.3f}", judged])
                name = f"{arm} - {base}, {column}"
                results.analysis[name] = {"mean": mean, "interval": [low, high], "p": p, "differences": apart}
    head = ["difference", "of", "seeds", "mean [95 % interval]", "p", "prediction"]
    return [Table("Paired over seeds", head, rows)] if rows else []


EXPERIMENT = Experiment(
    arms=arms,
    attacks={"paper": ("natural",), "demo": ("natural",)},
    measures=("pixelpart.experiments.sensitivity:measure",),
    columns=lambda scale: ("natural", CLEAN, AFTER),
    scales={"paper": replace(FULL_DEMO, name="paper", images=2000), "demo": replace(DEMO, looks=())},
    seeds={"paper": range(8), "demo": range(3)},
    baselines=lambda arms: list(zip(list(arms)[::2], list(arms)[1::2], strict=True)),
    data=("shapes",),
    analyse=analyse,
    plot=plots.intervals,
    notes=(
        "|g| on object: share of the gradient's size on the object over the object's share of the area; 1 if it does "
        "not matter where the object is. After PGD-10: at the end of PGD with ten steps.",
        "8|4 object: 8/255 on the object. Predicted: object and CAM below the uniform budget of the same mean, "
        "inverted above. The test is that of object on clean images, at .05.",
    ),
)
