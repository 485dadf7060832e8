"""`pixelpart bench autoattack RUN`: AutoAttack standard on a run's model, the authors' code beside ours."""

import time
from collections.abc import Callable
from pathlib import Path

import torch

from pixelpart.attacks.autoattack import VERSIONS, default_slots
from pixelpart.bench.timing import Report, Row, Say, machine
from pixelpart.config import DEFAULT_EPS as EPS
from pixelpart.evaluation.accuracy import natural
from pixelpart.evaluation.journal import Journal
from pixelpart.evaluation.reference import under_reference
from pixelpart.evaluation.searching import choose_search, under_searches
from pixelpart.evaluation.target import load_target
from pixelpart.runtime.precision import ieee_fp32
from pixelpart.types import Flags
from pixelpart.view.borrow import borrowed

REFERENCE_BATCH = 250  # its own default


def bench_autoattack(
    *,
    run: str | Path,
    images: int = 1000,
    search: str = "auto",
    batch_size: int | None = None,
    device: torch.device | str | None = None,
    root: str | Path | None = None,
    say: Say = lambda line: None,
) -> Report:
    """Seconds and robust accuracy of both on the first test images, each timed once; flags are compared by sample.

    The reference searches as torch is set up (on a GPU its convolutions are TF32), ours as `evaluate` does; for both
    IEEE fp32 decides.
    """
    them = load_target(run, images=images, device=device, root=root)
    pictures, place = them.pictures, them.pictures.device
    search, slots = choose_search(search, place), batch_size or default_slots(place)
    report = Report("autoattack", {"run": str(run), "images": len(pictures), "search": search}, machine(place))
    with borrowed(them.model) as model:
        with ieee_fp32(place):
            right = natural(model, pictures, batch_size=slots)

        def ours() -> Flags:
            with ieee_fp32(place):
                return under_searches(
                    model,
                    pictures,
                    VERSIONS["standard"],
                    right=right,
                    eps=EPS,
                    search=search,
                    seed=0,
                    slots=slots,
                    journal=Journal(),
                    tell=lambda part, settled, total, share: None,
                    say=report.note,
                )

        def theirs() -> Flags:
            return under_reference(
                model, pictures, right=right, eps=EPS, version="standard", seed=0, batch_size=REFERENCE_BATCH
            )

        flags, seconds = {}, {}
        ways: dict[str, Callable[[], Flags]] = {"reference": theirs, "ours": ours}
        for name, way in ways.items():
            say(f"AutoAttack, {name}")
            began = time.perf_counter()
            flags[name] = way()
            seconds[name] = time.perf_counter() - began
            say(f"AutoAttack, {name}: {seconds[name]:.1f} s, {float(flags[name].float().mean()):.2%} right")
    for name in ways:
        time_of, base = 1000 * seconds[name], 1000 * seconds["reference"]
        rate = len(pictures) / seconds[name]
        what = f"AutoAttack standard, {name}"
        report.rows.append(Row(what, "AutoAttack standard, reference", time_of, base / time_of, rate, [time_of]))
        report.figures[f"robust accuracy, {name}"] = float(flags[name].float().mean())
    report.figures["images that stand under ours alone"] = float((flags["ours"] & ~flags["reference"]).sum())
    report.figures["images that stand under the reference alone"] = float((flags["reference"] & ~flags["ours"]).sum())
    return report
