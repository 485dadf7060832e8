"""Spatter of water or mud, with OpenCV's Canny edges, distance transform and histogram equalisation."""

import numpy as np
from numpy.typing import NDArray

from pixelpart.data.corruptions.filters import correlate, gaussian
from pixelpart.data.corruptions.random_numbers import Draw, Floats, Pixels

WATER, MUD = (175, 238, 238), (63, 42, 20)
RIM = np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]], np.float32)  # lit from one side
BOX = np.ones((3, 3), np.float32)
LOW, HIGH = 50, 150  # Canny's thresholds
FAR = 20.0  # pixels: larger distances are cut to this


def spatter(x: Pixels, constants: tuple[float, ...], draw: Draw) -> Floats:
    """x + strength * water, brightest at the rims of drops; or mud in place of x."""
    mean, deviation, sigma, threshold, strength, muddy = constants
    bright = x.astype(np.float32) / np.float32(255)
    liquid = gaussian(mean + deviation * draw.normal(*x.shape[2:]), sigma)
    liquid[liquid < threshold] = 0
    if muddy:
        there = gaussian((liquid > threshold).astype(np.float32), strength)
        there[there < 0.8] = 0
        return np.clip(bright * (1 - there[:, None]) + _colour(MUD) * there[:, None], 0, 1) * 255
    level = (liquid * 255).astype(np.uint8)
    drops = level * rims(level)
    most = drops.max((1, 2), keepdims=True)
    # without drops, the reference divides 0 by 0 and its image turns black; here it is unchanged
    shine = drops / np.where(most > 0, most, 1) * np.float32(strength)
    return np.clip(bright + shine[:, None] * _colour(WATER), 0, 1) * 255


def _colour(levels: tuple[int, int, int]) -> Floats:
    return (np.array(levels) / 255).astype(np.float32)[:, None, None]


def rims(level: Pixels) -> Floats:
    """(n, h, w): brightness of the drops' rims, by the distance to the edge."""
    distance = np.minimum(chamfer(canny(level)), FAR)
    soft = (correlate(distance.astype(np.float32), BOX) / 9).astype(np.uint8)
    light = np.clip(correlate(equalise(soft).astype(np.float32), RIM), 0, 255)
    return np.rint(correlate(light, BOX) / 9).astype(np.float32)


def canny(level: Pixels) -> NDArray[np.bool_]:
    """Edges (n, h, w): ridges of the gradient |gx| + |gy| above HIGH, and those above LOW that touch them (Canny 1986).

    Sobel's gradient with repeated borders; its direction rounded to four.
    """
    from scipy.ndimage import correlate1d, label

    smooth = [correlate1d(level.astype(np.int64), (1, 2, 1), axis, mode="nearest") for axis in (1, 2)]
    across, down = (correlate1d(x, (-1, 0, 1), axis, mode="nearest") for x, axis in zip(smooth, (2, 1), strict=True))
    size = abs(across) + abs(down)
    around = np.pad(size, ((0, 0), (1, 1), (1, 1)))
    h, w = size.shape[1:]

    def neighbour(i: int, j: int) -> NDArray[np.int64]:
        return around[:, 1 + i : 1 + i + h, 1 + j : 1 + j + w]

    tangent = 13573  # of 22.5 degrees, times 2 ** 15
    wide, high = abs(across), abs(down) << 15
    flat, steep = high < wide * tangent, high > wide * (tangent + (1 << 16))
    falling = (across ^ down) < 0
    ridge = np.select(
        [flat, steep, falling],
        [
            (size > neighbour(0, -1)) & (size >= neighbour(0, 1)),
            (size > neighbour(-1, 0)) & (size >= neighbour(1, 0)),
            (size > neighbour(-1, 1)) & (size > neighbour(1, -1)),
        ],
        (size > neighbour(-1, -1)) & (size > neighbour(1, 1)),
    )
    ridge &= size > LOW
    touching = np.zeros((3, 3, 3))
    touching[1] = 1  # in the same image
    pieces, count = label(ridge, touching)
    strong = np.zeros(count + 1, bool)
    strong[pieces[ridge & (size > HIGH)]] = True
    return strong[pieces] & ridge


# steps to the neighbours above, or to the left, and their lengths (Borgefors 1986)
STEPS = (
    (-2, -1, 2.1969), (-2, 1, 2.1969), (-1, -2, 2.1969), (-1, -1, 1.4), (-1, 0, 1.0), (-1, 1, 1.4), (-1, 2, 2.1969),
    (0, -1, 1.0),
)  # fmt: skip


def chamfer(edges: NDArray[np.bool_]) -> Floats:
    """The distance (n, h, w) of each pixel to the nearest edge by steps of a 5x5 mask; large without edges."""
    n, h, w = edges.shape
    away = np.full((h + 4, w + 4, n), 1e4)  # images last: one operation per pixel for all images
    away[2:-2, 2:-2] = np.where(edges, 0.0, 1e4).transpose(1, 2, 0)
    for sign in (1, -1):
        for i in range(2, h + 2)[::sign]:
            for j in range(2, w + 2)[::sign]:
                here = away[i, j]
                for down, right, length in STEPS:
                    np.minimum(here, away[i + sign * down, j + sign * right] + length, out=here)
    return away[2:-2, 2:-2].transpose(2, 0, 1)


def equalise(level: Pixels) -> Pixels:
    """Levels after histogram equalisation, the lowest at 0; an image of one level is unchanged."""
    n, pixels = len(level), level[0].size
    flat = level.reshape(n, -1).astype(np.intp)
    counts = np.bincount((flat + 256 * np.arange(n)[:, None]).ravel(), minlength=256 * n).reshape(n, 256)
    total = counts.cumsum(1)
    lowest = np.take_along_axis(counts, flat.min(1, keepdims=True), 1)
    scale = np.float32(255) / np.maximum(pixels - lowest, 1).astype(np.float32)
    table = np.clip(np.rint((total - lowest).astype(np.float32) * scale), 0, 255)
    table = np.where(lowest == pixels, np.arange(256), table)
    return np.take_along_axis(table, flat, 1).astype(np.uint8).reshape(level.shape)
