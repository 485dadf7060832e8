"""Blurs and zooms over the last two axes of a batch, used by several corruptions."""

import functools
import math

import numpy as np
from numpy.typing import NDArray

from pixelpart.data.corruptions.random_numbers import Floats, Pixels


def gaussian(x: Floats, sigma: float, *, mode: str = "nearest", truncate: float = 4.0) -> Floats:
    """x blurred by a Gaussian, as skimage.filters.gaussian does."""
    from scipy.ndimage import gaussian_filter

    return gaussian_filter(x, (0,) * (x.ndim - 2) + (sigma, sigma), mode=mode, truncate=truncate) if sigma else x


def correlate(x: Floats, kernel: Floats) -> Floats:
    """sum_ij kernel_ij x[.. + i, .. + j], the kernel centred at the pixel, borders mirrored (reflect 101)."""
    rows, columns = kernel.shape
    h, w = x.shape[-2:]
    sides = ((rows // 2,) * 2, (columns // 2,) * 2)
    padded = np.pad(x, (((0, 0),) * (x.ndim - 2)) + sides, mode="reflect")
    total = np.zeros_like(x)
    for i, j in zip(*np.nonzero(kernel), strict=True):
        total += kernel[i, j] * padded[..., i : i + h, j : j + w]
    return total


def disk(radius: float, blur: float) -> Floats:
    """A disk of at most 2 pixels, blurred by a 3x3 Gaussian, 7x7 in all; in fp32, like OpenCV's."""
    rows, columns = np.mgrid[-3:4, -3:4]
    flat = (rows**2 + columns**2 <= radius**2).astype(np.float32)
    bell = np.exp(-np.array([1, 0, 1]) / (2 * blur**2))
    bell = (bell / bell.sum()).astype(np.float32)
    return correlate(correlate(flat / flat.sum(), bell[:, None]), bell[None, :])


def motion(x: Pixels, angle: Floats, *, radius: int, sigma: float) -> Pixels:
    """x (n, ..., h, w) after ImageMagick's motion blur, with an angle in degrees for each image.

    sum_i k_i x[row + round(i sin a), column + round(i cos a)] for i = 0 .. 2 radius, k_i ~ exp(-i^2 / 2 sigma^2),
    halves rounded down, borders repeated; rounded to 16 bits, then down to 8.
    """
    n, (h, w) = len(x), x.shape[-2:]
    taps = np.arange(2 * radius + 1)
    kernel = np.exp(-(taps**2) / (2 * sigma**2))
    turn = np.deg2rad(angle)[:, None]
    down, right = (np.ceil(taps * part - 0.5).astype(np.intp) for part in (np.sin(turn), np.cos(turn)))
    reach = 2 * radius
    wide = x.astype(np.uint16) * 257  # ImageMagick's 16 bits
    padded = np.pad(wide, (((0, 0),) * (x.ndim - 2)) + ((reach, reach),) * 2, mode="edge")
    windows = np.moveaxis(np.lib.stride_tricks.sliding_window_view(padded, (h, w), axis=(-2, -1)), (-4, -3), (1, 2))
    total = np.zeros(x.shape)
    for i, share in enumerate(kernel / kernel.sum()):
        total += share * windows[np.arange(n), reach + down[:, i], reach + right[:, i]]
    return (np.floor(total + 0.5) // 257).astype(np.uint8)


def zoom(x: Floats, factor: float) -> Floats:
    """The centre of x enlarged to the size of x by scipy.ndimage.zoom of order 1."""
    h, w = x.shape[-2:]
    rows, columns = zoom_matrix(h, factor), zoom_matrix(w, factor)
    return (rows @ (x.astype(np.float64) @ columns.T)).astype(x.dtype)


@functools.cache
def zoom_matrix(size: int, factor: float) -> NDArray[np.float64]:
    """The zoom of `size` numbers as a matrix: it is linear, so scipy computes it once and not for every image."""
    from scipy.ndimage import zoom

    part = math.ceil(size / factor)
    start = (size - part) // 2
    grown = zoom(np.eye(size)[start : start + part], (factor, 1), order=1)
    trim = (len(grown) - size) // 2
    return grown[trim : trim + size]
