"""`pixelpart bench attack`: PGD, a plain loop beside ours in fp32 and with bf16 search."""

import torch

from pixelpart import attacks, draws, models
from pixelpart.bench import REPEATS, baselines
from pixelpart.bench.timing import Report, Run, Say, arithmetic, compare, machine
from pixelpart.config import DEFAULT_EPS as EPS
from pixelpart.config import DEFAULT_STEP_SIZE as STEP_SIZE
from pixelpart.engine.views import views_in
from pixelpart.models import Classifier
from pixelpart.runtime.device import choose_device
from pixelpart.types import Images, Labels
from pixelpart.view.views import Folding


def bench_attack(
    *,
    model: str = "resnet18",
    batch_size: int = 128,
    steps: int = 10,
    repeats: int = REPEATS,
    device: torch.device | str | None = None,
    say: Say = lambda line: None,
) -> Report:
    """PGD at 8/255 on random images of the CIFAR shape; the baseline is a loop around `loss.backward()`."""
    place = choose_device(device)
    report = Report(
        "attack", {"model": model, "batch_size": batch_size, "steps": steps, "repeats": repeats}, machine(place)
    )
    usual, wide, narrow = views(model, place, report.note)
    x, y = random_batch(batch_size, place)
    noise = attacks.draw_noise(x, kind="uniform")

    def loop(gradient: baselines.Gradient) -> Run:
        return lambda: baselines.pgd(usual, x, y, EPS, noise, step_size=STEP_SIZE, steps=steps, gradient=gradient)

    makers = {
        f"PGD-{steps}, loop around loss.backward()": lambda: loop(baselines.by_backward),
        f"PGD-{steps}, loop around autograd.grad": lambda: loop(baselines.by_grad),
        f"PGD-{steps}, attacks.pgd on the model": lambda: (
            lambda: attacks.pgd(usual, x, y, EPS, step_size=STEP_SIZE, steps=steps)
        ),
        f"PGD-{steps}, ours folded fp32": lambda: lambda: folded_pgd(wide, x, y, steps=steps),
        f"PGD-{steps}, ours folded bf16 search": lambda: lambda: folded_pgd(narrow, x, y, steps=steps),
    }
    with arithmetic(place):
        report.rows = compare(makers, device=place, images=batch_size, repeats=repeats, say=say)
    return report


def views(model: str, device: torch.device, say: Say) -> tuple[Classifier, Folding, Folding]:
    """The network in eval mode as torch lays it out; and the same, channels last, folded in fp32 and in bf16.

    What a run could not fold or compute in bf16 is not here either, and that is said.
    """
    usual, ours = (models.build(model).to(device).eval() for _ in range(2))
    ours.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    wide = Folding(ours)
    narrow, working = views_in(torch.bfloat16, ours, size=32, device=device, layout=torch.channels_last)
    if working is None:
        say(f"{model} cannot be computed in bf16: this is fp32" + ("" if wide.folded else ", and nothing is folded"))
    return usual, wide, narrow


def random_batch(n: int, device: torch.device, *, size: int = 32, classes: int = 10) -> tuple[Images, Labels]:
    """Images and labels, drawn; the shapes of CIFAR-10 unless told otherwise."""
    generator = draws.generator(0, "bench")
    x = torch.rand(n, 3, size, size, generator=generator)
    return x.to(device), torch.randint(classes, (n,), generator=generator).to(device)


def folded_pgd(fold: Folding, x: Images, y: Labels, *, steps: int) -> Images:
    """PGD on the folded view; folding and the change of layout are part of it."""
    x = x.contiguous(memory_format=torch.channels_last)
    return attacks.pgd(fold(), x, y, EPS, step_size=STEP_SIZE, steps=steps)
