"""`pixelpart bench scale`: how the cost of a step grows with the batch, the image and the number of classes."""

import torch

from pixelpart import models
from pixelpart.bench import REPEATS
from pixelpart.bench.timing import Report, Say, arithmetic, compare, machine, over
from pixelpart.bench.train import our_maker, step_config
from pixelpart.runtime.device import choose_device

METHODS = ("at", "part")


def points(batch_size: int) -> list[tuple[int, int, int]]:
    """(images, pixels to a side, classes): each of the three varied by itself."""
    small = max(1, batch_size // 4)
    batches = [(n, 32, 10) for n in (small, batch_size, 4 * batch_size)]
    sizes = [(batch_size, size, 10) for size in (64, 128)]
    return list(dict.fromkeys([*batches, *sizes, (batch_size, 32, 200), (batch_size, 32, 1000)]))


def bench_scale(
    *,
    model: str = "resnet18",
    batch_size: int = 128,
    steps: int = 10,
    repeats: int = REPEATS,
    device: torch.device | str | None = None,
    say: Say = lambda line: None,
) -> Report:
    """A step of AT and of PART at every point; the figures are the share of PART's time that its masks take."""
    place = choose_device(device)
    settings = {"model": model, "batch_size": batch_size, "steps": steps, "repeats": repeats}
    report = Report("scale", settings, machine(place))
    with arithmetic(place):
        for images, size, classes in points(batch_size):
            where = f"{images} images of {size} x {size}, {classes} classes"
            makers = {}
            for method in METHODS:
                config = step_config(method, model=model, batch_size=images, steps=steps, precision="bf16")
                network = models.build(model, num_classes=classes, size=size)
                makers[f"{method}, {where}"] = our_maker(
                    config, place, report.note, network=network, size=size, classes=classes
                )
            rows = compare(makers, device=place, images=images, repeats=repeats, say=say, memory=False)
            report.rows += rows
            bare, masked = (row.times for row in rows)
            report.figures[f"share of the masks, {where}"] = 1 - over(bare, masked)
    return report
