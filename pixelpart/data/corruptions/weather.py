"""Fog and snow."""

import numpy as np

from pixelpart.data.corruptions.filters import motion, zoom
from pixelpart.data.corruptions.random_numbers import Draw, Floats, Pixels


def fog(x: Pixels, constants: tuple[float, float], draw: Draw) -> Floats:
    """(x + thickness * cloud) * m / (m + thickness), m the image's largest value, cloud a plasma fractal in [0, 1]."""
    thickness, decay = constants
    bright = x / 255.0
    top = bright.max((1, 2, 3), keepdims=True)
    h, w = x.shape[2:]
    cloud = plasma(1 << (max(h, w, 2) - 1).bit_length(), decay, draw)[:, None, :h, :w]
    return np.clip((bright + thickness * cloud) * top / (top + thickness), 0, 1) * 255


def plasma(size: int, decay: float, draw: Draw) -> Floats:
    """(n, size, size) clouds in [0, 1] by the diamond-square algorithm, periodic; size is a power of 2.

    From steps of `size` down to 2, the middle of each square of points, then of each diamond, becomes their mean plus
    r^2 * uniform(-1, 1), where r is 100 at first and is divided by `decay` at each step.
    """
    cloud = np.zeros((len(draw), size, size))
    step, rough = size, 100.0

    def near(mean: Floats) -> Floats:
        return mean / 4 + rough * draw.uniform(*mean.shape[1:], low=-rough, high=rough)

    while step >= 2:
        half = step // 2
        corner = cloud[:, ::step, ::step]
        pair = corner + np.roll(corner, -1, 1)
        cloud[:, half::step, half::step] = near(pair + np.roll(pair, -1, 2))
        middle = cloud[:, half::step, half::step]
        across = (middle + np.roll(middle, 1, 1)) + (corner + np.roll(corner, -1, 2))
        cloud[:, ::step, half::step] = near(across)
        along = (middle + np.roll(middle, 1, 2)) + (corner + np.roll(corner, -1, 1))
        cloud[:, half::step, ::step] = near(along)
        step, rough = half, rough / decay
    cloud -= cloud.min((1, 2), keepdims=True)
    return cloud / cloud.max((1, 2), keepdims=True)


def snow(x: Pixels, constants: tuple[float, ...], draw: Draw) -> Floats:
    """Motion-blurred flakes over a paler image; the same flakes, rotated by 180 degrees, are a second layer."""
    mean, deviation, grown, threshold, radius, sigma, kept = constants
    flakes = zoom(mean + deviation * draw.normal(*x.shape[2:]), grown)
    flakes[flakes < threshold] = 0
    level = (np.clip(flakes, 0, 1) * 255).astype(np.uint8)
    level = motion(level, draw.uniform(low=-135, high=-45), radius=int(radius), sigma=sigma)
    layer = (level / 255.0)[:, None]
    bright = x.astype(np.float32) / np.float32(255)
    pale = np.maximum(bright, grey(bright) * np.float32(1.5) + np.float32(0.5))
    mixed = np.float32(kept) * bright + np.float32(1 - kept) * pale
    return np.clip(mixed + layer + layer[..., ::-1, ::-1], 0, 1) * 255


def grey(x: Floats) -> Floats:
    """0.299 R + 0.587 G + 0.114 B."""
    red, green, blue = np.split(x, 3, axis=1)
    return np.float32(0.299) * red + np.float32(0.587) * green + np.float32(0.114) * blue
