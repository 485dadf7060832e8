"""CIFAR-10-C's 19 common corruptions at 5 severities (Hendrycks and Dietterich, ICLR 2019), by scipy and pillow.

The constants are those for CIFAR-10 in the authors' `make_cifar_c.py`, for images of any size. Where it calls OpenCV,
scikit-image or ImageMagick, `filters.py` and `spatter.py` compute the same.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pixelpart.data.corruptions import blur, digital, frost, noise, spatter, weather
from pixelpart.data.corruptions.random_numbers import Draw, Floats, Pixels
from pixelpart.errors import UserError, choose
from pixelpart.types import dtype_name

SEVERITIES = (1, 2, 3, 4, 5)
CHUNK = 200  # images per task: their arrays stay in the processor's cache
THREADS = min(8, os.cpu_count() or 1)


@dataclass(frozen=True)
class Corruption:
    """`apply(x, constants, draw)` returns unrounded levels from 0 to 255; one of `constants` per severity."""

    apply: Callable[..., Floats | Pixels]
    constants: tuple[Any, ...]


CORRUPTIONS: dict[str, Corruption] = {
    "gaussian_noise": Corruption(noise.gaussian_noise, (0.04, 0.06, 0.08, 0.09, 0.10)),
    "shot_noise": Corruption(noise.shot_noise, (500, 250, 100, 75, 50)),
    "impulse_noise": Corruption(noise.impulse_noise, (0.01, 0.02, 0.03, 0.05, 0.07)),
    "speckle_noise": Corruption(noise.speckle_noise, (0.06, 0.1, 0.12, 0.16, 0.2)),
    "gaussian_blur": Corruption(blur.gaussian_blur, (0.4, 0.6, 0.7, 0.8, 1)),
    "glass_blur": Corruption(blur.glass_blur, ((0.05, 1), (0.25, 1), (0.4, 1), (0.25, 2), (0.4, 2))),
    "defocus_blur": Corruption(blur.defocus_blur, ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1))),
    "motion_blur": Corruption(blur.motion_blur, ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5))),
    "zoom_blur": Corruption(blur.zoom_blur, (1.06, 1.11, 1.16, 1.21, 1.26)),
    "fog": Corruption(weather.fog, ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75))),
    "frost": Corruption(frost.frost, ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45))),
    "snow": Corruption(
        weather.snow,
        (
            (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
            (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
            (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
            (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
            (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
        ),
    ),
    "spatter": Corruption(
        spatter.spatter,
        (
            (0.62, 0.1, 0.7, 0.7, 0.5, 0),
            (0.65, 0.1, 0.8, 0.7, 0.5, 0),
            (0.65, 0.3, 1, 0.69, 0.5, 0),
            (0.65, 0.1, 0.7, 0.69, 0.6, 1),
            (0.65, 0.1, 0.5, 0.68, 0.6, 1),
        ),
    ),
    "contrast": Corruption(digital.contrast, (0.75, 0.5, 0.4, 0.3, 0.15)),
    "brightness": Corruption(digital.brightness, (0.05, 0.1, 0.15, 0.2, 0.3)),
    "saturate": Corruption(digital.saturate, ((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2))),
    "jpeg_compression": Corruption(digital.jpeg_compression, (80, 65, 58, 50, 40)),
    "pixelate": Corruption(digital.pixelate, (0.95, 0.9, 0.85, 0.75, 0.65)),
    "elastic_transform": Corruption(
        digital.elastic_transform,
        ((0, 0, 2.56), (1.6, 6.4, 2.24), (2.56, 1.92, 1.92), (3.2, 1.28, 1.6), (3.2, 0.96, 0.96)),
    ),
}


def corrupt(
    x: Tensor,
    name: str,
    severity: int,
    *,
    seed: int = 0,
    first: int = 0,
    frost: list[Pixels] | None = None,
    on_done: Callable[[int], None] = lambda done: None,
) -> Tensor:
    """The corrupted images, uint8 (n, 3, h, w).

    The random numbers of an image follow from seed, name, severity and its number, counted from `first`. `frost` are
    photographs (h, w, 3) of frost; without them frost is generated. `on_done(n)` is called after n images.
    """
    apply = choose(CORRUPTIONS, name, "corruption").apply
    if not isinstance(severity, int) or severity not in SEVERITIES:
        raise UserError(f"unknown severity {severity!r}; choose from {', '.join(map(str, SEVERITIES))}")
    if x.dtype != torch.uint8 or x.ndim != 4 or x.shape[1] != 3 or min(x.shape[2:]) < 4:
        raise UserError(
            f"corruptions need uint8 images (n, 3, h, w) of 4x4 pixels or more, not {dtype_name(x)} {tuple(x.shape)}"
        )
    if name == "frost":
        apply = partial(apply, pictures=frost)
    constants = CORRUPTIONS[name].constants[severity - 1]
    images = x.cpu().numpy()
    out = np.empty_like(images)

    def work(start: int) -> int:
        part = images[start : start + CHUNK]
        numbers = np.arange(first + start, first + start + len(part))
        draw = Draw(seed, f"corruption/{name}/{severity}", numbers)
        out[start : start + CHUNK] = apply(part, constants, draw).astype(np.uint8)
        return len(part)

    with ThreadPoolExecutor(THREADS) as pool:
        done = 0
        for more in pool.map(work, range(0, len(images), CHUNK)):
            done += more
            on_done(done)
    return torch.from_numpy(out)
