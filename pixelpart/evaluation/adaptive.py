"""Adaptive attacks: they know how PART trains and use the mask of the attacked model.

`adaptive-pgd` and `adaptive-mma` are the paper's: budget 12/255 where the mask marks a pixel as important and 8/255
elsewhere. They leave the ball of 8/255, so they are judged by that budget, and their numbers belong to no threat model
with a single eps. `adaptive-in` stays inside the ball of eps. It uses that training gave the less important pixels a
smaller budget, and that the mask changes with the image.
"""

from typing import Any

from torch import Tensor

from pixelpart.attacks import ATTACKS
from pixelpart.attacks.ball import project
from pixelpart.attacks.pgd import signed_step
from pixelpart.config import MaskConfig
from pixelpart.evaluation.attack_spec import ADAPTIVE_LOW, ATTACKS_PER_RESTART, MASK_BUDGET, AttackSpec
from pixelpart.evaluation.images import errs_inside, start_images
from pixelpart.masks import apply_policy
from pixelpart.models import Classifier
from pixelpart.types import Budget, Flags, Images, Labels, Model


def important(model: Classifier, x: Images, y: Labels, mask: MaskConfig) -> Tensor:
    """Where the mask of these images is high: bool (b, 1 or 3, h, w)."""
    return apply_policy(model, x, y, mask, eps=1.0, eps_low=0.0).share >= 0.5


def check_mask(model: Classifier, x: Images, y: Labels, mask: MaskConfig) -> None:
    """A UserError if the mask cannot be computed for this model."""
    important(model, x, y, mask)


def attack_budget(spec: AttackSpec, model: Any, x: Images, y: Labels) -> Budget:
    """eps; of an attack in MASK_BUDGET, eps where the clean image's mask is high and ADAPTIVE_LOW elsewhere."""
    if spec.kind not in MASK_BUDGET:
        return spec.eps
    assert spec.mask is not None
    return apply_policy(model, x, y, spec.mask, eps=spec.eps, eps_low=ADAPTIVE_LOW).budget


def try_inside(
    spec: AttackSpec, model: Classifier, view: Model, index: Tensor, x: Images, y: Labels, number: int
) -> Flags:
    """Which samples one try of ADAPTIVE_IN breaks: four attacks in turn, the first two pgdK and mmaK themselves.

    The third is MMA that for half of its steps changes only the pixels that the mask marks as unimportant, for which
    training used a smaller budget, and then all pixels. The fourth is MMA with steps twice as long where the mask is
    high, the mask being recomputed on x_adv at every step.
    """
    assert spec.mask is not None
    restart, way = divmod(number, ATTACKS_PER_RESTART)
    kind, steps = "mma" if way else "pgd", spec.steps
    start = start_images(index, x, spec.eps, kind=kind, steps=steps, seed=spec.seed, restart=restart)
    attack: dict[str, Any] = {"step_size": spec.step_size, "start": start, "steps": steps}
    if way == 2:
        unimportant = spec.eps * (~important(model, x, y, spec.mask)).to(x.dtype)
        half = ATTACKS[kind].run(view, x, y, unimportant, **attack | {"steps": steps // 2})
        attack |= {"start": half, "steps": steps - steps // 2}
    elif way == 3:
        attack["ascend"] = _longer_where_important(model, y, spec.mask)
    x_adv = ATTACKS[kind].run(view, x, y, spec.eps, **attack)
    return errs_inside(model, x, x_adv, y, eps=spec.eps)


def _longer_where_important(model: Classifier, y: Labels, mask: MaskConfig) -> Any:
    """`ascend` for MMA: signed steps, twice as long where the mask of the present x_adv is high."""

    def ascend(net: Model, x_adv: Images, x: Images, target: Labels, budget: Budget, *rest: Any) -> Images:
        weight = 1 + important(model, x_adv, y, mask).to(x.dtype)

        def move(x_adv: Images, grad: Images, x: Images, budget: Budget, step_size: float) -> Images:
            return project(x_adv + step_size * weight * grad.sign(), x, budget)

        return signed_step(net, x_adv, x, target, budget, *rest, move=move)

    return ascend
