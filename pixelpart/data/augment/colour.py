"""Pillow's colour operations, without its rounding to 256 levels.

Strength s: 1 returns the image, 0 removes all saturation, brightness, contrast or sharpness.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor

from pixelpart.types import Images

Strength = Float[Tensor, "b 1 1 1"]
Grey = Float[Tensor, "b 1 h w"]


@dataclass(frozen=True)
class Colour:
    """A colour operation for each image: its number in `OPERATIONS`, -1 for none, and its strength."""

    operation: Int64[Tensor, " b"]
    strength: Float[Tensor, " b"]


def grey(x: Images) -> Grey:
    """0.299 red + 0.587 green + 0.114 blue (ITU-R BT.601)."""
    red, green, blue = x.split(1, 1)
    return 0.299 * red + 0.587 * green + 0.114 * blue


def saturation(x: Images, s: Strength) -> Images:
    """s x + (1 - s) grey(x)"""
    return s * x + (1 - s) * grey(x)


def brightness(x: Images, s: Strength) -> Images:
    """s x"""
    return s * x


def contrast(x: Images, s: Strength) -> Images:
    """s x + (1 - s) mean(grey(x))"""
    return s * x + (1 - s) * grey(x).mean((2, 3), keepdim=True)


def sharpness(x: Images, s: Strength) -> Images:
    """s x + (1 - s) smooth(x), smooth(x) = (4 x + sum of the 3 by 3 pixels around it) / 13; the border is unchanged."""
    inner = x[:, :, 1:-1, 1:-1]
    smooth = (4 * inner + 9 * F.avg_pool2d(x, 3, stride=1)) / 13
    return x + (1 - s) * F.pad(smooth - inner, (1, 1, 1, 1))


def autocontrast(x: Images, s: Strength) -> Images:
    """(x - min) / (max - min) of each channel; a constant channel is unchanged."""
    low, high = x.amin((2, 3), keepdim=True), x.amax((2, 3), keepdim=True)
    return torch.where(high > low, (x - low) / (high - low), x)


def equalize(x: Images, s: Strength) -> Images:
    """#{pixels darker} / #{pixels that are not the brightest} of each channel; a constant channel is unchanged."""
    values = x.flatten(2).contiguous()
    ordered = values.sort(2).values
    darker = torch.searchsorted(ordered, values).view_as(x)
    rest = torch.searchsorted(ordered, ordered[:, :, -1:].contiguous())[..., None]
    return torch.where(rest > 0, darker / rest, x)


OPERATIONS = (saturation, brightness, contrast, sharpness, autocontrast, equalize)


def recolour(colour: Colour, x: Images) -> Images:
    """Each image after its own operation, clipped to [0,1]; all are computed for all images, to avoid a device sync."""
    strength, operation = colour.strength[:, None, None, None].to(x.dtype), colour.operation[:, None, None, None]
    out = x
    for number, function in enumerate(OPERATIONS):
        out = torch.where(operation == number, function(x, strength), out)
    return out.clamp(0, 1)
