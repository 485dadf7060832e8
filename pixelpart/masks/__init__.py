"""Which pixels matter, and how much budget each gets: model and image -> map -> heat -> budget.

A new map or rule is a function and an entry in a table below.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from pixelpart.masks.attention import attention_map, gradient_rollout, rollout
from pixelpart.masks.maps import cam, features_cam, gradcam, heatmap, layercam, pooled_cam, upscale, xgradcam
from pixelpart.masks.policy import BudgetPolicy, budget_policy
from pixelpart.masks.rules import above_mean, above_quantile, budget, dead, official, parse_rule, soft, zscore

__all__ = [
    "CAMS",
    "MAPS",
    "ROLLOUTS",
    "RULES",
    "BudgetPolicy",
    "attention_map",
    "budget",
    "budget_policy",
    "cam",
    "dead",
    "features_cam",
    "heatmap",
    "parse_rule",
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

# heat -> share in [0, 1]; the budget is eps_low + share (eps - eps_low)
RULES: dict[str, Callable[..., Tensor]] = {
    "mean": above_mean,
    "official": official,
    "quantile": above_quantile,
    "soft": soft,
    "zscore": zscore,
}
