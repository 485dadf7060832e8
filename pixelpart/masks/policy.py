"""A budget policy: which maps are read from a batch, and how they become the budget of each pixel.

In the order in which they act: the source (`cam`, `layer`, `of_label`), the rule, budget eps for dead maps, and the
scale from eps_low to eps. The policy's own numbers are constants of a compiled step; what varies by step, epoch or
image reaches the step as a tensor of its batch.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from pixelpart import masks
from pixelpart.errors import UserError, choose, unknown
from pixelpart.masks.maps import cam as cam_of_images
from pixelpart.masks.maps import features_cam, upscale
from pixelpart.masks.rules import budget, dead, parse_rule
from pixelpart.types import BudgetMap, Flags, Images, Labels, Logits, Map

TARGETS = ("predicted", "label")


@dataclass(frozen=True)
class BudgetPolicy:
    """Turns images into budgets: `maps` reads a raw map of each image, `budget` makes a budget of each raw map."""

    cam: str  # a name in masks.MAPS
    layer: str  # where the map is read
    of_label: bool  # the map explains the label, not the predicted class
    stored: bool  # maps are kept between epochs, not read from the batch
    eps: float  # the largest budget, and that of pixels without a map
    high_from: float  # budgets from here up count as high
    budget: Callable[[Map, tuple[int, int]], tuple[BudgetMap, Flags]]  # `budget_of_maps`, which engine/fast.py compiles

    def maps(self, model: Any, view: Any, x: Images, y: Labels, acts: Tensor, logits: Logits) -> Map:
        """The raw map of each image's class.

        `acts` and `logits` are what `view` computed for x. At the last layer they are all that a class activation map
        needs; other layers and attention maps take a pass of their own through `model`.
        """
        target = y if self.of_label else logits.argmax(1)
        if self.layer == "features" and self.cam in masks.CAMS:
            return features_cam(view, acts, target, method=self.cam)
        return cam_of_images(model, x, target, method=self.cam, layer=self.layer)


def budget_of_maps(
    maps: Map, size: tuple[int, int], *, eps: float, eps_low: float, rule: str
) -> tuple[BudgetMap, Flags]:
    """The budget of each raw map at image size, and which of the maps are dead."""
    heat = upscale(maps, size)
    return budget(heat, eps=eps, eps_low=eps_low, rule=rule), dead(heat)


def budget_policy(
    *,
    cam: str = "gradcam",
    layer: str = "features",
    target: str = "predicted",
    rule: str = "mean",
    eps: float,
    eps_low: float,
    stored: bool = False,
) -> BudgetPolicy | None:
    """The policy that these settings name, None for rule "none"; a name that does not exist is a UserError."""
    choose({"none": None, **masks.RULES}, rule.partition(":")[0], "mask.rule")
    choose(masks.MAPS, cam, "cam")
    if target not in TARGETS:
        raise unknown("mask.target", target, TARGETS)
    if rule == "none":
        return None
    parse_rule(rule)
    if eps == 0:
        raise UserError("a mask needs eps above 0")
    return BudgetPolicy(
        cam=cam,
        layer=layer,
        of_label=target == "label",
        stored=stored,
        eps=eps,
        high_from=(eps + eps_low) / 2 if eps_low < eps else 0.0,
        budget=functools.partial(budget_of_maps, eps=eps, eps_low=eps_low, rule=rule),
    )
