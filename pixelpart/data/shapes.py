"""The built-in data set: ten classes of shapes and textures on cluttered 32x32 backgrounds, generated in a second.

All numbers come from the raw stream of a PCG64 and go only through additions, products, square roots and comparisons,
so the bits are the same on every machine. Seven classes are outlines in one colour; the other three are discs with a
texture in two colours. Each object has a contrast of its own; the clutter has less contrast, and is small or thin.
"""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pixelpart.data.dataset import Root
from pixelpart.errors import choose
from pixelpart.runtime.progress import Progress, silent

Floats = NDArray[np.float32]

SIZE = 32
CLASSES = (
    "disc", "ring", "crescent", "square", "triangle", "cross", "star",
    "striped disc", "checked disc", "dotted disc",
)  # fmt: skip
COUNTS = {"train": 6000, "test": 2000}
MEAN = (0.4992, 0.5001, 0.4996)
STD = (0.1478, 0.1488, 0.1488)
CONTRAST = (0.20, 0.42)  # of the object, per channel, in [0, 1] units
CLUTTER = 0.5  # the largest contrast of lines and blobs, as a share of the object's
PATCH = 0.05  # the largest contrast of the patchwork
NOISE = 0.02  # the largest change of a single pixel
PERIOD = (5.5, 8.0)  # of textures, in pixels
SEEDS = {"train": 1, "test": 2}


def _unit(u: Floats, v: Floats) -> tuple[Floats, Floats]:
    length = np.sqrt(u * u + v * v) + np.float32(1e-6)
    return u / length, v / length


