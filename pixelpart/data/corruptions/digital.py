"""Contrast, brightness, saturation, JPEG compression, pixelation and elastic transforms."""

import io
from collections.abc import Callable

import numpy as np
from PIL import Image

from pixelpart.data.corruptions.filters import gaussian
from pixelpart.data.corruptions.random_numbers import Draw, Floats, Integers, Pixels


def contrast(x: Pixels, share: float, draw: Draw) -> Floats:
    """(x - mean) * share + mean, with the mean of each channel."""
    bright = x / 255.0
    last = np.ascontiguousarray(np.moveaxis(bright, 1, -1))  # summed in the order of the reference, for equal bits
    mean = last.mean((1, 2))[:, :, None, None]
    return np.clip((bright - mean) * share + mean, 0, 1) * 255


def brightness(x: Pixels, more: float, draw: Draw) -> Floats:
    """value + more, in HSV."""
    hue, saturation, value = to_hsv(x / 255.0)
    return np.clip(to_rgb(hue, saturation, np.clip(value + more, 0, 1)), 0, 1) * 255


def saturate(x: Pixels, constants: tuple[float, float], draw: Draw) -> Floats:
    """saturation * times + more, in HSV."""
    times, more = constants
    hue, saturation, value = to_hsv(x / 255.0)
    return np.clip(to_rgb(hue, np.clip(saturation * times + more, 0, 1), value), 0, 1) * 255


def to_hsv(x: Floats) -> tuple[Floats, Floats, Floats]:
    """Hue, saturation and value in [0, 1] (Smith 1978); of equal largest channels, blue comes before green."""
    red, green, blue = np.moveaxis(x, 1, 0)
    value = x.max(1)
    spread = value - x.min(1)
    some = np.where(spread == 0, 1, spread)
    hue = np.select(
        [blue == value, green == value], [4 + (red - green) / some, 2 + (blue - red) / some], (green - blue) / some
    )
    coloured = spread > 0
    return np.where(coloured, (hue / 6) % 1, 0), np.where(coloured, spread / np.where(coloured, value, 1), 0), value


def to_rgb(hue: Floats, saturation: Floats, value: Floats) -> Floats:
    """The inverse of `to_hsv`."""
    sector = np.floor(hue * 6)
    part = hue * 6 - sector
    low = value * (1 - saturation)
    falling, rising = value * (1 - part * saturation), value * (1 - (1 - part) * saturation)
    order = np.array([[0, 3, 1], [2, 0, 1], [1, 0, 3], [1, 2, 0], [3, 1, 0], [0, 1, 2]])  # by sector
    channels = order[sector.astype(np.intp) % 6]
    return np.take_along_axis(np.stack([value, low, falling, rising], 1), np.moveaxis(channels, -1, 1), 1)


def jpeg_compression(x: Pixels, quality: int, draw: Draw) -> Pixels:
    """Saved as JPEG and read again."""

    def recompressed(image: Image.Image) -> Image.Image:
        file = io.BytesIO()
        image.save(file, "JPEG", quality=quality)
        return Image.open(file)

    return _each(x, recompressed)


def pixelate(x: Pixels, share: float, draw: Draw) -> Pixels:
    """Reduced to a share of its size by averaging, and enlarged again."""
    h, w = x.shape[2:]
    small = (int(w * share), int(h * share))
    box = Image.Resampling.BOX
    return _each(x, lambda image: image.resize(small, box).resize((w, h), box))


def _each(x: Pixels, change: Callable[[Image.Image], Image.Image]) -> Pixels:
    images = (Image.fromarray(np.ascontiguousarray(image)) for image in x.transpose(0, 2, 3, 1))
    return np.stack([np.asarray(change(image)) for image in images]).transpose(0, 3, 1, 2)


def elastic_transform(x: Pixels, constants: tuple[float, float, float], draw: Draw) -> Floats:
    """Warped by an affine map that moves three points by up to `move`, then by a smooth field of shifts."""
    amplitude, sigma, move = constants
    h, w = x.shape[2:]
    bright = x.astype(np.float32) / np.float32(255)
    middle, arm = np.array([h // 2, w // 2]), min(h, w) // 3
    corners = (middle + arm * np.array([[1, 1], [1, -1], [-1, -1]])).astype(np.float32)
    moved = corners + draw.uniform(3, 2, low=-move, high=move).astype(np.float32)
    bright = warp(bright, affine(corners, moved))
    right, down = (
        (gaussian(draw.uniform(h, w, low=-1, high=1), sigma, mode="reflect", truncate=3) * amplitude).astype(np.float32)
        for _ in range(2)
    )
    row, column = down.astype(np.float64) + np.arange(h)[:, None], right.astype(np.float64) + np.arange(w)
    return np.clip(interpolate(bright, row, column, edge_twice=True), 0, 1) * 255


def affine(source: Floats, target: Floats) -> Floats:
    """(n, 2, 3): the maps from target (n, 3, 2) to source (3, 2), points as (column, row)."""
    points = np.concatenate([target, np.ones((*target.shape[:2], 1))], 2)
    return np.linalg.solve(points.astype(np.float64), source.astype(np.float64)[None]).swapaxes(1, 2)


def warp(x: Floats, maps: Floats) -> Floats:
    """x at the positions that each image's map gives, with bilinear interpolation and mirrored borders (reflect 101).

    Positions are rounded to 1/32 of a pixel, as in OpenCV's warpAffine.
    """
    h, w = x.shape[2:]
    scaled = maps * 1024
    along = np.rint(scaled[:, :, :1] * np.arange(w)).astype(np.int64)  # (n, 2, w)
    across = np.rint(scaled[:, :, 1:2] * np.arange(h) + scaled[:, :, 2:]).astype(np.int64)  # (n, 2, h)
    steps = (across[..., None] + along[:, :, None] + 16) >> 5
    column, row = np.moveaxis(steps, 1, 0).astype(np.float32) / 32
    return interpolate(x, row, column, edge_twice=False)


def interpolate(x: Floats, row: Floats, column: Floats, *, edge_twice: bool) -> Floats:
    """x at rows and columns (n, h, w), with bilinear interpolation and mirrored borders."""
    n, _, h, w = x.shape
    last, image = np.ascontiguousarray(np.moveaxis(x, 1, -1)), np.arange(n)[:, None, None]
    top, left = np.floor(row), np.floor(column)
    down, right = (row - top)[..., None], (column - left)[..., None]
    rows = [_mirror(top.astype(np.intp) + i, h, edge_twice) for i in (0, 1)]
    columns = [_mirror(left.astype(np.intp) + i, w, edge_twice) for i in (0, 1)]
    found = last[image, rows[0], columns[0]] * ((1 - down) * (1 - right))
    found += last[image, rows[0], columns[1]] * ((1 - down) * right)
    found += last[image, rows[1], columns[0]] * (down * (1 - right))
    found += last[image, rows[1], columns[1]] * (down * right)
    return np.moveaxis(found, -1, 1).astype(x.dtype)


def _mirror(index: Integers, size: int, edge_twice: bool) -> Integers:
    """... 2 1 0 0 1 2 ... with the edge twice, else ... 2 1 0 1 2 ..."""
    period = 2 * size if edge_twice else max(2 * size - 2, 1)
    index = index % period
    return np.minimum(index, period - edge_twice - index)
