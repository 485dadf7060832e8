"""`explain`: writes image, heat map, budget and adversarial image of some test images, for a run's checkpoints."""

import functools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from pixelpart import draws, masks
from pixelpart.attacks import pgd
from pixelpart.config import DEFAULT_EPS, DEFAULT_SEED, Config, Size, default_step_size
from pixelpart.errors import UserError
from pixelpart.evaluation.images import ImageSet, logits_of, start_images
from pixelpart.evaluation.target import load_target
from pixelpart.files import atomic_write
from pixelpart.masks import AppliedPolicy, apply_policy
from pixelpart.models import Classifier
from pixelpart.runs import EXPLAIN_SCHEMA, Run
from pixelpart.runtime.precision import ieee_fp32
from pixelpart.runtime.progress import Progress, silent
from pixelpart.types import Images, Labels
from pixelpart.view.borrow import borrowed

DEFAULT_IMAGES = 12


def explain(
    run: Run | str | Path,
    *,
    n: int | None = None,
    checkpoint: str = "best",
    epochs: Sequence[int] | None = None,
    steps: int = 20,
    step_size: float | None = None,
    seed: int = DEFAULT_SEED,
    objects: int = 512,
    batch_size: int = 128,
    device: torch.device | str | None = None,
    data: str | None = None,
    size: Size = 0,
    skip_bad: bool = False,
    root: str | Path | None = None,
    progress: Progress = silent,
) -> Path:
    """The path of the explain.json written, next to explain.safetensors, for n test images spread over the classes.

    By default n is 12, or all images if there are fewer. The same images are explained for the kept checkpoints of
    `epochs` (default: all that the run kept). `data`, `size` and `skip_bad` are as in `evaluate`.

    Heat and budget are those of the run's mask settings (eps everywhere without a mask), also for epochs of burn-in.
    The adversarial image is the result of PGD with `steps` steps and the eps of the run's config at every pixel, 8/255
    if that is 0: the one of the first restart of pgdK in `evaluate` with that eps, K = steps, this step_size and this
    seed. If the data set has object masks, the first `objects` test images show how much heat and high budget lie on
    the object.
    """
    run = Run.of(run)
    config = run.config
    target = load_target(run, checkpoint=checkpoint, data=data, size=size, skip_bad=skip_bad, device=device, root=root)
    pictures, explained_epoch = target.pictures, target.tags["epoch"]
    kept = run.folder.kept_epochs() if epochs is None else sorted(set(epochs))
    kept = [epoch for epoch in kept if epoch != explained_epoch and run.find_checkpoint(f"epoch-{epoch}")]
    dataset = target.dataset
    if dataset is None:
        raise UserError("explain takes data by name, not as tensors: folder:PATH or module:function")
    n = min(DEFAULT_IMAGES, len(pictures)) if n is None else n
    if not 1 <= n <= len(pictures):
        raise UserError(f"cannot explain {n} images; choose from 1 to {len(pictures)}")
    index = spread_over_classes(pictures.labels, n)
    object_masks = None if dataset.masks is None else dataset.masks("test", root)
    eps = config.eps or DEFAULT_EPS
    step_size = default_step_size(eps) if step_size is None else step_size

    def explain_model(model: Classifier, epoch: int | None, done: int) -> dict[str, Tensor]:
        """Heat, budget, adversarial image and probabilities of the images; `done` models were explained before."""
        parts = []
        for chunk, numbers in enumerate(index.split(batch_size)):
            x, y = pictures.take(numbers)
            heat, budget, *_ = apply_run_policy(model, config, object_masks, numbers, x, y, seed=seed)
            start = start_images(numbers, x, eps, kind="pgd", steps=steps, seed=seed, restart=0)
            x_adv = pgd(model, x, y, eps, step_size=step_size, steps=steps, start=start)
            both = torch.stack([logits_of(model, images).softmax(1) for images in (x, x_adv)], 1)
            parts.append([part.float().cpu() for part in (heat, budget, x_adv, both)])
            progress("explain", done * n + chunk * batch_size + len(x), n * (1 + len(kept)), f"epoch {epoch}")
        names = ("heat", "budget", "adversarial", "probabilities")
        return {name: torch.cat(list(column)) for name, column in zip(names, zip(*parts, strict=True), strict=True)}

    on_object = None
    with ieee_fp32(pictures.device):
        with borrowed(target.model) as model:
            x, y = pictures.take(index)
            tensors = {"picture": x.cpu()} | explain_model(model, explained_epoch, 0)
            if object_masks is not None:
                tensors["object"] = object_masks[index].to("cpu", torch.uint8)
                pictures_of = functools.partial(apply_run_policy, model, config, object_masks, seed=seed)
                on_object = object_shares(pictures_of, pictures, object_masks[:objects], batch_size=batch_size)
        for done, epoch in enumerate(kept, start=1):
            with borrowed(run.load(f"epoch-{epoch}")[0].to(pictures.device)) as model:
                explained = explain_model(model, epoch, done)
            tensors |= {f"epoch-{epoch}.{name}": tensor for name, tensor in explained.items()}
    images = [
        {"index": number, "label": label, "natural": _prediction(natural), "adversarial": _prediction(adversarial)}
        for number, label, (natural, adversarial) in zip(
            index.tolist(), y.tolist(), tensors["probabilities"], strict=True
        )
    ]
    if dataset.names is not None:
        files = dataset.names("test", root)
        images = [image | {"file": files[image["index"]]} for image in images]
    facts = {
        "schema_version": EXPLAIN_SCHEMA, "checkpoint": checkpoint, "epoch": explained_epoch,
        "weights": target.tags["weights"], "epochs": kept, "dataset": target.tags["dataset"],
        "eps": eps, "eps_low": config.eps_low, "rule": config.mask.rule,
        "steps": steps, "step_size": step_size, "seed": seed,
        "classes": list(dataset.classes), "images": images, "object": on_object,
    }  # fmt: skip
    atomic_write(run.dir / "explain.safetensors", save({name: part.contiguous() for name, part in tensors.items()}))
    atomic_write(run.dir / "explain.json", json.dumps(facts, indent=2, allow_nan=False) + "\n")
    return run.dir / "explain.json"


