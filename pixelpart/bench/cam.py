"""`pixelpart bench cam`: the masks of a batch, one image after the other beside ours in fp32 and bf16."""

import torch

from pixelpart import masks
from pixelpart.bench import REPEATS, baselines
from pixelpart.bench.attack import random_batch, views
from pixelpart.bench.timing import Report, Say, arithmetic, compare, machine
from pixelpart.config import DEFAULT_EPS as EPS
from pixelpart.config import EPS_LOW
from pixelpart.runtime.device import choose_device
from pixelpart.types import BudgetMap, Images
from pixelpart.view.views import Folding


def bench_cam(
    *,
    model: str = "resnet18",
    batch_size: int = 128,
    repeats: int = REPEATS,
    device: torch.device | str | None = None,
    say: Say = lambda line: None,
) -> Report:
    """From images to budgets by GradCAM and the rule `mean`; the baseline is what PART's authors do."""
    place = choose_device(device)
    report = Report("cam", {"model": model, "batch_size": batch_size, "repeats": repeats}, machine(place))
    usual, wide, narrow = views(model, place, report.note)
    x, _ = random_batch(batch_size, place)
    makers = {
        "masks one by one, backward to every weight": lambda: (
            lambda: baselines.budgets(usual, x, eps=EPS, eps_low=EPS_LOW)
        ),
        "masks one by one, backward to the activation": lambda: (
            lambda: baselines.budgets(usual, x, eps=EPS, eps_low=EPS_LOW, whole=False)
        ),
        "masks.heatmap and masks.budget on the model": lambda: lambda: mean_budget(usual, x),
        "ours folded fp32": lambda: lambda: folded_masks(wide, x),
        "ours folded bf16": lambda: lambda: folded_masks(narrow, x),
    }
    with arithmetic(place):
        report.rows = compare(makers, device=place, images=batch_size, repeats=repeats, say=say)
    return report


def folded_masks(fold: Folding, x: Images) -> BudgetMap:
    """The budgets of the folded view; folding and the change of layout are part of it."""
    return mean_budget(fold(), x.contiguous(memory_format=torch.channels_last))


def mean_budget(model: object, x: Images) -> BudgetMap:
    return masks.budget(masks.heatmap(model, x), eps=EPS, eps_low=EPS_LOW)
