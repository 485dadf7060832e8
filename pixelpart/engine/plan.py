"""From a config to functions: every method a config names is looked up before anything is written to disk."""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pixelpart import masks
from pixelpart.attacks import ATTACKS
from pixelpart.config import Config, is_user_code
from pixelpart.data import DataSet, of_config, require_masks
from pixelpart.data.augment import AUGMENTS
from pixelpart.data.loader import check_holdout
from pixelpart.engine import training_data
from pixelpart.engine.checkpoint import find_parent
from pixelpart.engine.optimizers import OPTIMIZERS, SCHEDULES
from pixelpart.engine.step import Phase
from pixelpart.errors import UserError, choose
from pixelpart.losses import smoothed
from pixelpart.models import Classifier
from pixelpart.objectives import OBJECTIVES
from pixelpart.runs import RunFolder, build_model, config_of, fill, load_model
from pixelpart.runtime.device import choose_device
from pixelpart.runtime.precision import PRECISIONS
from pixelpart.types import Images, Model, Targets


@dataclass(frozen=True)
class Plan:
    """A config with every name resolved."""

    config: Config
    model: Classifier
    burn_in: Phase
    main: Phase

    def phase(self, epoch: int) -> Phase:
        """How this epoch trains, with its weight perturbation."""
        phase = self.burn_in if epoch < self.config.burn_in.epochs else self.main
        return dataclasses.replace(phase, awp=self.config.awp.gamma) if epoch >= self.config.awp.after else phase

    def budget_scale(self, epoch: int) -> float | None:
        """The factor on all budgets of an epoch while eps ramps up from 0, or goes from eps_from to eps; else None."""
        config, factors = self.config, []
        if epoch < config.eps_ramp:
            factors.append((epoch + 0.5) / config.eps_ramp)
        first, last = config.burn_in.epochs, config.epochs - 1
        if config.eps_from != "same" and epoch >= first:
            passed = (epoch - first) / (last - first)
            factors.append((1 - passed) * config.eps_from / config.eps + passed)
        return math.prod(factors) if factors else None

    def renews_maps(self, epoch: int) -> bool:
        """Whether the stored maps are computed anew before this epoch: after burn-in, then every `mask.every`."""
        every, since = self.config.mask.every, epoch - self.config.burn_in.epochs
        return self.main.mask is not None and every > 0 and since >= 0 and since % every == 0


def build_plan(config: Config) -> Plan:
    """The functions and the model that a config names; an unknown name is a UserError with the choices."""
    dataset = of_config(config)
    burn_in, main = _phases(config, dataset)
    model = build_model(config)
    _check_maps(model, config, dataset)
    return Plan(config, model, burn_in, main)


def prepare(config: Config, out: Path | str | None, *, device: torch.device | str | None = None) -> Plan:
    """The plan of a run in the folder `out`; UserError for every mistake that shows before images are read."""
    if not isinstance(config, Config):
        recipe = "pp.recipes.shapes_part(seed=0)"
        raise UserError(f"train takes a config such as {recipe}, not a {type(config).__name__}; its `model` is a name")
    config = training_data.with_data_fields(config)
    plan = build_plan(config)
    if out is not None:
        RunFolder(out).check_config(config)
    if config.init_from and not (out is not None and RunFolder(out).checkpoint("last").exists()):
        path, epoch = find_parent(config)
        if not epoch:
            fill(plan.model.state_dict(), load_model(path, config_of(path))[0].state_dict(), source=path)
    choose_device(device)
    return plan


def check_plans(configs: Sequence[Config]) -> None:
    """UserError for the first mistake that `build_plan` reports; each data set and each network is made only once."""
    sets: dict[Any, DataSet] = {}
    groups: dict[Any, dict[Any, Config]] = {}  # by network, then by what its maps depend on
    for config in configs:
        name = (config.dataset, *config.data_options.values())
        if name not in sets:
            sets[name] = of_config(config)
        _phases(config, sets[name])
        maps = (config.mask.source, config.mask.layer, config.mask.rule == "none")
        groups.setdefault((config.model, name), {})[maps] = config
    for (network, name), group in groups.items():
        device = "cpu" if is_user_code(network) else "meta"  # finds its layers without computing
        model = build_model(next(iter(group.values()))).to(device)
        for config in group.values():
            _check_maps(model, config, sets[name], device=device)


def _phases(config: Config, dataset: DataSet) -> tuple[Phase, Phase]:
    """How the epochs of burn-in and the others train; all names but that of the network are looked up."""
    choose(OPTIMIZERS, config.optim.name, "optimizer")
    choose(SCHEDULES, config.optim.schedule, "schedule")
    choose(AUGMENTS, config.augment, "augmentation")
    choose(PRECISIONS, config.precision, "precision")
    check_holdout(dataset.counts["train"], config.holdout)
    mask = masks.budget_policy(**config.mask.policy, eps=config.eps, eps_low=config.eps_low)
    if mask is not None and mask.source.before_augmentation:
        require_masks(dataset, config.dataset)
    first, method = config.burn_in, config.objective.name
    eps = config.eps if first.eps == "same" else first.eps
    objective = method if first.objective == "same" else first.objective
    return (
        _phase(config, "burn-in", objective, dataset.num_classes, eps=eps, mask=None),
        _phase(config, "mask" if mask else "plain", method, dataset.num_classes, eps=config.eps, mask=mask),
    )


def _check_maps(model: Classifier, config: Config, dataset: DataSet, *, device: str = "cpu") -> None:
    """UserError if the network does not have the maps that the mask reads."""
    names = config.mask
    if names.source in masks.MAPS and (names.rule != "none" or names.layer != "features"):
        some = torch.zeros(2, *dataset.shape, device=device)
        masks.cam(model, some, method=names.source, layer=names.layer)


def _phase(
    config: Config, name: str, method: str, classes: int, *, eps: float, mask: masks.BudgetPolicy | None
) -> Phase:
    """The phase of this name, which trains with an objective; the objective chooses what the attack maximises.

    If no pixel has a budget, the attack takes no step: all would end at x.
    """
    objective = choose(OBJECTIVES, method, "objective")
    attack = choose(ATTACKS, config.attack.name, "attack")
    steps = config.attack.steps if eps > 0 else 0
    run, away_from = functools.partial(attack.run, step_size=config.attack.step_size, steps=steps), "labels"
    if attack.takes_loss:
        run = functools.partial(run, loss=objective.inner)
        away_from = {"kl": "clean logits", "ce": "targets"}.get(objective.inner, "labels")
    loss = functools.partial(objective.loss, beta=config.objective.beta) if objective.weighted else objective.loss
    if smoothing := config.objective.smoothing:
        loss = functools.partial(_smoothed_loss, loss, smoothing, classes)
    return Phase(name, classes, eps, mask, run, objective.start, attack.starts, away_from, loss)


def _smoothed_loss(
    loss: Callable[..., Tensor], smoothing: float, classes: int, model: Model, x: Images, x_adv: Images, y: Targets
) -> Tensor:
    """The loss against smoothed targets, which neither the attack nor the mask sees."""
    return loss(model, x, x_adv, smoothed(y, smoothing, classes, dtype=x.dtype))
