"""`pixelpart bench attack` and `bench cam`: PGD and masks of a batch, the usual way next to ours."""

from collections.abc import Callable
from typing import Any

import torch

from pixelpart import attacks, draws, masks, models
from pixelpart.bench import baselines
from pixelpart.bench.timing import Bench, Timed
from pixelpart.config import DEFAULT_EPS as EPS
from pixelpart.config import DEFAULT_STEP_SIZE as STEP_SIZE
from pixelpart.config import EPS_LOW
from pixelpart.engine.views import make_views
from pixelpart.models import Classifier
from pixelpart.types import BudgetMap, Images, Labels
from pixelpart.view.views import Folding


def bench_attack(bench: Bench, *, model: str = "resnet18", batch_size: int = 128, steps: int = 10) -> None:
    """PGD at 8/255 on random images of CIFAR's shape; the baseline is a loop around `loss.backward()`."""
    bench.report.settings |= {"model": model, "batch_size": batch_size, "steps": steps}
    plain, fp32, bf16 = views(model, bench)
    x, y = random_batch(batch_size, bench.device)
    noise = attacks.draw_noise(x, kind="uniform")
    loop: dict[str, Any] = {"step_size": STEP_SIZE, "steps": steps}
    runs: dict[str, Timed] = {
        "loop around loss.backward()": lambda: baselines.pgd(plain, x, y, EPS, noise, **loop),
        "loop around autograd.grad": lambda: baselines.pgd(plain, x, y, EPS, noise, gradient=baselines.by_grad, **loop),
        "attacks.pgd on the model": lambda: attacks.pgd(plain, x, y, EPS, **loop),
        "ours folded fp32": lambda: folded_pgd(fp32, x, y, steps=steps),
        "ours folded bf16 search": lambda: folded_pgd(bf16, x, y, steps=steps),
    }
    bench.measure({f"PGD-{steps}, {what}": ready(run) for what, run in runs.items()}, images=batch_size)


def bench_cam(bench: Bench, *, model: str = "resnet18", batch_size: int = 128) -> None:
    """Budgets of images by GradCAM and the rule `mean`; the baseline is the code of PART's authors."""
    bench.report.settings |= {"model": model, "batch_size": batch_size}
    plain, fp32, bf16 = views(model, bench)
    x, _ = random_batch(batch_size, bench.device)
    eps: dict[str, Any] = {"eps": EPS, "eps_low": EPS_LOW}
    runs: dict[str, Timed] = {
        "masks one by one, backward to every weight": lambda: baselines.budgets(plain, x, **eps),
        "masks one by one, backward to the activation": lambda: baselines.budgets(plain, x, to_weights=False, **eps),
        "masks.heatmap and masks.budget on the model": lambda: mean_budget(plain, x),
        "ours folded fp32": lambda: folded_budget(fp32, x),
        "ours folded bf16": lambda: folded_budget(bf16, x),
    }
    bench.measure({what: ready(run) for what, run in runs.items()}, images=batch_size)


def ready(run: Timed) -> Callable[[], Timed]:
    return lambda: run


def views(model: str, bench: Bench) -> tuple[Classifier, Folding, Folding]:
    """The network in eval mode and torch's default layout; and channels last, folded in fp32 and in bf16.

    If training could not fold it or compute it in bf16, neither does this, and says so.
    """
    plain, ours = (models.build(model).to(bench.device).eval() for _ in range(2))
    ours.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    fp32 = Folding(ours)
    bf16, training_view = make_views(
        torch.bfloat16, ours, shape=(3, 32, 32), device=bench.device, layout=torch.channels_last
    )
    if training_view is None:
        unfolded = "" if fp32.folded else ", and nothing is folded"
        bench.report.note(f"{model} cannot be computed in bf16: this is fp32{unfolded}")
    return plain, fp32, bf16


def random_batch(n: int, device: torch.device, *, size: int = 32, classes: int = 10) -> tuple[Images, Labels]:
    """Random images and labels, by default of CIFAR-10's shape."""
    generator = draws.generator(0, "bench")
    x = torch.rand(n, 3, size, size, generator=generator)
    return x.to(device), torch.randint(classes, (n,), generator=generator).to(device)


def folded_pgd(fold: Folding, x: Images, y: Labels, *, steps: int) -> Images:
    """PGD on the folded view; includes folding and the change of layout."""
    x = x.contiguous(memory_format=torch.channels_last)
    return attacks.pgd(fold(), x, y, EPS, step_size=STEP_SIZE, steps=steps)


def folded_budget(fold: Folding, x: Images) -> BudgetMap:
    """The budgets of the folded view; includes folding and the change of layout."""
    return mean_budget(fold(), x.contiguous(memory_format=torch.channels_last))


def mean_budget(model: object, x: Images) -> BudgetMap:
    return baselines.budget_by_mean(masks.heatmap(model, x), eps=EPS, eps_low=EPS_LOW)
