"""A budget policy: from images to the budget of each pixel.

In the order in which they act: source (`maps`), scaled to heat (`heat`), rule and share 1 for dead maps (`share`),
control and scale (`control_and_scale`).
`pixel_budget` is everything after the source.
The policy's own numbers are constants of a compiled step; what varies by step, epoch or image reaches the step as a
tensor of its batch.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pixelpart.config import MaskConfig
from pixelpart.errors import UserError, choose, unknown
from pixelpart.masks.checks import check_maps, check_range, check_share, check_size
from pixelpart.masks.maps import upscale
from pixelpart.masks.rules import CONTROLS, RULES, Blobs, CoarseNoise, is_dead, parse_rule, rank, shuffled
from pixelpart.masks.sources import Source, SourceInputs, parse_source
from pixelpart.types import BudgetMap, Flags, Heatmap, Images, Labels, Map, Share

TARGETS = ("predicted", "label")
MEAN_OVER = {"image": (1, 2, 3), "batch": (0, 1, 2, 3)}


class AppliedPolicy(NamedTuple):
    """What a policy makes of some images, at image size."""

    heat: Heatmap  # where a map is one number, the share before the control
    budget: BudgetMap
    share: Share  # of the way from eps_low to eps, after the control
    dead: Flags  # images whose map is zero everywhere


@dataclass(frozen=True)
class BudgetPolicy:
    """Which maps are read from a batch, and how they become the budget of each pixel."""

    source: Source
    layer: str  # where a map of the model is read
    of_label: bool  # the map explains the label, not the predicted class
    stored: bool  # maps are kept between epochs, not read from the batch
    rule: Callable[[Heatmap], Share]
    control: Callable[[Share, Flags, CoarseNoise | None], Share]
    eps: float
    eps_low: float
    mean: float  # 0: budgets are not rescaled
    mean_over: str
    needs_blobs: bool  # the source or the control reads coarse noise

    @property
    def needs_clean_pass(self) -> bool:
        """Whether maps are read from the network in every step."""
        return self.source.from_model and not self.stored

    @property
    def across_images(self) -> str:
        """The setting by which an image's budget depends on the other images of the batch; "" if there is none."""
        settings = {
            "mask.rule rank": self.rule is rank,
            "mask.control shuffled": self.control is shuffled,
            "mask.mean_over batch": self.mean > 0 and self.mean_over == "batch",
        }
        return next((setting for setting, used in settings.items() if used), "")

    def maps(self, inputs: SourceInputs) -> Map:
        """The source's map of each image, at the policy's layer and for the class that the policy explains."""
        predicted = None if inputs.clean is None else inputs.clean.logits.argmax(1)
        target = inputs.y if self.of_label else predicted
        return self.source.maps(replace(inputs, target=target, layer=self.layer))

    def heat(self, maps: Map, size: tuple[int, int]) -> Heatmap:
        """Maps that need it scaled to [0, 1] and resized; heat and numbers per image as they are."""
        return upscale(maps, size) if self.source.needs_scaling else maps

    def share(self, maps: Map, size: tuple[int, int]) -> tuple[Share, Flags]:
        """Each pixel's share of the way from eps_low to eps, and which maps are dead; these have share 1."""
        heat = self.heat(maps, size)
        dead = torch.zeros_like(heat[:, 0, 0], dtype=torch.bool) if self.source.per_image else is_dead(heat)
        return live_or_one(self.rule(heat), dead), dead

    def control_and_scale(self, share: Share, dead: Flags, noise: CoarseNoise | None = None) -> tuple[BudgetMap, Share]:
        """Control, then scale: the budget of each pixel, and its share after the control."""
        share = torch.where(dead[:, None, None, None], share, self.control(share, dead, noise))
        budget = scale(share, eps=self.eps, eps_low=self.eps_low)
        return (with_mean(budget, self.mean, over=self.mean_over) if self.mean else budget), share

    def pixel_budget(
        self,
        maps: Map,
        size: tuple[int, int],
        noise: CoarseNoise | None,
        *,
        move: Callable[[Share], Share] | None = None,
    ) -> tuple[BudgetMap, Share, Flags]:
        """The budget of each pixel of images of this size, its share after the control, and which maps are dead.

        `noise` is the control's. `move` moves the shares as augmentation moved the images; it is applied to maps of the
        images before augmentation.
        """
        share, dead = self.share(maps, size)
        before_augmentation = self.stored or self.source.before_augmentation
        if move is not None and before_augmentation and not self.source.per_image:
            share = move(share)
        return *self.control_and_scale(share, dead, noise), dead

    def check(self, maps: Tensor, x: Images, noise: Tensor | None, *, source: str, rule: str, control: str) -> None:
        """A UserError if the source, rule or control returns a wrong shape, NaN, or values outside [0, 1].

        It names the source, the rule or the control. It waits for the device, so it is not part of a training step.
        """
        what, size = f"mask.source {source}", (x.shape[2], x.shape[3])
        check_maps(maps, len(x), what)
        if not self.source.needs_scaling:
            check_size(maps, (1, 1) if self.source.per_image else size, what)
            if not self.source.per_image:
                check_range(maps, f"{what} returned heat")
        heat = self.heat(maps, size)
        check_share(self.rule(heat), heat, f"mask.rule {rule}")
        share, dead = self.share(maps, size)
        check_share(self.control(share, dead, noise), heat, f"mask.control {control}")


