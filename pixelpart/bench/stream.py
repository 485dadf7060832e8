"""`pixelpart bench stream`: steps whose images lie on the device, and steps whose images come from a mapped file."""

import itertools
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

from pixelpart import draws
from pixelpart.bench import REPEATS
from pixelpart.bench.timing import Report, Run, Say, arithmetic, compare, machine
from pixelpart.bench.train import our_step, step_config
from pixelpart.config import Config
from pixelpart.data.loader import Loader
from pixelpart.engine.batch import step_batch
from pixelpart.runtime.device import choose_device
from pixelpart.types import Images

RESIDENT, STREAMED = "images on the device", "images from a mapped file"
BATCHES = 150  # in the file: at batch 128 it has 59 MB


def bench_stream(
    *,
    model: str = "resnet18",
    batch_size: int = 128,
    steps: int = 10,
    repeats: int = REPEATS,
    device: torch.device | str | None = None,
    say: Say = lambda line: None,
) -> Report:
    """Steps of AT one after the other, each on the next batch of an epoch; on a CPU both ways are the same."""
    place = choose_device(device)
    settings = {"model": model, "batch_size": batch_size, "steps": steps, "repeats": repeats}
    report = Report("stream", settings, machine(place))
    config = step_config("at", model=model, batch_size=batch_size, steps=steps, precision="bf16")
    with tempfile.TemporaryDirectory() as folder, arithmetic(place):
        images = mapped(Path(folder) / "images", BATCHES * batch_size)
        makers = {
            what: maker(config, images, place, report.note, resident=what is RESIDENT) for what in (RESIDENT, STREAMED)
        }
        report.rows = compare(makers, device=place, images=batch_size, repeats=repeats, say=say, memory=False)
    report.figures["speed from a mapped file over that on the device"] = report[STREAMED].ratio
    return report


def mapped(file: Path, n: int) -> Images:
    """Random images of the CIFAR shape in a file that is mapped, not read."""
    shape = (n, 3, 32, 32)
    images = torch.from_file(str(file), shared=True, size=n * 3 * 32 * 32, dtype=torch.uint8).view(shape)
    return images.copy_(torch.randint(256, shape, dtype=torch.uint8, generator=draws.generator(0, "bench images")))


def maker(config: Config, images: Images, device: torch.device, say: Say, *, resident: bool) -> Callable[[], Run]:
    def make() -> Run:
        phase, step = our_step(config, device, say)
        labels = torch.arange(len(images)) % 10
        loader = Loader(
            images, labels, batch_size=config.batch_size, seed=config.seed, device=device, resident=resident
        )
        numbers = itertools.cycle(range(loader.steps))
        return lambda: step(step_batch(config, phase, loader, None, epoch=0, step=next(numbers)))

    return make
