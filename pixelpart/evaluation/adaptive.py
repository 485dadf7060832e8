"""Attacks that know how PART trains: through the mask of the attacked model.

`adaptive-pgd` and `adaptive-mma` are the paper's: 12/255 where the mask says important and 8/255 elsewhere. They leave
the ball of 8/255, so their verdict is by that budget, and their figures belong to no threat model with one eps.
`adaptive-in` stays in the ball of eps. It knows that training gave the less important pixels less budget, and that the
mask moves with the image.
"""

from typing import Any

import torch
from torch import Tensor

from pixelpart.attacks import ATTACKS
from pixelpart.attacks.ball import project
from pixelpart.attacks.pgd import signed_step
from pixelpart.config import Config, MaskConfig
from pixelpart.evaluation.accuracy import Attempt, Report, after_tries, errs_inside, start_images
from pixelpart.evaluation.explain import heat_and_budget, is_high
from pixelpart.evaluation.image_set import ImageSet
from pixelpart.evaluation.journal import Journal
from pixelpart.models import Classifier
from pixelpart.types import Budget, Flags, Images, Labels, Model

EPS_HIGH, EPS_LOW = 12 / 255, 8 / 255  # the paper's
THROUGH_MASK = {"adaptive-pgd": "pgd", "adaptive-mma": "mma"}  # the attack that gets the mask's budget
INSIDE = "adaptive-in"
ADAPTIVE = (*THROUGH_MASK, INSIDE)
WAYS = 4  # in which a restart of INSIDE tries


def settings_of(kind: str, config: Config | None) -> dict[str, Any]:
    """What an attack of this kind depends on besides steps: the mask, a run's own or gradcam + mean, and its budget."""
    mask = config.mask if config and config.mask.rule != "none" else MaskConfig(rule="mean")
    known = {"mask": mask.model_dump(exclude={"every"})}
    return known | {"eps_low": EPS_LOW} if kind in THROUGH_MASK else known


def check_mask(model: Classifier, pictures: ImageSet, config: Config | None) -> None:
    """A UserError where the model has no map to make a mask of: no features and head, or no such layer."""
    x, y = pictures.take(torch.arange(1))
    important(model, x, y, MaskConfig(**settings_of(INSIDE, config)["mask"]))


def under_adaptive(
    model: Classifier,
    pictures: ImageSet,
    *,
    kind: str,
    right: Flags,
    eps: float,
    step_size: float,
    steps: int,
    restarts: int,
    mask: dict[str, str],
    eps_low: float | None = None,
    seed: int,
    batch_size: int,
    report: Report,
    journal: Journal | None = None,
    net: Model | None = None,
) -> Flags:
    """Which of the images that are `right` to begin with stay right under the attack of this name in ADAPTIVE.

    It may search through another view `net` of the model; the model makes the masks, and decides.
    """
    net = model if net is None else net
    levels = Config(eps=eps, eps_low=eps if eps_low is None else eps_low, mask=MaskConfig(**mask))
    if kind == INSIDE:
        attempt = within_ball(model, net, levels, step_size=step_size, steps=steps, seed=seed)
    else:
        attempt = through_mask(model, net, THROUGH_MASK[kind], levels, step_size=step_size, steps=steps, seed=seed)
    tries = restarts * (WAYS if kind == INSIDE else 1)
    return after_tries(
        attempt, pictures, right=right, tries=tries, batch_size=batch_size, report=report, journal=journal
    )


def important(model: Classifier, x: Images, y: Labels, mask: MaskConfig) -> Tensor:
    """Where the mask of these images is high: bool (b, 1 or 3, h, w)."""
    levels = Config(eps=1.0, eps_low=0.0, mask=mask)
    return is_high(heat_and_budget(model, x, y, levels)[1], levels)


# -- the paper's: outside the ball of 8/255


def through_mask(
    model: Classifier, net: Model, kind: str, levels: Config, *, step_size: float, steps: int, seed: int
) -> Attempt:
    """PGD or MMA within eps where the mask of the clean image says important, and within eps_low elsewhere."""

    def attempt(index: Tensor, x: Images, y: Labels, restart: int) -> Flags:
        _, budget = heat_and_budget(model, x, y, levels)
        start = start_images(index, x, budget, kind=kind, steps=steps, seed=seed, restart=restart)
        x_adv = ATTACKS[kind].run(net, x, y, budget, step_size=step_size, steps=steps, start=start)
        return errs_inside(model, x, x_adv, y, eps=budget)

    return attempt


# -- ours: inside the ball of eps


def within_ball(model: Classifier, net: Model, levels: Config, *, step_size: float, steps: int, seed: int) -> Attempt:
    """Four ways in turn, the first two pgdK and mmaK themselves: what these break, it breaks.

    The third is MMA that for half of its steps changes only what the mask calls unimportant, where training was spared
    the full eps, and then everything. The fourth is MMA whose steps are twice as long on the pixels that the model
    looks at, by a mask made anew of x_adv at every step.
    """
    eps, mask = levels.eps, levels.mask

    def spared_first(x: Images, y: Labels, start: Tensor) -> Images:
        spared = eps * (~important(model, x, y, mask)).to(x.dtype)
        half = steps // 2
        x_adv = ATTACKS["mma"].run(net, x, y, spared, step_size=step_size, steps=half, start=start)
        return ATTACKS["mma"].run(net, x, y, eps, step_size=step_size, steps=steps - half, start=x_adv)

    def at_its_focus(x: Images, y: Labels, start: Tensor) -> Images:
        def ascend(net: Model, x_adv: Images, x: Images, target: Labels, budget: Budget, *rest: Any) -> Images:
            weight = 1 + important(model, x_adv, y, mask).to(x.dtype)

            def move(x_adv: Images, grad: Images, x: Images, budget: Budget, step_size: float) -> Images:
                return project(x_adv + step_size * weight * grad.sign(), x, budget)

            return signed_step(net, x_adv, x, target, budget, *rest, move=move)

        return ATTACKS["mma"].run(net, x, y, eps, step_size=step_size, steps=steps, start=start, ascend=ascend)

    def attempt(index: Tensor, x: Images, y: Labels, number: int) -> Flags:
        restart, way = divmod(number, WAYS)
        kind = "mma" if way else "pgd"
        start = start_images(index, x, eps, kind=kind, steps=steps, seed=seed, restart=restart)
        if way == 2:
            x_adv = spared_first(x, y, start)
        elif way == 3:
            x_adv = at_its_focus(x, y, start)
        else:
            x_adv = ATTACKS[kind].run(net, x, y, eps, step_size=step_size, steps=steps, start=start)
        return errs_inside(model, x, x_adv, y, eps=eps)

    return attempt
