"""Images to corrupt, and the unrounded levels and random numbers of a corruption."""

import itertools
import math

import numpy as np
import torch
from scipy import ndimage

from pixelpart.data.corruptions import CORRUPTIONS
from pixelpart.data.corruptions.random_numbers import Draw


def photos(n, h=32, w=32):
    """Smooth noise with edges, at all levels."""
    rng = np.random.default_rng(7)
    smooth = ndimage.gaussian_filter(rng.normal(size=(n, 3, h, w)), (0, 0, 3, 3))
    steps = np.sign(ndimage.gaussian_filter(rng.normal(size=(n, 1, h, w)), (0, 0, 4, 4)))
    level = 128 + 60 * smooth / smooth.std() + 40 * steps + 5 * rng.normal(size=smooth.shape)
    return torch.from_numpy(np.clip(level, 0, 255).astype(np.uint8))


def draws_of(name, severity, n, first=0):
    """The random numbers that `corrupt` uses."""
    return Draw(0, f"corruption/{name}/{severity}", np.arange(first, first + n))


def constants(name, severity):
    return CORRUPTIONS[name].constants[severity - 1]


def levels(name, severity, x):
    """The levels of a corruption before rounding down."""
    return CORRUPTIONS[name].apply(x.numpy(), constants(name, severity), draws_of(name, severity, len(x)))


def close(found, expected, atol=1e-3):
    return np.allclose(found, expected, rtol=0, atol=atol)


def clamp_index(i, n):
    return min(max(i, 0), n - 1)


def motion_blurred(image, angle, radius, sigma):
    """Motion blur of one channel, pixel by pixel."""
    h, w = image.shape
    kernel = [math.exp(-i * i / (2 * sigma**2)) for i in range(2 * radius + 1)]
    sin, cos = math.sin(math.radians(angle)), math.cos(math.radians(angle))
    out = np.zeros((h, w))
    for row, column, (i, weight) in itertools.product(range(h), range(w), enumerate(kernel)):
        down, right = math.ceil(i * sin - 0.5), math.ceil(i * cos - 0.5)
        out[row, column] += weight / sum(kernel) * image[clamp_index(row + down, h), clamp_index(column + right, w)]
    return out
