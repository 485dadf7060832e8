"""Blurs of five kinds."""

import numpy as np

from pixelpart.data.corruptions.drawing import Draw, Floats, Pixels
from pixelpart.data.corruptions.filters import correlate, disk, gaussian, motion, zoom


def gaussian_blur(x: Pixels, sigma: float, draw: Draw) -> Floats:
    return np.clip(gaussian(x / 255.0, sigma), 0, 1) * 255


def glass_blur(x: Pixels, constants: tuple[float, int], draw: Draw) -> Floats:
    """Blurred, pixels taken from their upper or left neighbours, blurred again.

    The reference means to swap two pixels, but both ends of its exchange are views of one array, so that the one pixel
    is copied over the other and none moves down or right. Its loop ends before it reads what it has written: a round
    is a plain look-up.
    """
    sigma, rounds = constants
    n, _, h, w = x.shape
    x = (gaussian(x / 255.0, sigma) * 255).astype(np.uint8)
    image, (row, column) = np.arange(n)[:, None, None], np.mgrid[:h, :w]
    inside = (row > 1) & (column > 1)
    for _ in range(rounds):
        left, up = np.moveaxis(draw.below(2, 2, h, w), 1, 0)  # by 0 or 1
        x = np.moveaxis(x[image, :, row - inside * up, column - inside * left], -1, 1)
    return np.clip(gaussian(x / 255.0, sigma), 0, 1) * 255


def defocus_blur(x: Pixels, constants: tuple[float, float], draw: Draw) -> Floats:
    """Correlated with a disk of a radius, whose edge is softened."""
    radius, blur = constants
    return np.clip(correlate(x / 255.0, disk(radius, blur)), 0, 1) * 255


def motion_blur(x: Pixels, constants: tuple[int, float], draw: Draw) -> Pixels:
    """Smeared at an angle between -45 and 45 degrees."""
    radius, sigma = constants
    return motion(x, draw.uniform(low=-45, high=45), radius=radius, sigma=sigma)


def zoom_blur(x: Pixels, end: float, draw: Draw) -> Floats:
    """The mean of x and of x enlarged by 1, 1.01, ... to end; rounding decides whether that is one of them."""
    factors = np.arange(1, end, 0.01)
    bright = (x / 255.0).astype(np.float32)
    total = sum((zoom(bright, factor) for factor in factors.tolist()), start=np.zeros_like(bright))
    return np.clip((bright + total) / (len(factors) + 1), 0, 1) * 255
