"""One iteration of pixel-reweighted adversarial training: the paper's Algorithm 3.

`train_step` does not wait for the device, branch on the value of a tensor or draw a random number: all draws are made
before it, by `step_batch`. The whole iteration can therefore be compiled and captured as it is.

The files that it runs through, in reading order:

    engine/step.py             one iteration: this file
    engine/plan.py             the functions of a phase, by the names in the config
    data/augment/moving.py     augmented images, and shares moved with them
    engine/state.py            weights, the optimiser step, averaged weights, sums
    masks/policy.py            Algorithm 1: from a map to the budget of each pixel
    masks/sources.py           what marks the pixels
    masks/maps.py              class activation maps and attention maps
    masks/rules.py             marks to shares of the budget; controls
    attacks/pgd.py             Algorithm 2: the attack
    attacks/ball.py            its start and its projection onto the budget
    objectives/__init__.py     the losses of AT, TRADES and MART

docs/method.md has the few places where the printed algorithms differ from this, and why.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from pixelpart import draws
from pixelpart.attacks.ball import draw_noise, start_point
from pixelpart.config import Config
from pixelpart.data import augment
from pixelpart.data.augment.moving import Params, apply, apply_to_images, mix_labels
from pixelpart.data.loader import Loader
from pixelpart.engine.state import TrainingState
from pixelpart.losses import likeliest, one_hot
from pixelpart.masks import BudgetPolicy, CleanPass, SourceInputs, draw_blobs
from pixelpart.masks.rules import CoarseNoise
from pixelpart.types import Budget, BudgetMap, Heatmap, Images, Labels, Map, Share, Targets
from pixelpart.view.borrow import FrozenView


@dataclass(frozen=True)
class Phase:
    """The epochs that train in one way: burn-in, or the epochs after it."""

    name: str  # burn-in, mask or plain
    classes: int
    eps: float  # the budget where there is no mask
    mask: BudgetPolicy | None
    attack: Callable[..., Tensor]  # attack(model, x, away_from, budget, start=...) -> x_adv
    start: str  # kind of the attack's start: uniform, normal or none
    starts: int  # start images for each image
    away_from: str  # "labels", "targets" (of a mixed image, the share of each class) or "clean logits" (KL)
    loss: Callable[..., Tensor]  # loss(model, x, x_adv, targets), label smoothing included
    awp: float = 0.0  # how far the weights are perturbed, relative to their norms

    @property
    def needs_clean_pass(self) -> bool:
        """Whether a step begins with a forward pass on the clean images."""
        return self.away_from == "clean logits" or (self.mask is not None and self.mask.needs_clean_pass)


@dataclass(frozen=True)
class StepBatch:
    """Everything that differs between two steps: the images and the random draws made for them.

    A captured step reads these tensors from fixed buffers; numbers of the phase are constants in it.
    """

    images: Images
    labels: Labels
    augmentation: Params
    start_noise: Tensor  # with a leading dimension where an attack has several starts
    stored_maps: Map | None = None  # of the images before augmentation, as are the objects
    objects: Heatmap | None = None  # object masks: 1 on the object, else 0
    source_noise: CoarseNoise | None = None  # if the source or the control is blobs
    control_noise: CoarseNoise | None = None
    budget_scale: BudgetMap | None = None  # factor on the budgets, while eps changes by epoch


def step_batch(
    config: Config,
    phase: Phase,
    loader: Loader,
    *,
    epoch: int,
    step: int,
    stored_maps: Tensor | None = None,
    objects: Tensor | None = None,
    budget_scale: float | None = None,
) -> StepBatch:
    """The step's images with their draws, which are made for the global batch; each process takes its slice.

    `stored_maps` and `objects` are those of all training images, if the policy reads them.
    """
    batch = loader.batch(epoch, step)
    n = loader.global_size(step)
    mine = loader.world.rows(n)

    def generator(stream: str) -> torch.Generator:
        return draws.generator(config.seed, stream, epoch, step, device=loader.device)

    augmentation = augment.draw(config.augment, n, generator=generator("augment"))
    starts = () if phase.starts == 1 else (phase.starts,)
    like = batch.images.new_empty((*starts, n, *batch.images.shape[1:]))
    noise = draw_noise(like, kind=phase.start, generator=generator("start"))
    source_noise = control_noise = scale = None
    if phase.mask is not None and phase.mask.needs_blobs:
        source_noise, control_noise = draw_blobs(n, generator=generator("blobs"))[mine].unbind(1)
    if budget_scale is not None:
        scale = batch.images.new_full((len(batch.labels), 1, 1, 1), budget_scale)

    def of_batch(maps: Tensor | None) -> Tensor | None:
        return None if maps is None or phase.mask is None else maps[batch.index].to(batch.images.dtype)

    return StepBatch(
        batch.images,
        batch.labels,
        augmentation[mine],
        noise[..., mine, :, :, :],
        stored_maps=of_batch(stored_maps),
        objects=of_batch(objects),
        source_noise=source_noise,
        control_noise=control_noise,
        budget_scale=scale,
    )


def train_step(state: TrainingState, phase: Phase, batch: StepBatch) -> None:
    """Crafts adversarial examples inside the budget, descends on them once, and adds to the epoch's sums."""
    x = apply_to_images(batch.augmentation, batch.images).contiguous(memory_format=state.layout)
    targets = training_targets(batch, x, classes=phase.classes)
    y = likeliest(targets)
    view = state.attack_view()  # eval mode, the weights as they are now
    clean = clean_pass(view, x) if phase.needs_clean_pass else None

    budget, share, dead_count = batch_budget(state, phase, view, x, y, clean, batch)  # Algorithm 1
    start = start_points(x, budget, batch.start_noise, kind=phase.start)
    away_from = attack_reference(phase, targets, y, clean)
    x_adv = phase.attack(view, x, away_from, budget, start=start)  # Algorithm 2

    # Algorithm 3, line 8
    loss = state.descend(lambda: phase.loss(state.network, x, x_adv, targets), n=len(y), awp=phase.awp)
    state.tally.add(loss, budget, share, dead_count, n=len(y))


