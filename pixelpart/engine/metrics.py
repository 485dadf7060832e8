"""What is measured after every epoch: accuracy on fixed images under fixed noise, damage, collapse; the metrics row."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from pixelpart import draws
from pixelpart.attacks import pgd
from pixelpart.attacks.ball import draw_noise, start_point
from pixelpart.config import Config
from pixelpart.engine.checkpoint import Position
from pixelpart.engine.state import TrainingState
from pixelpart.engine.step import Phase
from pixelpart.engine.stored_maps import sample_maps
from pixelpart.losses import ce
from pixelpart.runs import MetricsRow
from pixelpart.types import Budget, Images, Labels
from pixelpart.view.borrow import FrozenView

DAMAGE_IMAGES = 128  # on which the first-order damage is computed
COLLAPSE_STEPS = 100  # steps before which a collapse is not reported, unless training ends


@dataclass(frozen=True)
class ProbeResult:
    natural: float  # accuracy on the clean images
    pgd: float  # accuracy under the training attack's PGD at the full eps
    robust_ce: float  # mean cross-entropy under that attack


ProbeBatch = Callable[[Images, Labels, Images], Float[Tensor, "3"]]


@torch.no_grad()
def probe_batch(
    view: Callable[[], FrozenView],
    config: Config,
    x: Images,
    y: Labels,
    noise: Images,
    *,
    ascend: Callable[..., Images] | None = None,
) -> Float[Tensor, "3"]:
    """Sums over a batch: correct on clean images, correct under PGD, cross-entropy there; eps at every pixel."""
    model = view()
    x_adv = pgd(
        model,
        x,
        y,
        config.eps,
        step_size=config.attack.step_size,
        steps=config.attack.steps,
        start=start_point(x, config.eps, noise, kind="uniform"),
        ascend=ascend,
    )
    logits = model(x_adv)
    values = (model(x).argmax(1) == y, logits.argmax(1) == y, ce(logits, y))
    return torch.stack([value.double().sum() for value in values])


def probe(probe_batch: ProbeBatch, x: Images, y: Labels, *, seed: int, stream: str, chunk: int) -> ProbeResult:
    """Natural accuracy, robust accuracy and robust cross-entropy of the images, in chunks with noise of their own."""
    sums = torch.zeros(3, dtype=torch.float64, device=x.device)
    for begin in range(0, len(x), chunk):
        images, labels = x[begin : begin + chunk], y[begin : begin + chunk]
        generator = draws.generator(seed, f"probe/{stream}", step=begin, device=x.device)
        sums += probe_batch(images, labels, draw_noise(images, kind="uniform", generator=generator))
    return ProbeResult(*(sums / len(x)).tolist())


def first_order_damage(model: FrozenView, x: Images, y: Labels, budget: Budget) -> float:
    """Mean over the images of sum_i b_i |g_i|: what the budget can add to the cross-entropy, to first order."""
    with torch.enable_grad():
        leaf = x.detach().requires_grad_()
        (grad,) = torch.autograd.grad(ce(model(leaf), y).sum(), leaf)
    return (grad.abs() * budget).sum((1, 2, 3)).mean().item()


def phase_damage(
    state: TrainingState, phase: Phase, x: Images, y: Labels, *, objects: Tensor | None, budget_scale: float | None
) -> float:
    """The first-order damage of the phase's budgets, from fresh maps and the unaveraged weights, on a few images.

    `objects`: the object masks of the images, which the source `object` needs; `budget_scale`: factor on the budgets.
    """
    x, y = x[:DAMAGE_IMAGES], y[:DAMAGE_IMAGES]
    budget: Budget = phase.eps
    if phase.mask is not None:
        maps, noise = sample_maps(state, phase.mask, x, y, objects=objects)
        budget, *_ = phase.mask.pixel_budget(maps, (x.shape[-2], x.shape[-1]), noise)
    if budget_scale is not None:
        budget = budget_scale * budget
    return first_order_damage(state.attack_view(), x, y, budget)


@torch.no_grad()
def collapsed_class(model: FrozenView, x: Images, y: Labels, *, chunk: int) -> int | None:
    """The only class that the model predicts, or None if it predicts several or there is only one label."""
    predicted = torch.cat([model(part).argmax(1) for part in x.split(chunk)]).unique()
    return int(predicted[0]) if len(predicted) == 1 and len(y.unique()) > 1 else None


class CollapseCheck:
    """Whether the unaveraged model predicts a single class; an average of its weights would show it later.

    An untrained model does so too, and so may one that learns, for an epoch or during the eps ramp.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self.label: int | None = None  # the only class predicted after the last epoch
        self.reported = False

    def after_epoch(self, state: TrainingState, at: Position, x: Images, y: Labels, *, chunk: int) -> bool:
        """Sets `label`; returns whether to report it now: once, when it is not None after two epochs in a row."""
        config = self.config
        if at.step < COLLAPSE_STEPS and at.epoch < config.epochs:
            return False
        before, self.label = self.label, collapsed_class(state.attack_view(), x, y, chunk=chunk)
        lasts = before is not None and self.label is not None
        first = max(config.eps_ramp, min(config.epochs // 10, 5))
        report = lasts and first < at.epoch < config.epochs and not self.reported
        self.reported |= report
        return report


def epoch_row(
    epoch: int,
    phase: Phase,
    state: TrainingState,
    sums: dict[str, float],
    probes: dict[str, ProbeResult],
    measured_on: str,
    damage: float,
) -> MetricsRow:
    """The epoch's row of metrics, except its times."""
    measured = probes[measured_on]
    return {
        "epoch": epoch + 1,
        "phase": phase.name,
        "loss": sums["loss"] / sums["images"],
        "lr": state.lr.item(),
        "natural": measured.natural,
        "pgd": measured.pgd,
        "robust_ce": measured.robust_ce,
        "measured_on": measured_on,
        "train_natural": probes["train"].natural,
        "train_pgd": probes["train"].pgd,
        "budget_mean": sums["budget"] / sums["images"],
        "high_fraction": sums["high"] / sums["images"],
        "dead_cams": round(sums["dead"]),
        "damage": damage,
    }
