"""`pixelpart bench train`: a training step of ours beside the step as PART's authors take it."""

import copy
import dataclasses
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from pixelpart import attacks, draws, recipes
from pixelpart.bench import METHODS, PRECISIONS, REPEATS, baselines
from pixelpart.bench.attack import random_batch
from pixelpart.bench.timing import Report, Run, Say, arithmetic, compare, machine, once, over
from pixelpart.config import Config
from pixelpart.data import augment
from pixelpart.engine.fast import CapturedStep
from pixelpart.engine.plan import build
from pixelpart.engine.state import TrainingState
from pixelpart.engine.step import Phase, StepBatch, train_step
from pixelpart.errors import unknown
from pixelpart.models import Classifier
from pixelpart.runs import build_model
from pixelpart.runtime.device import choose_device
from pixelpart.types import Images

CEILING = 8192  # rows and columns of the product that shows what the chip can do
BASES = {"part": "at", "part-t": "trades", "part-m": "mart"}  # a method with a mask, and what it is without


def bench_train(
    *,
    methods: Sequence[str] = METHODS,
    model: str = "resnet18",
    batch_size: int = 128,
    steps: int = 10,
    precision: str = "bf16",
    repeats: int = REPEATS,
    device: torch.device | str | None = None,
    say: Say = lambda line: None,
) -> Report:
    """One step of each method on random images of the CIFAR shape, each beside its own eager fp32 baseline."""
    for method in methods:
        if method not in METHODS:
            raise unknown("method", method, METHODS)
    if precision not in PRECISIONS:
        raise unknown("precision", precision, PRECISIONS)
    place = choose_device(device)
    settings = {"model": model, "batch_size": batch_size, "steps": steps, "precision": precision}
    report = Report("train", settings | {"repeats": repeats}, machine(place))
    configs = {
        name: step_config(name, model=model, batch_size=batch_size, steps=steps, precision=precision)
        for name in dict.fromkeys(methods)
    }

    makers: dict[str, Callable[[], Run]] = {}
    against: dict[str, str] = {}
    for method, config in configs.items():
        makers[usual_name(method)] = usual_maker(method, config, place)
        makers[our_name(method)] = our_maker(config, place, report.note)
        against |= dict.fromkeys((usual_name(method), our_name(method)), usual_name(method))
    with arithmetic(place, precision):
        report.rows = compare(makers, device=place, images=batch_size, repeats=repeats, say=say, against=against)
        if place.type == "cuda":
            forward = batch_size * forward_flops(build_model(next(iter(configs.values()))))
            flops = {against[our_name(method)]: forward * passes(method, steps) for method in configs}
            report.rows = [
                dataclasses.replace(row, tflops=flops[row.baseline] / row.milliseconds / 1e9) for row in report.rows
            ]
            report.figures["TFLOP/s of a bf16 product, 8192^3"] = ceiling(place)
    add_figures(report, list(configs))
    return report


def usual_name(method: str) -> str:
    return f"{method}, eager fp32" + (", masks one by one" if method in BASES else "")


def our_name(method: str) -> str:
    return f"{method}, ours"


def step_config(method: str, *, model: str, batch_size: int, steps: int, precision: str) -> Config:
    """The paper's recipe for CIFAR-10, from the first step on with its mask."""
    return recipes.cifar10(
        method,
        model=model,
        batch_size=batch_size,
        precision=precision,
        attack={"steps": steps},
        burn_in={"epochs": 0},
    )


def step_inputs(config: Config, phase: Phase, device: torch.device, *, size: int = 32, classes: int = 10) -> StepBatch:
    x, y = random_batch(config.batch_size, device, size=size, classes=classes)
    moves = augment.draw(
        config.augment, config.batch_size, generator=draws.generator(0, "bench augment", device=device)
    )
    noise = attacks.draw_noise(x, kind=phase.attack.start, generator=draws.generator(0, "bench start", device=device))
    return StepBatch(x, y, moves, noise)


