"""What experiments measure on trained runs: functions of the run, its job and its device that return JSON.

The JSON is kept in the run's folder as measures/FUNCTION.json. Numbers in its `columns` can be shown in tables, with
`intervals` where it has any.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pixelpart import data, masks
from pixelpart.attacks import pgd
from pixelpart.config import DEFAULT_SEED, Config, MaskConfig
from pixelpart.data import as_float
from pixelpart.evaluation.explain import spread_over_classes
from pixelpart.evaluation.images import start_images
from pixelpart.experiments.common.results import all_epochs
from pixelpart.experiments.common.scales import EPS, SCALES
from pixelpart.losses import ce
from pixelpart.masks.sources import SourceInputs, centre
from pixelpart.runs import Run
from pixelpart.runtime.device import choose_device
from pixelpart.runtime.precision import ieee_fp32
from pixelpart.sweeps.identity import identity
from pixelpart.sweeps.work import Job
from pixelpart.types import Images, Labels, Model

MeasureJson = dict[str, Any]
SENSITIVITY, AFTER_PGD = "|g| on object", "after PGD-10"  # columns
GROWING = {f"{levels}/255": f"eps {levels}/255" for levels in (16, 32, 64)}
PICTURES, CHUNK, TINY = 4, 250, 1e-12
DAMAGE_IMAGES, DAMAGE_BATCH, DAMAGE_CONTROLS = 2048, 128, ("none", "shuffled", "flat")


# -- gradients and maps on objects


def sensitivity(run: Run, job: Job, device: str | None) -> MeasureJson:
    """The share of sum |g| on the object over its share of the area, mean over images, at two points of the ball."""
    dataset, place = data.of_config(run.config), choose_device(device)
    if dataset.masks is None:
        return {"columns": {}}
    images, labels = data.load(run.config.dataset, split="test")
    inside, model = dataset.masks("test"), run.load(job.checkpoint)[0].to(place)
    found: dict[str, list[Tensor]] = {SENSITIVITY: [], AFTER_PGD: []}
    with ieee_fp32(place):
        for index in torch.arange(len(images))[: job.images].split(CHUNK):
            x, y = as_float(images[index].to(place)), labels[index].to(place)
            start = start_images(index, x, EPS, kind="pgd", steps=10, seed=DEFAULT_SEED, restart=0)
            x_adv = pgd(model, x, y, EPS, step_size=2 / 255, steps=10, start=start)
            for column, point in ((SENSITIVITY, x), (AFTER_PGD, x_adv)):
                found[column].append(share_on(gradient_size(model, point, y), inside[index]))
    ratios = {column: torch.cat(parts) for column, parts in found.items()}
    dropped = {column: int(values.isnan().sum()) for column, values in ratios.items()}
    return {"columns": {column: float(values.nanmean()) for column, values in ratios.items()}, "dropped": dropped}


def gradient_size(model: Model, x: Images, y: Labels) -> Tensor:
    """|d CE / d x| summed over channels, (b, h, w), on the CPU in fp64."""
    leaf = x.detach().requires_grad_()
    return torch.autograd.grad(ce(model(leaf), y).sum(), leaf)[0].abs().sum(1).double().cpu()


def share_on(values: Tensor, inside: Tensor) -> Tensor:
    """For each image the share of `values` inside over the share of the area; NaN where their sum is below 1e-12."""
    total, on = values.sum((1, 2)), (values * inside).sum((1, 2))
    return torch.where(total > TINY, on / total, torch.nan) / inside.double().mean((1, 2))


def heat_maps(run: Run, job: Job, device: str | None) -> MeasureJson:
    """For every kept epoch the concentration on the object, if the data set knows its objects, and some maps."""
    place = choose_device(device)
    images, labels = data.load(run.config.dataset, split="test")
    x = as_float(images[: job.images or 10_000])
    dataset = data.of_config(run.config)
    inside = dataset.masks("test")[: len(x)] if dataset.masks else None
    shown = spread_over_classes(labels[: len(x)], PICTURES)
    columns, pictures, dead = {}, {}, {}
    for epoch in job.config.keep:
        model = run.load(f"epoch-{epoch}")[0].to(place)
        raw = torch.cat([masks.cam(model, part.to(place)).cpu() for part in x.split(CHUNK)])
        pictures[epoch] = raw[shown].tolist()
        dead[epoch] = int((raw.amax((1, 2)) <= 0).sum())
        if inside is not None:
            columns[f"epoch {epoch}"] = concentration(raw, inside)
    middle = None if inside is None else concentration(centre(SourceInputs(x, labels[: len(x)])), inside)
    return {"columns": columns, "gaussian": middle, "dead": dead, "index": shown.tolist(), "maps": pictures}


def concentration(maps: Tensor, inside: Tensor) -> float:
    """mean over images of (share of the map on the object) / (share of the area), without maps that are all zero."""
    full = F.interpolate(maps[:, None], size=inside.shape[-2:], mode="bicubic", antialias=True)[:, 0]
    return float(share_on(full.clamp_min(0).double(), inside).nanmean())


def damage(run: Run, job: Job, device: str | None) -> MeasureJson:
    """Per image sum |g|, and 255 sum b |g| of a mask 8|7, of another image's (in batches of 128) and of its mean."""
    place = choose_device(device)
    model = run.load(job.checkpoint)[0].to(place)
    images, labels = (tensor[:DAMAGE_IMAGES] for tensor in data.load(run.config.dataset, split="test"))
    policies = [MaskConfig(rule="mean", control=control) for control in DAMAGE_CONTROLS]
    rows = []
    with ieee_fp32(place):
        for index in torch.arange(len(images)).split(DAMAGE_BATCH):
            x, y = as_float(images[index].to(place)), labels[index].to(place)
            grads = gradient_size(model, x, y)
            budgets = [masks.apply_policy(model, x, y, mask, eps=EPS, eps_low=7 / 255).budget for mask in policies]
            sums = [255 * (budget[:, 0].double().cpu() * grads).sum((1, 2)) for budget in budgets]
            rows.append(torch.stack([grads.sum((1, 2)), *sums], 1))
    return {"columns": {}, "per image": torch.cat(rows).tolist()}