def training_targets(batch: StepBatch, x: Images, *, classes: int) -> Targets:
    """The labels; for mixed images the probability of each class, its share of the pixels."""
    if batch.augmentation.mix is None:
        return batch.labels
    labels = one_hot(batch.labels, classes, dtype=x.dtype)
    return mix_labels(batch.augmentation, labels, (x.shape[-2], x.shape[-1]))


@torch.no_grad()
def clean_pass(view: FrozenView, x: Images) -> CleanPass:
    """The view's outputs on the clean images: one forward pass, shared by the mask and by TRADES."""
    acts = view.features(x)
    return CleanPass(acts, view.head(acts))


@torch.no_grad()
def batch_budget(
    state: TrainingState,
    phase: Phase,
    view: FrozenView,
    x: Images,
    y: Labels,
    clean: CleanPass | None,
    batch: StepBatch,
) -> tuple[Budget, Share, Tensor]:
    """How far each pixel may move, its share of the way from eps_low to eps, and the number of dead maps.

    A fresh map is read from the very images that are attacked. Stored maps and object masks belong to the image before
    augmentation and their shares move with it; padding and erased pixels, which they do not cover, get share 1.
    """
    budget: Budget = phase.eps
    share, dead_count = x.new_ones(1, 1, 1, 1), x.new_zeros(())
    if (mask := phase.mask) is not None:
        maps = batch.stored_maps
        if maps is None:
            noise, objects = batch.source_noise, batch.objects
            maps = mask.maps(
                SourceInputs(x, y, model=state.model, view=view, clean=clean, noise=noise, objects=objects)
            )
        move = functools.partial(apply, batch.augmentation, fill=1.0)
        size = (x.shape[-2], x.shape[-1])
        budget, share, dead = mask.pixel_budget(maps, size, batch.control_noise, move=move)
        dead_count = dead.sum()
    if batch.budget_scale is not None:
        budget = batch.budget_scale * budget
    return budget, share, dead_count


def start_points(x: Images, budget: Budget, noise: Tensor, *, kind: str) -> Tensor:
    """Where the attack starts: one image for each image, or as many as there are noises."""
    if noise.ndim == x.ndim:
        return start_point(x, budget, noise, kind=kind)
    return torch.stack([start_point(x, budget, part, kind=kind) for part in noise])


def attack_reference(phase: Phase, targets: Targets, y: Labels, clean: CleanPass | None) -> Tensor:
    """What the attack moves the prediction away from."""
    if phase.away_from == "clean logits":
        assert clean is not None
        return clean.logits
    return targets if phase.away_from == "targets" else y
