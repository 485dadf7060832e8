"""`pixelpart bench train`, `scale` and `stream`: training steps as `pixelpart train` runs them.

`train` has the step of PART's authors next to ours; `scale` varies the batch, the image and the number of classes;
`stream` compares images on the device with images from a memory-mapped file.
"""

import copy
import dataclasses
import functools
import itertools
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch.utils.flop_counter import FlopCounterMode

from pixelpart import attacks, draws, models, recipes
from pixelpart.bench import METHODS, baselines
from pixelpart.bench.components import random_batch
from pixelpart.bench.timing import Bench, BenchReport, Timed, median_ratio, milliseconds
from pixelpart.config import Config
from pixelpart.data import augment
from pixelpart.data.loader import Loader
from pixelpart.engine.fast import CapturedStep
from pixelpart.engine.plan import build_plan
from pixelpart.engine.state import TrainingState
from pixelpart.engine.step import Phase, StepBatch, step_batch, train_step
from pixelpart.models import Classifier
from pixelpart.runs import build_model
from pixelpart.types import Images

UNMASKED = {"part": "at", "part-t": "trades", "part-m": "mart"}  # a method with a mask, and the same without
PRODUCT = 8192  # rows and columns of the matrix product that shows what the chip can do
STREAMED_BATCHES = 150  # in the file: 59 MB at batch 128


def bench_train(
    bench: Bench,
    *,
    methods: Sequence[str] = METHODS,
    model: str = "resnet18",
    batch_size: int = 128,
    steps: int = 10,
    precision: str = "bf16",
) -> None:
    """A step of each method on random images of CIFAR's shape, next to its eager fp32 baseline."""
    report = bench.report
    report.settings |= {"model": model, "batch_size": batch_size, "steps": steps, "precision": precision}
    makers: dict[str, Callable[[], Timed]] = {}
    against: dict[str, str] = {}
    for method in methods:
        config = step_config(method, model=model, batch_size=batch_size, steps=steps, precision=precision)
        base, ours = f"{method}, eager fp32" + (", masks one by one" if method in UNMASKED else ""), f"{method}, ours"
        makers |= {base: baseline_maker(method, config, bench.device), ours: our_maker(config, bench)}
        against |= {base: base, ours: base}
    bench.measure(makers, images=batch_size, against=against)
    if bench.device.type == "cuda":
        forward = batch_size * forward_flops(build_model(config))
        report.rows = [
            dataclasses.replace(row, tflops=forward * passes(row.what.split(",")[0], steps) / row.milliseconds / 1e9)
            for row in report.rows
        ]
        report.figures["TFLOP/s of a bf16 product, 8192^3"] = product_tflops(bench.device)
    add_mask_costs(report, methods)


