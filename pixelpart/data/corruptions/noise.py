"""Four kinds of noise."""

import numpy as np

from pixelpart.data.corruptions.random_numbers import Draw, Floats, Pixels


def gaussian_noise(x: Pixels, deviation: float, draw: Draw) -> Floats:
    """x + deviation * normal."""
    return _levels(x / 255.0 + deviation * draw.normal(*x.shape[1:]))


def shot_noise(x: Pixels, rate: float, draw: Draw) -> Floats:
    """Poisson(x * rate) / rate."""
    return _levels(draw.poisson(x, rate) / rate)


def impulse_noise(x: Pixels, share: float, draw: Draw) -> Floats:
    """A share of all values, independently in each channel, becomes 0 or 255."""
    hit, white = draw.uniform(*x.shape[1:]) <= share, draw.uniform(*x.shape[1:]) <= 0.5
    return np.where(hit, np.where(white, 255.0, 0.0), x)


def speckle_noise(x: Pixels, deviation: float, draw: Draw) -> Floats:
    """x + x * deviation * normal."""
    bright = x / 255.0
    return _levels(bright + bright * (deviation * draw.normal(*x.shape[1:])))


def _levels(x: Floats) -> Floats:
    return np.clip(x, 0, 1) * 255
