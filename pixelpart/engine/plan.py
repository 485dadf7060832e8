"""Names to functions: a config's methods are looked up in the rooms' tables before anything is written to disk."""

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from pixelpart import masks
from pixelpart.attacks import ATTACKS
from pixelpart.config import Config
from pixelpart.data import of_config
from pixelpart.data.augment import AUGMENTS
from pixelpart.engine.optimizers import OPTIMIZERS
from pixelpart.engine.schedule import SCHEDULES
from pixelpart.errors import UserError, choose, unknown
from pixelpart.losses import smoothed
from pixelpart.models import Classifier
from pixelpart.objectives import OBJECTIVES
from pixelpart.runs import build_model
from pixelpart.runtime.precision import PRECISIONS
from pixelpart.types import BudgetMap, Flags, Images, Map, Model, Targets

TARGETS = ("predicted", "label")


@dataclass(frozen=True)
class Mask:
    """How a phase turns the model's view of an image into a budget."""

    cam: str  # a name in masks.MAPS
    layer: str  # where the map is read
    of_label: bool  # the map explains the label rather than the prediction
    budget: Callable[[Map, tuple[int, int]], tuple[BudgetMap, Flags]]  # the map at image size, and the rule: `spread`
    stored: bool  # maps come from the store, not from the batch


@dataclass(frozen=True)
class Phase:
    """A stretch of epochs that trains in one way: burn-in, or what follows it."""

    name: str  # burn-in, mask or plain
    eps: float  # the budget without a mask
    middle: float  # budgets from here up count as high
    attack: Callable[..., Tensor]  # attack(model, x, target, budget, start=...)
    start: str  # the kind of start
    starts: int  # start images for each image
    compares_logits: bool  # the attack moves away from the clean logits (KL), not from the label
    compares_targets: bool  # of mixed images the attack is told each class's share, not only the label of the largest
    objective: Callable[..., Tensor]  # objective(model, x, x_adv, target) -> loss
    classes: int
    mask: Mask | None = None
    awp: float = 0.0  # how far the weights are perturbed, as a share of their norms
    share: float = 1.0  # of the budgets above, while eps ramps up

    @property
    def looks(self) -> bool:
        """Whether a step begins with a clean forward."""
        return self.compares_logits or (self.mask is not None and not self.mask.stored)


@dataclass(frozen=True)
class Plan:
    """A config with every name resolved."""

    config: Config
    model: Classifier
    burn_in: Phase
    main: Phase

    def phase(self, epoch: int) -> Phase:
        """How this epoch trains; while eps ramps up, with a share of the budgets that there will be."""
        phase = self.burn_in if epoch < self.config.burn_in.epochs else self.main
        if self.config.awp.gamma and epoch >= self.config.awp.after:
            phase = dataclasses.replace(phase, awp=self.config.awp.gamma)
        ramp = self.config.eps_ramp
        return phase if epoch >= ramp else dataclasses.replace(phase, share=(epoch + 0.5) / ramp)

    def renews_maps(self, epoch: int) -> bool:
        """Whether the store is refilled before this epoch: when burn-in ends, and every so many epochs from there."""
        every, since = self.config.mask.every, epoch - self.config.burn_in.epochs
        return self.main.mask is not None and every > 0 and since >= 0 and since % every == 0


def build(config: Config) -> Plan:
    """The functions and the model that a config names; a name that is not there is a UserError with the choices."""
    dataset = of_config(config)
    choose(OPTIMIZERS, config.optim.name, "optimizer")
    choose(SCHEDULES, config.optim.schedule, "schedule")
    choose(AUGMENTS, config.augment, "augmentation")
    choose(PRECISIONS, config.precision, "precision")
    burn_in = config.burn_in.objective if config.burn_in.objective != "same" else config.objective.name
    model = build_model(config)
    phase = functools.partial(_phase, config, dataset.num_classes)
    return Plan(
        config,
        model,
        burn_in=phase("burn-in", burn_in, eps=config.eps if config.burn_in.eps == "same" else config.burn_in.eps),
        main=phase("mask", config.objective.name, eps=config.eps, mask=_mask(config, model, dataset.size)),
    )


def _phase(config: Config, classes: int, name: str, objective: str, *, eps: float, mask: Mask | None = None) -> Phase:
    method = choose(OBJECTIVES, objective, "objective")
    attack = choose(ATTACKS, config.attack.name, "attack")
    inner = {"loss": method.inner} if attack.takes_loss else {}
    loss = functools.partial(method.loss, beta=config.objective.beta) if method.weighted else method.loss
    smoothing = config.objective.smoothing
    return Phase(
        name="plain" if name == "mask" and mask is None else name,
        eps=eps,
        middle=(config.eps + config.eps_low) / 2 if mask and config.eps_low < config.eps else 0.0,
        attack=functools.partial(attack.run, step_size=config.attack.step_size, steps=config.attack.steps, **inner),
        start=method.start,
        starts=attack.starts,
        compares_logits=attack.takes_loss and method.inner == "kl",
        compares_targets=attack.takes_loss and method.inner == "ce",
        objective=functools.partial(_softened, loss, smoothing, classes) if smoothing else loss,
        classes=classes,
        mask=mask,
    )


def _softened(
    loss: Callable[..., Tensor], smoothing: float, classes: int, model: Model, x: Images, x_adv: Images, y: Targets
) -> Tensor:
    """The loss against smoothed targets, which neither the attack nor the mask gets to see."""
    return loss(model, x, x_adv, smoothed(y, smoothing, classes, dtype=x.dtype))


def _mask(config: Config, model: Classifier, size: int) -> Mask | None:
    mask = config.mask
    choose({"none": None, **masks.RULES}, mask.rule.partition(":")[0], "mask.rule")
    choose(masks.MAPS, mask.cam, "cam")
    if mask.target not in TARGETS:
        raise unknown("mask.target", mask.target, TARGETS)
    masks.cam(model, torch.zeros(1, 3, size, size), method=mask.cam, layer=mask.layer)  # a wrong layer is told now
    if mask.rule == "none":
        return None
    masks.parse_rule(mask.rule)
    if config.eps == 0:
        raise UserError("a mask needs eps above 0")
    return Mask(
        cam=mask.cam,
        layer=mask.layer,
        of_label=mask.target == "label",
        budget=functools.partial(spread, eps=config.eps, eps_low=config.eps_low, rule=mask.rule),
        stored=mask.every > 0,
    )


def spread(cam: Map, size: tuple[int, int], *, eps: float, eps_low: float, rule: str) -> tuple[BudgetMap, Flags]:
    """The budget that a rule makes of each raw map at image size, and which of the maps are dead."""
    heat = masks.upscale(cam, size)
    return masks.budget(heat, eps=eps, eps_low=eps_low, rule=rule), masks.dead(heat)
