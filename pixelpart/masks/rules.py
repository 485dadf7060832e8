"""Rules, from heat to each pixel's share in [0,1] of the way from eps_low to eps; and controls of that share.

heat is (b, h, w) in [0,1]; mean, deviation and quantile are taken over each image, ranks over the batch.

A control changes the shares, to find out what causes a policy's effect; `noise` is normal noise on a coarse
grid. Images whose map is dead keep their share under every control (see `BudgetPolicy.control_and_scale`).
"""

import functools
import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from pixelpart.errors import UserError, choose
from pixelpart.masks.maps import upscale
from pixelpart.types import Flags, Heatmap, Share

LEAST_HEAT = 1e-3  # in `power`
LARGEST_POWER = 10  # 1e-3 to this power, either way, is within the range of fp32
BLOB_GRID = 4

CoarseNoise = Float[Tensor, "b g g"]
Blobs = Float[Tensor, "b 2 g g"]


def is_dead(heat: Heatmap) -> Flags:
    """Which images have zero heat at every pixel."""
    return (heat == 0).flatten(1).all(1)


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


def rank(heat: Heatmap) -> Share:
    """The rank of each value among all values of the batch, from 0 to 1; equal values share their mean rank."""
    values = heat.flatten()
    ordered = values.sort().values
    below, up_to = (torch.searchsorted(ordered, values, right=right) for right in (False, True))
    twice = (below + up_to - 1).to(heat.dtype)  # twice the mean rank, counted from 0
    share = twice / (2 * (len(values) - 1)) if len(values) > 1 else torch.full_like(values, 0.5)
    return share.view_as(heat)[:, None]


def power(heat: Heatmap, *, p: float, least: float) -> Share:
    """The share at which the budget is proportional to heat^p with mean eps / 2, before clipping.

    (clip(w / 2, r, 1) - r) / (1 - r) with w = heat^p / mean(heat^p) and r = eps_low / eps, here `least`. Heat below
    1e-3 counts as 1e-3.
    """
    weight = heat.clamp(min=LEAST_HEAT) ** p
    half = weight / weight.mean((1, 2), keepdim=True) / 2
    return ((half.clamp(least, 1) - least) / (1 - least)).clamp(0, 1)[:, None]  # the quotient may round past both


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


RULES: dict[str, Callable[..., Share]] = {
    "mean": above_mean,
    "official": official,
    "power": power,
    "quantile": above_quantile,
    "rank": rank,
    "soft": soft,
    "zscore": zscore,
}


def parse_rule(text: str, *, eps: float, eps_low: float) -> Callable[[Heatmap], Share]:
    """The rule of a name such as "mean", "quantile:0.7" or "power:0.5", for this eps and eps_low."""
    name, colon, value = text.partition(":")
    function = choose(RULES, name, "rule")
    if name == "quantile" and colon:
        q = _number(value)
        if not 0 <= q < 1:
            raise UserError(f"rule {text!r}: {value!r} is not a quantile; choose a number Q with 0 <= Q < 1")
        return functools.partial(function, q=q)
    if name == "power":
        p = _number(value)
        if not -LARGEST_POWER <= p <= LARGEST_POWER:
            raise UserError(f"rule {text!r} is not power:P with -{LARGEST_POWER} <= P <= {LARGEST_POWER}")
        if eps_low >= eps:
            raise UserError(f"rule {text!r} needs eps_low below eps, not {eps_low:.4g} and {eps:.4g}")
        return functools.partial(function, p=p, least=eps_low / eps)
    if colon:
        raise UserError(f"rule {name!r} takes no number, but {text!r} has one; only quantile:Q and power:P do")
    return function


def _number(text: str) -> float:
    """The text as a float; NaN if it is none."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def draw_blobs(n: int, *, generator: torch.Generator) -> Blobs:
    """N(0,1) noise of n images on a 4x4 grid: the first for the source `blobs`, the second for the control."""
    return torch.randn(n, 2, BLOB_GRID, BLOB_GRID, generator=generator, device=generator.device)


def unchanged(share: Share, dead: Flags, noise: CoarseNoise | None) -> Share:
    """The share itself."""
    return share


def inverted(share: Share, dead: Flags, noise: CoarseNoise | None) -> Share:
    """1 - share."""
    return 1 - share


def shuffled(share: Share, dead: Flags, noise: CoarseNoise | None) -> Share:
    """The share of the next image in the batch whose map is not dead, cyclically."""
    n = len(share)
    number = torch.arange(n, device=share.device)
    distance = (number[None] - number[:, None] - 1) % n
    return share[(distance + n * dead[None]).argmin(1)]


def flat(share: Share, dead: Flags, noise: CoarseNoise | None) -> Share:
    """The mean over the image at every pixel."""
    return share.mean((1, 2, 3), keepdim=True).expand_as(share)


def same_area(share: Share, dead: Flags, noise: CoarseNoise | None) -> Share:
    """The image's own shares, placed by blobs: the largest where the upscaled noise is highest, ties by index."""
    assert noise is not None
    height = upscale(noise, (share.shape[2], share.shape[3])).flatten(1)
    order = height.sort(dim=1, descending=True, stable=True).indices
    values = share.flatten(2).sort(2, descending=True).values
    return torch.empty_like(values).scatter(2, order[:, None].expand_as(values), values).view_as(share)


CONTROLS: dict[str, Callable[[Share, Flags, CoarseNoise | None], Share]] = {
    "none": unchanged,
    "inverted": inverted,
    "shuffled": shuffled,
    "flat": flat,
    "blobs": same_area,
}
