"""Which pixels matter, and how much budget each gets: model and image -> map -> heat -> budget."""

from collections.abc import Callable

from torch import Tensor

from pixelpart.masks.maps import cam, features_cam, gradcam, heatmap, layercam, pooled_cam, upscale, xgradcam
from pixelpart.masks.rules import above_mean, above_quantile, budget, dead, official, parse_rule, soft, zscore
from pixelpart.masks.store import MaskStore

__all__ = [
    "MAPS",
    "RULES",
    "MaskStore",
    "budget",
    "cam",
    "dead",
    "features_cam",
    "heatmap",
    "parse_rule",
    "pooled_cam",
    "upscale",
]

# (acts, grads) -> map
MAPS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "gradcam": gradcam,
    "layercam": layercam,
    "xgradcam": xgradcam,
}

# heat -> share of the way from eps_low to eps
RULES: dict[str, Callable[..., Tensor]] = {
    "mean": above_mean,
    "official": official,
    "quantile": above_quantile,
    "soft": soft,
    "zscore": zscore,
}