class _Draw:
    """Uniform numbers from a stream that numpy guarantees not to change."""

    def __init__(self, seed: int) -> None:
        self.bits = np.random.PCG64(seed)

    def uniform(self, low: float, high: float, *shape: int) -> Floats:
        """Uniform in [low, high), on a grid of 2^16 levels."""
        n = int(np.prod(shape))
        levels = self.bits.random_raw((n + 3) // 4).astype("<u8").view("<u2")[:n].reshape(shape)
        return levels.astype(np.float32) * np.float32((high - low) / 65536) + np.float32(low)

    def direction(self, n: int) -> tuple[Floats, Floats]:
        """Random unit vectors, each coordinate (n, 1, 1)."""
        return _unit(self.uniform(-1, 1, n, 1, 1), self.uniform(-1, 1, n, 1, 1))

    def order(self, n: int) -> NDArray[np.int64]:
        return np.argsort(self.bits.random_raw(n), kind="stable")


# Outlines: signed distance (or a bound on it) of (u, v) from the edge in pixels, negative inside; r is the size.
def _disc(u: Floats, v: Floats, r: Floats) -> Floats:
    return np.sqrt(u * u + v * v) - r


def _ring(u: Floats, v: Floats, r: Floats) -> Floats:
    return np.abs(np.sqrt(u * u + v * v) - np.float32(0.74) * r) - np.float32(0.26) * r


def _crescent(u: Floats, v: Floats, r: Floats) -> Floats:
    return np.maximum(_disc(u, v, r), -_disc(u - np.float32(0.55) * r, v, np.float32(0.8) * r))


def _square(u: Floats, v: Floats, r: Floats) -> Floats:
    return np.maximum(np.abs(u), np.abs(v)) - np.float32(0.85) * r


def _half_planes(u: Floats, v: Floats, normals: tuple[tuple[float, float], ...]) -> list[Floats]:
    return [np.float32(a) * u + np.float32(b) * v for a, b in normals]


def _triangle(u: Floats, v: Floats, r: Floats) -> Floats:
    a, b, c = _half_planes(u, v, ((1.0, 0.0), (-0.5, 0.8660254), (-0.5, -0.8660254)))
    return np.maximum(np.maximum(a, b), c) - np.float32(0.62) * r


def _cross(u: Floats, v: Floats, r: Floats) -> Floats:
    u, v = np.abs(u), np.abs(v)
    return np.maximum(np.minimum(u, v) - np.float32(0.3) * r, np.maximum(u, v) - r)


def _star(u: Floats, v: Floats, r: Floats) -> Floats:
    # five half-planes bound a pentagon; in the points of the star exactly one of them is violated
    near, far = (0.309017, 0.9510565), (-0.809017, 0.5877853)
    normals = ((1.0, 0.0), near, far, (far[0], -far[1]), (near[0], -near[1]))
    largest = second = np.full_like(u, -np.inf)
    for plane in _half_planes(u, v, normals):
        second = np.maximum(second, np.minimum(largest, plane))
        largest = np.maximum(largest, plane)
    return second - np.float32(0.37) * r


def _wave(t: Floats, period: Floats) -> Floats:
    """Bands of +1 and -1 along t, half a period each, with edges a pixel wide."""
    phase = t / period
    phase = phase - np.floor(phase)
    return np.clip((np.abs(phase - np.float32(0.5)) - np.float32(0.25)) * period * np.float32(2), -1, 1)


def _plain(u: Floats, v: Floats, period: Floats) -> Floats:
    return np.ones_like(u)


def _stripes(u: Floats, v: Floats, period: Floats) -> Floats:
    return _wave(u, period)


def _checks(u: Floats, v: Floats, period: Floats) -> Floats:
    return _wave(u, period) * _wave(v, period)


def _dots(u: Floats, v: Floats, period: Floats) -> Floats:
    return np.minimum(_wave(u, period), _wave(v, period))


Outline = Callable[[Floats, Floats, Floats], Floats]
_KINDS: tuple[tuple[Outline, Outline], ...] = (
    (_disc, _plain), (_ring, _plain), (_crescent, _plain), (_square, _plain), (_triangle, _plain), (_cross, _plain),
    (_star, _plain), (_disc, _stripes), (_disc, _checks), (_disc, _dots),
)  # fmt: skip

_AXIS = np.arange(SIZE, dtype=np.float32) - np.float32((SIZE - 1) / 2)
_ROW, _COLUMN = np.meshgrid(_AXIS, _AXIS, indexing="ij")


def _paint(canvas: Floats, cover: Floats, ink: Floats) -> None:
    """Blends a colour (n, 3, 1, 1) or (n, 3, h, w) into the canvas with opacity `cover` (n, h, w)."""
    canvas += cover[:, None] * (ink - canvas)


def _background(draw: _Draw, n: int, base: Floats, contrast: Floats) -> Floats:
    """A colour gradient, coarse patches, three lines and three blobs around the base colour."""
    slope = draw.uniform(-0.006, 0.006, 2, n, 3, 1, 1)
    canvas = base + slope[0] * _ROW + slope[1] * _COLUMN
    patches = draw.uniform(-PATCH, PATCH, n, 3, 8, 8)
    canvas += patches.repeat(4, axis=2).repeat(4, axis=3)
    for kind in ("line", "blob") * 3:
        row, column = draw.uniform(-15, 15, 2, n, 1, 1)
        a, b = draw.direction(n)
        if kind == "line":
            distance = np.abs(a * (_ROW - row) + b * (_COLUMN - column)) - draw.uniform(0.3, 0.8, n, 1, 1)
        else:
            distance = np.sqrt((_ROW - row) ** 2 + (_COLUMN - column) ** 2) - draw.uniform(1.0, 2.5, n, 1, 1)
        ink = base + draw.uniform(-CLUTTER, CLUTTER, n, 3, 1, 1) * contrast
        _paint(canvas, np.clip(np.float32(0.5) - distance, 0, 1), ink)
    return canvas


def _render(draw: _Draw, n: int, label: int) -> tuple[Floats, NDArray[np.bool_]]:
    """n images of one class, and the object's mask."""
    outline, texture = _KINDS[label]
    base = draw.uniform(0.36, 0.64, n, 3, 1, 1)
    contrast = draw.uniform(*CONTRAST, n, 1, 1, 1)
    picture = _background(draw, n, base, contrast)
    row, column = draw.uniform(-4.5, 4.5, 2, n, 1, 1)
    size = draw.uniform(7.5, 11.5, n, 1, 1)
    a, b = draw.direction(n)
    y, x = _ROW - row, _COLUMN - column
    distance = outline(a * y + b * x, a * x - b * y, size)
    a, b = draw.direction(n)
    shift = draw.uniform(0, 8, 2, n, 1, 1)
    pattern = texture(a * y + b * x + shift[0], a * x - b * y + shift[1], draw.uniform(*PERIOD, n, 1, 1))
    # each channel differs from the base by at least 0.6 of the contrast, up or down
    channel = draw.uniform(-0.4, 0.4, n, 3, 1, 1)
    channel += np.where(channel < 0, np.float32(-0.6), np.float32(0.6))
    _paint(picture, np.clip(np.float32(0.5) - distance, 0, 1), base + channel * contrast * pattern[:, None])
    return picture + draw.uniform(-NOISE, NOISE, n, 3, SIZE, SIZE), distance < 0


def _scenes(split: str) -> tuple[NDArray[np.uint8], NDArray[np.bool_], NDArray[np.int64]]:
    """Images, masks and labels of a split, in its order."""
    n, classes = choose(COUNTS, split, "split"), len(CLASSES)
    draw = _Draw(SEEDS[split])
    order = draw.order(n)
    pictures = np.empty((n, 3, SIZE, SIZE), np.uint8)
    masks = np.empty((n, SIZE, SIZE), np.bool_)
    labels = np.empty(n, np.int64)
    for label in range(classes):
        for positions in np.array_split(order[label::classes], 4):  # small enough for a core's cache
            picture, masks[positions] = _render(draw, len(positions), label)
            pictures[positions] = np.rint(np.clip(picture, 0, 1) * 255)
            labels[positions] = label
    return pictures, masks, labels


def generate(split: str, root: Root = None, progress: Progress = silent) -> tuple[Tensor, Tensor]:
    """uint8 images (n, 3, 32, 32) and labels (n,) of a split, the same bits on every call; nothing is read."""
    pictures, _, labels = _scenes(split)
    return torch.from_numpy(pictures), torch.from_numpy(labels)


def object_masks(split: str, root: Root = None) -> Tensor:
    """The object masks of `generate(split)`: bool (n, 32, 32)."""
    return torch.from_numpy(_scenes(split)[1])