def our_maker(
    config: Config,
    device: torch.device,
    say: Say,
    *,
    network: Classifier | None = None,
    size: int = 32,
    classes: int = 10,
) -> Callable[[], Run]:
    """Our step as `pixelpart train` runs it, augmentation included: captured on a GPU, plain elsewhere.

    Another network than the config's may take its place, with images and classes that suit it.
    """

    def make() -> Run:
        phase, step = our_step(config, device, say, network=network, size=size)
        inputs = step_inputs(config, phase, device, size=size, classes=classes)
        return lambda: step(inputs)

    return make


def our_step(
    config: Config, device: torch.device, say: Say, *, network: Classifier | None = None, size: int = 32
) -> tuple[Phase, Callable[[StepBatch], None]]:
    """The phase that follows burn-in, and its step on a new training state."""
    plan = build(config)
    state = TrainingState(copy.deepcopy(network) if network is not None else plan.model, config, device, size=size)
    if config.precision != "fp32" and not state.low_precision:
        say(f"{config.model} cannot be computed in {config.precision}: this is fp32")
    state.lr.fill_(config.optim.lr)
    step: Callable[..., None] = train_step
    if device.type == "cuda":
        torch._dynamo.reset()  # it keeps only so many versions of a function, and here every method makes some
        step = CapturedStep(state, batch_size=config.batch_size, say=say)
    return plan.main, lambda inputs: step(state, plan.main, inputs)


def usual_maker(method: str, config: Config, device: torch.device) -> Callable[[], Run]:
    """The baseline's step on the same batch, which comes to it augmented."""

    def make() -> Run:
        model = build_model(config).to(device)
        optim = config.optim
        optimizer = torch.optim.SGD(
            model.parameters(), lr=optim.lr, momentum=optim.momentum, weight_decay=optim.weight_decay
        )
        inputs = step_inputs(config, build(config).main, device)
        x = augmented(inputs)
        return lambda: usual_step(method, config, model, optimizer, x, inputs)

    return make


def augmented(inputs: StepBatch) -> Images:
    return augment.apply(inputs.augmentation, inputs.images)


def usual_step(
    method: str, config: Config, model: Classifier, optimizer: torch.optim.Optimizer, x: Images, inputs: StepBatch
) -> Tensor:
    attack = config.attack
    return baselines.train_step(
        model,
        optimizer,
        x,
        inputs.labels,
        inputs.noise,
        method=method,
        eps=config.eps,
        eps_low=config.eps_low,
        step_size=attack.step_size,
        steps=attack.steps,
    )


# -- how near to what the chip can do


def passes(method: str, steps: int) -> int:
    """Passes through the network that a step needs: forward 1, gradient of the images 1, of the weights 1.

    AT: 2 for every attack step, 3 to train; PART one more for its map. TRADES trains on two batches and asks once for
    the clean logits, from the pass that PART-T reads its map off. MART trains on two batches.
    """
    return 2 * steps + {"at": 3, "part": 4, "trades": 7, "part-t": 7, "mart": 6, "part-m": 7}[method]


def forward_flops(model: Classifier) -> int:
    """Operations of one image's forward pass, a multiply-add counting 2."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model.eval()(torch.zeros(1, 3, 32, 32))
    return counter.get_total_flops()


def ceiling(device: torch.device) -> float:
    """TFLOP/s of a square bf16 matrix product."""
    a, b = (torch.randn(CEILING, CEILING, device=device, dtype=torch.bfloat16) for _ in range(2))
    out = torch.empty_like(a)

    def run() -> object:
        return torch.mm(a, b, out=out)

    once(run, device, calls=10)
    return 2 * CEILING**3 / once(run, device, calls=50) / 1e9


def add_figures(report: Report, methods: Sequence[str]) -> None:
    """What a mask costs, in time and on a GPU in memory, where a method and its form without a mask were measured."""
    for method in methods:
        if BASES.get(method) not in methods:
            continue
        masked, bare = report[our_name(method)], report[our_name(BASES[method])]
        report.figures[f"time of {method} over {BASES[method]}"] = over(masked.times, bare.times)
        if masked.peak_mib is not None and bare.peak_mib is not None:
            report.figures[f"peak memory of {method} over {BASES[method]}"] = masked.peak_mib / bare.peak_mib
