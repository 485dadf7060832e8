"""`pixelpart bench autoattack RUN`: AutoAttack standard on a run's model, the authors' code next to ours."""

import time
from pathlib import Path

import torch

from pixelpart.bench.timing import Bench, BenchRow
from pixelpart.config import DEFAULT_EPS, DEFAULT_SEED
from pixelpart.evaluation.evaluate import evaluate
from pixelpart.evaluation.reference import under_reference
from pixelpart.evaluation.target import load_target
from pixelpart.view.borrow import borrowed

REFERENCE_BATCH = 250  # the default of the authors' code


def bench_autoattack(
    bench: Bench,
    *,
    run: str | Path,
    checkpoint: str = "best",
    images: int = 1000,
    search: str = "auto",
    batch_size: int | None = None,
    root: str | Path | None = None,
) -> None:
    """Seconds and robust accuracy of both on the first test images, each timed once; flags are compared by sample.

    The reference searches with torch's default settings (TF32 convolutions on a GPU), ours as `evaluate` does; for both
    IEEE fp32 decides.
    """
    target = load_target(
        run, checkpoint=checkpoint, images=images, batch_size=REFERENCE_BATCH, device=bench.device, root=root
    )
    pictures, n, say = target.pictures, len(target.pictures), bench.say
    say("AutoAttack, ours")
    result = evaluate(
        target.model,  # the module, whose results are not kept: a run's would be reused
        attacks=["natural", "autoattack"],
        data=(pictures.images, pictures.labels),
        search=search,
        batch_size=batch_size,
        device=bench.device,
        say=bench.report.note,
    )
    say("AutoAttack, reference")
    natural, began = torch.from_numpy(result["natural"].right), time.perf_counter()
    with borrowed(target.model) as model:
        robust = under_reference(
            model, pictures, correct=natural, eps=DEFAULT_EPS, version="standard", seed=DEFAULT_SEED
        )
    seconds = {"reference": time.perf_counter() - began, "ours": result["autoattack"].entry["seconds"]}
    right = {"reference": robust.numpy(), "ours": result["autoattack"].right}
    report, base = bench.report, "AutoAttack standard, reference"
    report.settings |= {"run": str(run), "images": n, "search": result["autoattack"].entry["settings"]["search"]}
    for name, taken in seconds.items():
        row = 1000 * taken, seconds["reference"] / taken, n / taken, [1000 * taken]
        report.rows.append(BenchRow(f"AutoAttack standard, {name}", base, *row))
        report.figures[f"robust accuracy, {name}"] = float(right[name].mean())
    report.figures["images robust under ours only"] = float((right["ours"] & ~right["reference"]).sum())
    report.figures["images robust under the reference only"] = float((right["reference"] & ~right["ours"]).sum())