def live_or_one(share: Share, dead: Flags) -> Share:
    """1 at every pixel of the images whose map is dead."""
    return torch.where(dead[:, None, None, None], 1, share)


def scale(share: Share, *, eps: float, eps_low: float) -> BudgetMap:
    """eps_low + share (eps - eps_low)."""
    # eps itself where the share is 1: the sum may round past it.
    return torch.where(share >= 1, eps, eps_low + (eps - eps_low) * share)


def with_mean(budget: BudgetMap, mean: float, *, over: str) -> BudgetMap:
    """Budgets rescaled so that their mean over each image, or over the batch, is `mean`; then clamped to at most 1.

    Where all budgets are 0 there is no ratio, and each becomes `mean`.
    """
    level = budget.mean(MEAN_OVER[over], keepdim=True)
    return torch.where(level > 0, budget * (mean / level), mean).clamp(max=1)


def budget(heat: Heatmap, *, eps: float, eps_low: float, rule: str = "mean") -> BudgetMap:
    """The largest change of each pixel, (b,1,h,w) or for `official` (b,3,h,w); eps where all heat is zero."""
    if not (0 <= eps <= 1 and 0 <= eps_low <= 1):
        raise UserError(f"eps_low {eps_low:.4g} and eps {eps:.4g}: choose both from 0 to 1")
    if heat.ndim != 3:
        raise UserError(f"heat has shape {tuple(heat.shape)}; it must be (b, h, w), so heat[None] for one image")
    check_range(heat, "heat has values")
    levels = {"eps": eps, "eps_low": eps_low}
    share = parse_rule(rule, **levels)(heat)
    check_share(share, heat, f"rule {rule}")
    return scale(live_or_one(share, is_dead(heat)), **levels)


def budget_policy(
    *,
    source: str = "gradcam",
    layer: str = "features",
    target: str = "predicted",
    rule: str = "mean",
    control: str = "none",
    mean: float = 0.0,
    mean_over: str = "image",
    eps: float,
    eps_low: float,
    stored: bool = False,
) -> BudgetPolicy | None:
    """The policy that these settings name, None for rule "none"; a name that does not exist is a UserError."""
    choose({"none": None, **RULES}, rule.partition(":")[0], "mask.rule")
    entry = parse_source(source)
    control_function = choose(CONTROLS, control, "mask.control")
    choose(MEAN_OVER, mean_over, "mask.mean_over")
    if target not in TARGETS:
        raise unknown("mask.target", target, TARGETS)
    if entry.per_image and rule != "rank":
        raise UserError(f"mask.source {source!r} is one number per image; it takes mask.rule rank, not {rule!r}")
    if rule == "none":
        return None
    if eps == 0:
        raise UserError("a mask needs eps above 0")
    if stored and not entry.from_model:
        raise UserError(f"mask.every stores maps of the network, and mask.source {source!r} does not read it")
    return BudgetPolicy(
        source=entry,
        layer=layer,
        of_label=target == "label",
        stored=stored,
        rule=parse_rule(rule, eps=eps, eps_low=eps_low),
        control=control_function,
        eps=eps,
        eps_low=eps_low,
        mean=mean,
        mean_over=mean_over,
        needs_blobs="blobs" in (source, control),
    )


@torch.no_grad()
def apply_policy(
    model: Any,
    x: Images,
    y: Labels,
    mask: MaskConfig,
    *,
    eps: float,
    eps_low: float,
    blobs: Blobs | None = None,
    objects: Tensor | None = None,
) -> AppliedPolicy:
    """The policy of a run's mask settings on these images; without a rule the budget is eps everywhere, and share 1.

    `blobs` is coarse noise from `draw_blobs`, `objects` the object masks, for policies that use them.
    """
    policy, size = budget_policy(**mask.policy, eps=eps, eps_low=eps_low), (x.shape[2], x.shape[3])
    if policy is None:  # the rule none has heat too
        policy = budget_policy(**mask.policy | {"rule": "mean"}, eps=1.0, eps_low=0.0)
    assert policy is not None
    source_noise, control_noise = (None, None) if blobs is None else blobs.unbind(1)
    maps = policy.maps(SourceInputs(x, y, model=model, view=model, noise=source_noise, objects=objects))
    budget, share, dead = policy.pixel_budget(maps, size, control_noise)
    heat = policy.share(maps, size)[0][:, 0] if policy.source.per_image else policy.heat(maps, size)
    if mask.rule == "none":
        return AppliedPolicy(heat, torch.full_like(heat, eps)[:, None], torch.ones_like(heat)[:, None], dead)
    heat, budget, share = (part.expand(*part.shape[:2], *size) for part in (heat[:, None], budget, share))
    return AppliedPolicy(heat[:, 0], budget, share, dead)
