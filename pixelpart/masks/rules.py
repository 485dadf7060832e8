"""Rules: from heat to each pixel's share in [0,1] of the way from eps_low to eps.

heat is (b, h, w) in [0,1]; mean, deviation and quantile are taken over each image.
"""

import functools
import math
from collections.abc import Callable

import torch
from torch import Tensor

from pixelpart import masks
from pixelpart.errors import UserError, choose
from pixelpart.types import Flags, Heatmap, Share


def dead(heat: Heatmap) -> Flags:
    """Which images have zero heat at every pixel."""
    return (heat == 0).flatten(1).all(1)


def parse_rule(text: str) -> Callable[[Heatmap], Share]:
    """The rule of a name such as "mean" or "quantile:0.7"."""
    name, colon, value = text.partition(":")
    function = choose(masks.RULES, name, "rule")
    if not colon:
        return function
    if name != "quantile":
        raise UserError(f"rule {name!r} takes no number, but {text!r} has one; only quantile:Q does")
    try:
        q = float(value)
    except ValueError:
        q = math.nan
    if not 0 <= q < 1:
        raise UserError(f"rule {text!r}: {value!r} is not a quantile; choose a number Q with 0 <= Q < 1")
    return functools.partial(function, q=q)


def above_mean(heat: Heatmap) -> Share:
    """1 where w = heat / mean(heat) > 1."""
    return (heat > heat.mean((1, 2), keepdim=True)).to(heat.dtype)[:, None]


def zscore(heat: Heatmap) -> Share:
    """1 where w = (heat - mean(heat)) / std(heat) > 1."""
    return (_standardised(heat) > 1).to(heat.dtype)[:, None]


def above_quantile(heat: Heatmap, *, q: float = 0.5) -> Share:
    """1 where heat is strictly above its q-quantile."""
    ordered = heat.flatten(1).sort(1).values
    # A quantile between two values separates the same pixels as the lower of the two.
    threshold = ordered[:, math.floor(q * (ordered.shape[1] - 1)), None, None]
    return (heat > threshold).to(heat.dtype)[:, None]


def soft(heat: Heatmap) -> Share:
    """w / (1 + w) with w = heat / mean(heat): continuous, 1/2 at the mean."""
    w = heat / heat.mean((1, 2), keepdim=True)
    # As 1 - 1/(1+w): each operation is monotone also after rounding.
    return (1 - 1 / (1 + w))[:, None]


def official(heat: Heatmap) -> Share:
    """1 where the jet colours of heat^2, standardised over all 3 h w of an image, are > 1, as in the authors' code.

    For reproduction only: it is not monotone in heat, and the three channels differ.
    """
    return (_standardised(jet(heat.square())) > 1).to(heat.dtype)


def jet(value: Heatmap) -> Share:
    """Matplotlib's colour map jet: red, green and blue in [0,1], rounded down to one of its 256 colours."""
    t = (value * 256).floor().clamp(0, 255) / 255
    red = torch.minimum((t - 0.35) / 0.31, 1 - 0.5 * (t - 0.89) / 0.11)
    green = torch.minimum((t - 0.125) / 0.25, (0.91 - t) / 0.27)
    blue = torch.minimum(0.5 + 0.5 * t / 0.11, (0.65 - t) / 0.31)
    return torch.stack((red, green, blue), 1).clamp(0, 1)


def _standardised(values: Tensor) -> Tensor:
    """(values - mean) / std of each image, with the population's std."""
    dims = tuple(range(1, values.ndim))
    return (values - values.mean(dims, keepdim=True)) / values.std(dims, correction=0, keepdim=True)