# -- checks and corruptions


def gradients(run: Run, job: Job, device: str | None) -> MeasureJson:
    """The report of `pixelpart check`, with the other run of this seed, of AT or PART s=1, as the surrogate."""
    from pixelpart.evaluation.checks.obfuscation import check
    from pixelpart.evaluation.statistics import wilson

    images = job.images or data.SETS[job.config.dataset].counts["test"]
    other = Run(run.dir.parent / _other_arm(job))
    report = check(run, surrogate=other, images=images, checkpoint=job.checkpoint, device=device)
    found = {name: report[name].numbers for name in ("one step", "black box", "unbounded", "random", "growing eps")}
    columns = {
        "one step": 100 * found["one step"]["fgsm"],
        "transfer": 100 * found["black box"]["transfer"],
        "unbounded": 100 * found["unbounded"]["unbounded"],
        "random only": 100 * found["random"]["random_only"] / images,
    }
    columns |= {GROWING[eps]: 100 * share for eps, share in found["growing eps"]["accuracy"].items() if eps in GROWING}
    ends = {name: wilson(round(value * images / 100), images) for name, value in columns.items()}
    intervals = {name: [100 * low, 100 * high] for name, (low, high) in ends.items()}
    about = {"verdict": report.verdict, "suspicious": report.suspicious, "surrogate": other.dir.name}
    return {"columns": columns, "intervals": intervals} | about


def _other_arm(job: Job) -> str:
    """The id of the run of PART s=1 if the job's is of AT, or the reverse."""
    for scale in SCALES.values():
        ids = [identity(config.model_copy(update={"seed": job.config.seed})) for config in scale.at_and_part().values()]
        if job.id in ids:
            return ids[1 - ids.index(job.id)]
    raise AssertionError(f"{job.id} is not a run of AT or PART s=1")


def corruptions(run: Run, job: Job, device: str | None) -> MeasureJson:
    """The mean accuracy on corrupted images; the flags of each corruption are in the run's corruptions.json."""
    from pixelpart.evaluation import corruptions as room

    result = room.corruptions(run, images=job.images, checkpoint=job.checkpoint, device=device)
    return {"columns": {}, "mean": result.mean()}


# -- time and memory


def cost(run: Run, job: Job, device: str | None) -> MeasureJson:
    """Seconds of an epoch after burn-in and of the run, and the peak memory of a process that trains one epoch."""
    every = all_epochs(run.dir)
    masked = [row["seconds"] for row in every if row["epoch"] > job.config.burn_in.epochs]
    values = run.config.model_dump(mode="json") | {"init_from": "", "keep": [], "epochs": 1}
    values["burn_in"] |= {"epochs": 0}
    command = [sys.executable, "-m", __name__, json.dumps(values), json.dumps(device)]
    peak = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    seconds = {"s/epoch": fmean(masked[1:] or masked), "seconds": sum(row["seconds"] for row in every)}
    return {"columns": seconds | {"memory": peak["mib"]}, "memory of": peak["of"]}


def peak_memory(values: dict[str, Any], device: str | None) -> dict[str, Any]:
    """Trains the config in a temporary folder; the most memory that was in use, in MiB: the GPU's if it is on one."""
    from pixelpart.engine.train import train
    from pixelpart.runtime.progress import Screen

    with tempfile.TemporaryDirectory() as folder:
        train(Config.model_validate(values), Path(folder) / "run", device=device, screen=Screen(quiet=True))
    if (place := choose_device(device)).type == "cuda":
        return {"mib": torch.cuda.max_memory_allocated(place) / 2**20, "of": "GPU"}
    # ru_maxrss would include the parent process, as it was when it started this one
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {"mib": int(status["VmHWM"].split()[0]) / 2**10, "of": "process"}


if __name__ == "__main__":
    print(json.dumps(peak_memory(*map(json.loads, sys.argv[1:]))))
