"""One iteration of pixel-reweighted adversarial training, as the paper's Algorithm 3 has it.

Nothing in here waits for the device, branches on a tensor's value or draws a random number: all randomness comes in
with the batch. So the whole iteration can be compiled and captured as it stands.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from pixelpart import masks
from pixelpart.attacks.ball import start_point
from pixelpart.data import augment
from pixelpart.engine.plan import Phase
from pixelpart.engine.state import Learner
from pixelpart.losses import likeliest, one_hot
from pixelpart.types import Activations, Budget, BudgetMap, Images, Labels, Logits, Map, Targets
from pixelpart.view.borrow import FrozenView


@dataclass(frozen=True)
class StepInputs:
    """What changes from step to step: a mini-batch, its augmentation, its start noise, its stored maps if any.

    While eps ramps up, also the share of the budgets that each image has; a tensor, so that one captured step serves
    the whole ramp.
    """

    images: Images
    labels: Labels
    augmentation: augment.Params
    noise: Tensor
    maps: Map | None = None
    share: BudgetMap | None = None


@dataclass(frozen=True)
class Clean:
    """What the model makes of the clean batch: one forward, shared by the mask and by TRADES."""

    acts: Activations
    logits: Logits


def train_step(learner: Learner, phase: Phase, inputs: StepInputs) -> None:
    """Crafts adversarial examples inside the budget, takes one descent step on them, and adds to the epoch's tally."""
    x = augment.picture(inputs.augmentation, inputs.images).contiguous(memory_format=learner.layout)
    target = shown(phase, x, inputs)
    y = likeliest(target)
    model = learner.freeze()  # eval mode, the weights as they are now
    clean = look(model, x) if phase.looks else None

    budget, dead = pixel_budget(learner, model, phase, x, y, clean, inputs)  # Algorithm 1
    middle: Budget = phase.middle
    if inputs.share is not None:
        budget, middle = inputs.share * budget, inputs.share * middle
    start = start_points(x, budget, inputs.noise, kind=phase.start)
    away_from = target if phase.compares_targets else y
    if clean is not None and phase.compares_logits:
        away_from = clean.logits
    x_adv = phase.attack(model, x, away_from, budget, start=start)  # Algorithm 2

    # Algorithm 3, line 8
    loss = learner.descend(lambda: phase.objective(learner.network, x, x_adv, target), n=len(y), awp=phase.awp)
    learner.tally.add(loss, budget, dead, n=len(y), middle=middle)


def shown(phase: Phase, x: Images, inputs: StepInputs) -> Targets:
    """What each image is of: its label, or where images are mixed the share of its pixels that each class has."""
    if inputs.augmentation.mix is None:
        return inputs.labels
    labels = one_hot(inputs.labels, phase.classes, dtype=x.dtype)
    return augment.mixed(inputs.augmentation, labels, (x.shape[-2], x.shape[-1]))


def start_points(x: Images, budget: Budget, noise: Tensor, *, kind: str) -> Tensor:
    """Where the attack begins: one image each, or as many as the noise has."""
    if noise.ndim == x.ndim:
        return start_point(x, budget, noise, kind=kind)
    return torch.stack([start_point(x, budget, part, kind=kind) for part in noise])


@torch.no_grad()
def look(model: FrozenView, x: Images) -> Clean:
    acts = model.features(x)
    return Clean(acts, model.head(acts))


@torch.no_grad()
def pixel_budget(
    learner: Learner, model: FrozenView, phase: Phase, x: Images, y: Labels, clean: Clean | None, inputs: StepInputs
) -> tuple[Budget, Tensor]:
    """How far each pixel may move, and how many images have a dead map.

    A fresh map is read off the very images that are attacked. A stored one belongs to the picture before augmentation
    and moves with it; padding and what is cut out, which it does not know, get eps.
    """
    mask, size = phase.mask, (x.shape[-2], x.shape[-1])
    if mask is None:
        return phase.eps, torch.zeros((), device=x.device)
    if mask.stored:
        assert inputs.maps is not None
        budget, dead = mask.budget(inputs.maps, size)
        return augment.apply(inputs.augmentation, budget, fill=phase.eps), dead.sum()
    assert clean is not None
    budget, dead = mask.budget(class_map(learner, model, phase, x, y, clean), size)
    return budget, dead.sum()


def class_map(learner: Learner, model: FrozenView, phase: Phase, x: Images, y: Labels, clean: Clean) -> Map:
    """The map of each image's class: from the clean pass at the last layer; elsewhere, or of attention, by its own."""
    mask = phase.mask
    assert mask is not None
    target = y if mask.of_label else clean.logits.argmax(1)
    if mask.layer == "features" and mask.cam in masks.CAMS:
        return masks.features_cam(model, clean.acts, target, method=mask.cam)
    return masks.cam(learner.model, x, target, method=mask.cam, layer=mask.layer)