def spread_over_classes(labels: Labels, n: int) -> Tensor:
    """n sample numbers: the first of every class, then the second of every class, and so on."""
    order = labels.argsort(stable=True)
    sizes = labels.bincount()
    rank = torch.arange(len(labels)) - (sizes.cumsum(0) - sizes)[labels[order]]  # position within the class
    return order[rank.argsort(stable=True)][:n]


def apply_run_policy(
    model: Classifier, config: Config, object_masks: Tensor | None, index: Tensor, x: Images, y: Labels, *, seed: int
) -> AppliedPolicy:
    """`apply_policy` with the run's settings, for the test images of these numbers; each image has its own noise."""
    if config.mask.source == "object" and object_masks is None:
        raise UserError(f"the run's budgets follow object masks, which {config.dataset} does not have")
    grid = masks.BLOB_GRID
    noise = draws.hashed_normal(draws.keys(seed, "blobs", index), 2 * grid**2).view(-1, 2, grid, grid)
    return apply_policy(
        model,
        x,
        y,
        config.mask,
        eps=config.eps,
        eps_low=config.eps_low,
        blobs=noise.to(x.device),
        objects=None if object_masks is None else object_masks[index].to(x.device, x.dtype),
    )


def object_shares(
    pictures_of: Callable[[Tensor, Images, Labels], AppliedPolicy],
    pictures: ImageSet,
    object_masks: Tensor,
    *,
    batch_size: int,
) -> dict[str, Any]:
    """The shares of heat, of high-budget pixels and of all pixels that lie on the object, without dead maps."""
    sums = torch.zeros(3, 2, dtype=torch.float64)  # of heat, high budget and pixels: on the object, and all
    n, live = min(len(object_masks), len(pictures)), 0
    for index in torch.arange(n).split(batch_size):
        made = pictures_of(index, *pictures.take(index))
        alive = ~made.dead
        live += int(alive.sum())
        inside = object_masks[index].to(alive.device)[alive, None]
        heat, high = made.heat[alive, None].double(), (made.share[alive] >= 0.5).double()
        for total, part in zip(sums, (heat, high, torch.ones_like(heat)), strict=True):
            total += torch.stack(((part * inside).sum(), part.sum())).cpu()
    (heat_on, heat_all), (high_on, high_all), (area_on, area_all) = sums.tolist()
    return {
        "n": live, "dead": n - live,
        "object_area": area_on / area_all if live else float(object_masks.float().mean()),
        "high_budget_on_object": high_on / high_all if high_all else None,
        "heat_on_object": heat_on / heat_all if heat_all else None,
    }  # fmt: skip


def _prediction(probabilities: Tensor) -> dict[str, Any]:
    confidence, predicted = probabilities.max(0)
    return {"class": int(predicted), "confidence": float(confidence)}