def bench_scale(bench: Bench, *, model: str = "resnet18", batch_size: int = 128, steps: int = 10) -> None:
    """A step of AT and of PART at every point; the figures are the share of PART's time that its masks take."""
    bench.report.settings |= {"model": model, "batch_size": batch_size, "steps": steps}
    batches = [(n, 32, 10) for n in (max(1, batch_size // 4), batch_size, 4 * batch_size)]
    others = [(batch_size, size, classes) for size, classes in ((64, 10), (128, 10), (32, 200), (32, 1000))]
    for images, size, classes in dict.fromkeys([*batches, *others]):
        where = f"{images} images of {size} x {size}, {classes} classes"
        makers = {}
        for method in ("at", "part"):
            config = step_config(method, model=model, batch_size=images, steps=steps)
            network = models.build(model, num_classes=classes, size=size)
            makers[f"{method}, {where}"] = our_maker(config, bench, network, size, classes)
        at, part = bench.measure(makers, images=images, memory=False)
        bench.report.figures[f"share of the masks, {where}"] = 1 - median_ratio(at.times, part.times)


def bench_stream(bench: Bench, *, model: str = "resnet18", batch_size: int = 128, steps: int = 10) -> None:
    """Steps of AT, each on the next batch of an epoch; on a CPU both ways are the same."""
    bench.report.settings |= {"model": model, "batch_size": batch_size, "steps": steps}
    config = step_config("at", model=model, batch_size=batch_size, steps=steps)
    with tempfile.TemporaryDirectory() as folder:
        images = mapped_images(Path(folder) / "images", STREAMED_BATCHES * batch_size)
        labels = torch.arange(len(images)) % 10

        def make(*, resident: bool) -> Timed:
            phase, step = our_step(config, bench)
            loader = Loader(
                images, labels, batch_size=batch_size, seed=config.seed, device=bench.device, resident=resident
            )
            numbers = itertools.cycle(range(loader.steps))
            return lambda: step(step_batch(config, phase, loader, epoch=0, step=next(numbers)))

        makers = {
            "images on the device": functools.partial(make, resident=True),
            "images from a mapped file": functools.partial(make, resident=False),
        }
        _, streamed = bench.measure(makers, images=batch_size, memory=False)
    bench.report.figures["speed from a mapped file over that on the device"] = streamed.ratio


# -- steps


def step_config(method: str, *, model: str, batch_size: int, steps: int, precision: str = "bf16") -> Config:
    """The paper's recipe for CIFAR-10, with its mask from the first step on."""
    return recipes.cifar10(
        method, model=model, batch_size=batch_size, precision=precision, attack={"steps": steps}, burn_in={"epochs": 0}
    )


def random_step_batch(
    config: Config, phase: Phase, device: torch.device, size: int = 32, classes: int = 10
) -> StepBatch:
    """A random batch with its draws."""
    x, y = random_batch(config.batch_size, device, size=size, classes=classes)
    generators = (draws.generator(0, stream, device=device) for stream in ("bench augment", "bench start"))
    augmentation = augment.draw(config.augment, config.batch_size, generator=next(generators))
    return StepBatch(x, y, augmentation, attacks.draw_noise(x, kind=phase.start, generator=next(generators)))


def our_maker(
    config: Config, bench: Bench, network: Classifier | None = None, size: int = 32, classes: int = 10
) -> Callable[[], Timed]:
    """Our step as `pixelpart train` runs it, augmentation included; `network` replaces the config's."""

    def make() -> Timed:
        phase, step = our_step(config, bench, network, size)
        batch = random_step_batch(config, phase, bench.device, size, classes)
        return lambda: step(batch)

    return make


def our_step(
    config: Config, bench: Bench, network: Classifier | None = None, size: int = 32
) -> tuple[Phase, Callable[[StepBatch], None]]:
    """The phase after burn-in, and its step on a new training state: captured on a GPU, plain elsewhere."""
    plan = build_plan(config)
    model = plan.model if network is None else copy.deepcopy(network)
    state = TrainingState(model, config, bench.device, shape=(3, size, size))
    if config.precision != "fp32" and not state.low_precision:
        bench.report.note(f"{config.model} cannot be computed in {config.precision}: this is fp32")
    state.lr.fill_(config.optim.lr)
    step: Callable[..., None] = train_step
    if bench.device.type == "cuda":
        torch._dynamo.reset()  # it limits the versions of a function, and every method compiles some
        step = CapturedStep(state, batch_size=config.batch_size, say=bench.report.note)
    return plan.main, lambda batch: step(state, plan.main, batch)


def baseline_maker(method: str, config: Config, device: torch.device) -> Callable[[], Timed]:
    """The baseline's step on the same batch, which is augmented beforehand."""

    def make() -> Timed:
        model, optim = build_model(config).to(device), config.optim
        optimizer = torch.optim.SGD(
            model.parameters(), lr=optim.lr, momentum=optim.momentum, weight_decay=optim.weight_decay
        )
        batch = random_step_batch(config, build_plan(config).main, device)
        x = augment.apply_to_images(batch.augmentation, batch.images)
        return lambda: baselines.train_step(model, optimizer, x, batch.labels, batch.start_noise, method, config)

    return make


def mapped_images(file: Path, n: int) -> Images:
    """Random images of CIFAR's shape in a memory-mapped file."""
    shape = (n, 3, 32, 32)
    images = torch.from_file(str(file), shared=True, size=n * 3 * 32 * 32, dtype=torch.uint8).view(shape)
    return images.copy_(torch.randint(256, shape, dtype=torch.uint8, generator=draws.generator(0, "bench images")))


# -- figures


def add_mask_costs(report: BenchReport, methods: Sequence[str]) -> None:
    """Time and, on a GPU, memory of methods with a mask over those without, where both were measured."""
    for method in methods:
        if (other := UNMASKED.get(method)) not in methods:
            continue
        masked, bare = report[f"{method}, ours"], report[f"{other}, ours"]
        report.figures[f"time of {method} over {other}"] = median_ratio(masked.times, bare.times)
        if masked.peak_mib is not None and bare.peak_mib is not None:
            report.figures[f"peak memory of {method} over {other}"] = masked.peak_mib / bare.peak_mib


def passes(method: str, steps: int) -> int:
    """The passes through the network in a step: 1 for a forward pass, the images' gradient, or the weights' gradient.

    AT: 2 for every attack step, 3 to train; PART 1 more for its map. TRADES trains on two batches and needs the clean
    logits once, from the pass that PART-T also takes its map from. MART trains on two batches.
    """
    return 2 * steps + {"at": 3, "part": 4, "trades": 7, "part-t": 7, "mart": 6, "part-m": 7}[method]


def forward_flops(model: Classifier) -> int:
    """The operations of one image's forward pass; a multiply-add counts as 2."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model.eval()(torch.zeros(1, 3, 32, 32))
    return counter.get_total_flops()


def product_tflops(device: torch.device) -> float:
    """TFLOP/s of a square bf16 matrix product."""
    a, b = (torch.randn(PRODUCT, PRODUCT, device=device, dtype=torch.bfloat16) for _ in range(2))
    out = torch.empty_like(a)

    def run() -> object:
        return torch.mm(a, b, out=out)

    milliseconds(run, device, calls=10)
    return 2 * PRODUCT**3 / milliseconds(run, device, calls=50) / 1e9
