"""Blurs of five kinds."""

import numpy as np

from pixelpart.data.corruptions.filters import correlate, disk, gaussian, motion, zoom
from pixelpart.data.corruptions.random_numbers import Draw, Floats, Pixels


def gaussian_blur(x: Pixels, sigma: float, draw: Draw) -> Floats:
    return np.clip(gaussian(x / 255.0, sigma), 0, 1) * 255


def glass_blur(x: Pixels, constants: tuple[float, int], draw: Draw) -> Floats:
    """Blurred, then pixels replaced by their upper or left neighbours, then blurred again.

    The reference means to swap two pixels, but swaps views of one array, so that one pixel is copied over the other.
    Its loop never reads a pixel that it has written, so a round is a lookup.
    """
    sigma, rounds = constants
    n, _, h, w = x.shape
    x = (gaussian(x / 255.0, sigma) * 255).astype(np.uint8)
    image, (row, column) = np.arange(n)[:, None, None], np.mgrid[:h, :w]
    inside = (row > 1) & (column > 1)
    for _ in range(rounds):
        left, up = np.moveaxis(draw.integers(2, 2, h, w), 1, 0)  # by 0 or 1
        x = np.moveaxis(x[image, :, row - inside * up, column - inside * left], -1, 1)
    return np.clip(gaussian(x / 255.0, sigma), 0, 1) * 255


def defocus_blur(x: Pixels, constants: tuple[float, float], draw: Draw) -> Floats:
    """Correlated with a disk with a soft edge."""
    radius, blur = constants
    return np.clip(correlate(x / 255.0, disk(radius, blur)), 0, 1) * 255


def motion_blur(x: Pixels, constants: tuple[int, float], draw: Draw) -> Pixels:
    """Motion blur at an angle between -45 and 45 degrees."""
    radius, sigma = constants
    return motion(x, draw.uniform(low=-45, high=45), radius=radius, sigma=sigma)


def zoom_blur(x: Pixels, end: float, draw: Draw) -> Floats:
    """The mean of x and of x enlarged by 1, 1.01, ... to end (whether `end` is included depends on rounding)."""
    factors = np.arange(1, end, 0.01)
    bright = (x / 255.0).astype(np.float32)
    total = sum((zoom(bright, factor) for factor in factors.tolist()), start=np.zeros_like(bright))
    return np.clip((bright + total) / (len(factors) + 1), 0, 1) * 255
