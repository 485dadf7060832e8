"""What is looked at after an epoch: the damage that is left to do, a collapse, and the row of metrics."""

import torch

from pixelpart.engine import probe
from pixelpart.engine.plan import Phase
from pixelpart.engine.probe import Reading
from pixelpart.engine.state import Learner
from pixelpart.engine.stored_maps import maps_of
from pixelpart.runs import MetricsRow
from pixelpart.types import Budget, Images, Labels
from pixelpart.view.borrow import FrozenView

DAMAGE_IMAGES = 128  # for which the first-order damage is worked out after every epoch


def row(
    epoch: int,
    phase: Phase,
    learner: Learner,
    *,
    sums: dict[str, float],
    readings: dict[str, Reading],
    measured_on: str,
    images: tuple[Images, Labels],
) -> MetricsRow:
    """The epoch's row of metrics but for its times; the damage is worked out on the first of `images`."""
    reading = readings[measured_on]
    return {
        "epoch": epoch + 1,
        "phase": phase.name,
        "loss": sums["loss"] / sums["images"],
        "lr": learner.lr.item(),
        "natural": reading.natural,
        "pgd": reading.pgd,
        "robust_ce": reading.robust_ce,
        "measured_on": measured_on,
        "train_natural": readings["train"].natural,
        "train_pgd": readings["train"].pgd,
        "budget_mean": sums["budget"] / sums["images"],
        "high_fraction": sums["high"] / sums["images"],
        "dead_cams": round(sums["dead"]),
        "damage": damage(learner, phase, *images),
    }


def damage(learner: Learner, phase: Phase, x: Images, y: Labels) -> float:
    """What a budget from fresh maps can do to the raw weights, to first order, on the first of the images."""
    x, y = x[:DAMAGE_IMAGES], y[:DAMAGE_IMAGES]
    budget: Budget = phase.eps
    if phase.mask is not None:
        budget, _ = phase.mask.budget(maps_of(learner, phase, x, y), (x.shape[-2], x.shape[-1]))
    return probe.damage(learner.freeze(), x, y, phase.share * budget)


@torch.no_grad()
def collapsed(model: FrozenView, x: Images, y: Labels, *, chunk: int) -> int | None:
    """The class that every image is taken for, where it is one and the labels are not; else None."""
    called = torch.cat([model(part).argmax(1) for part in x.split(chunk)]).unique()
    return int(called[0]) if len(called) == 1 and len(y.unique()) > 1 else None


def summary(row: MetricsRow, epochs: int) -> str:
    """The row as a line for the screen and the log."""
    return (
        f"epoch {row['epoch']}/{epochs} {row['phase']}: loss {row['loss']:.4f}, natural {row['natural']:.1%}, "
        f"pgd {row['pgd']:.1%} ({row['measured_on']}), pgd on training images {row['train_pgd']:.1%}, "
        f"{row['seconds']:.1f} s"
    )
