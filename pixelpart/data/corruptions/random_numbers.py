"""Random numbers for corruptions, drawn per image, so that they do not depend on the batch or the order."""

import numpy as np
import torch
from numpy.typing import NDArray

from pixelpart import draws

Pixels = NDArray[np.uint8]  # (n, 3, h, w)
Floats = NDArray[np.floating]
Integers = NDArray[np.intp]

HALF = 2.0**-25  # half of the step between values of `draws.hashed`


class Draw:
    """Random numbers for each image; every call returns new numbers."""

    def __init__(self, seed: int, stream: str, numbers: Integers) -> None:
        self.keys = draws.keys(seed, stream, torch.as_tensor(numbers))
        self.calls = 0

    def __len__(self) -> int:
        return len(self.keys)

    def uniform(self, *shape: int, low: float = 0.0, high: float = 1.0) -> Floats:
        """(n, *shape) uniform numbers between low and high."""
        numbers = draws.hashed(self.keys, int(np.prod(shape)), counter=self.calls).numpy().astype(np.float64)
        self.calls += 1
        return low + (high - low) * (numbers + HALF).reshape(len(self), *shape)

    def normal(self, *shape: int) -> Floats:
        """(n, *shape) standard normal numbers, by the inverse of the distribution function."""
        from scipy.special import ndtri

        return ndtri(self.uniform(*shape))

    def integers(self, end: int | Integers, *shape: int) -> Integers:
        """(n, *shape) integers from 0 to end - 1; `end` may differ between images."""
        return np.floor(self.uniform(*shape) * end).astype(np.intp)

    def poisson(self, x: Pixels, rate: float) -> Floats:
        """A Poisson count of mean x / 255 * rate for each pixel, by the inverse of the distribution function."""
        from scipy.special import pdtr

        most = int(rate + 8 * np.sqrt(rate) + 20)  # P(count < most) > 1 - 2**-25
        levels = np.arange(256)[:, None]
        below = np.minimum(pdtr(np.arange(most), levels / 255 * rate), 1)
        # level + P(count <= k) rises over all levels, so that one search is enough
        found = np.searchsorted((levels + below).ravel(), x + self.uniform(*x.shape[1:]), side="right")
        return (found - x.astype(np.intp) * most).astype(np.float64)
