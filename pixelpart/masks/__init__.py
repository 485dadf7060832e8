"""Which pixels matter, and how much budget each gets: source -> map -> rule -> share -> control -> scale -> budget.

A new source, rule or control is a function and an entry in a table below.
"""

import functools
from collections.abc import Callable
from typing import Any

from torch import Tensor

from pixelpart.masks.attention import attention_map, gradient_rollout, rollout
from pixelpart.masks.controls import draw_blobs, flat, inverted, same_area, shuffled, unchanged
from pixelpart.masks.maps import cam, features_cam, gradcam, heatmap, layercam, model_map, pooled_cam, upscale, xgradcam
from pixelpart.masks.policy import AppliedPolicy, BudgetPolicy, apply_policy, budget, budget_policy
from pixelpart.masks.rules import above_mean, above_quantile, is_dead, official, parse_rule, power, rank, soft, zscore
from pixelpart.masks.sources import (
    Source,
    SourceInputs,
    blobs,
    centre,
    gradient,
    gradient_settings,
    margin,
    object_mask,
    parse_source,
    quadrant,
    quadrant_settings,
)

__all__ = [
    "CAMS",
    "CONTROLS",
    "MAPS",
    "ROLLOUTS",
    "RULES",
    "SOURCES",
    "AppliedPolicy",
    "BudgetPolicy",
    "Source",
    "SourceInputs",
    "apply_policy",
    "attention_map",
    "budget",
    "budget_policy",
    "cam",
    "draw_blobs",
    "features_cam",
    "heatmap",
    "is_dead",
    "parse_rule",
    "parse_source",
    "pooled_cam",
    "upscale",
]

# (acts, grads) -> map
CAMS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"gradcam": gradcam, "layercam": layercam, "xgradcam": xgradcam}

# (transformer, x, target) -> share of each token in each other token
ROLLOUTS: dict[str, Callable[[Any, Tensor, Tensor | None], Tensor]] = {
    "gradient-rollout": gradient_rollout,
    "rollout": rollout,
}

MAPS: dict[str, Callable[..., Tensor]] = {**CAMS, **ROLLOUTS}

# what marks the pixels
SOURCES: dict[str, Source] = {
    **{name: Source(functools.partial(model_map, method=name), raw=True, from_model=True) for name in MAPS},
    "gradient": Source(gradient, from_model=True, settings=gradient_settings),
    "margin": Source(margin, from_model=True, per_image=True),
    "centre": Source(centre),
    "quadrant": Source(quadrant, settings=quadrant_settings),
    "blobs": Source(blobs, raw=True),
    "object": Source(object_mask, of_image=True),
}

# heat -> share in [0, 1]; the budget is eps_low + share (eps - eps_low)
RULES: dict[str, Callable[..., Tensor]] = {
    "mean": above_mean,
    "official": official,
    "power": power,
    "quantile": above_quantile,
    "rank": rank,
    "soft": soft,
    "zscore": zscore,
}

# (share, dead, noise) -> share
CONTROLS: dict[str, Callable[..., Tensor]] = {
    "none": unchanged,
    "inverted": inverted,
    "shuffled": shuffled,
    "flat": flat,
    "blobs": same_area,
}


def __dir__() -> list[str]:
    return __all__
