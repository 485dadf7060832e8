"""What the corruptions draw: for each image from its own key, so that neither batch nor order matters."""

import numpy as np
import torch
from numpy.typing import NDArray

from pixelpart import draws

Pixels = NDArray[np.uint8]  # (n, 3, h, w)
Floats = NDArray[np.floating]
Whole = NDArray[np.intp]

HALF = 2.0**-25  # the middle of the steps in which `draws.hashed` counts


class Draw:
    """A row of numbers for each image; every call gives new ones."""

    def __init__(self, seed: int, stream: str, numbers: Whole) -> None:
        self.keys = draws.keys(seed, stream, torch.as_tensor(numbers))
        self.calls = 0

    def __len__(self) -> int:
        return len(self.keys)

    def uniform(self, *shape: int, low: float = 0.0, high: float = 1.0) -> Floats:
        """(n, *shape) numbers between low and high."""
        numbers = draws.hashed(self.keys, int(np.prod(shape)), counter=self.calls).numpy().astype(np.float64)
        self.calls += 1
        return low + (high - low) * (numbers + HALF).reshape(len(self), *shape)

    def normal(self, *shape: int) -> Floats:
        """(n, *shape) numbers of mean 0 and variance 1, by the inverse of the distribution function."""
        from scipy.special import ndtri

        return ndtri(self.uniform(*shape))

    def below(self, end: int | Whole, *shape: int) -> Whole:
        """(n, *shape) whole numbers from 0 to end - 1; `end` may be one for each image."""
        return np.floor(self.uniform(*shape) * end).astype(np.intp)

    def poisson(self, x: Pixels, rate: float) -> Floats:
        """A count for each pixel, of mean x / 255 * rate, by the inverse of the distribution function."""
        from scipy.special import pdtr

        most = int(rate + 8 * np.sqrt(rate) + 20)  # more than 1 - 2**-25 of the counts are below
        levels = np.arange(256)[:, None]
        below = np.minimum(pdtr(np.arange(most), levels / 255 * rate), 1)
        # level + P(count <= k) rises over all levels, so that one search serves them all
        found = np.searchsorted((levels + below).ravel(), x + self.uniform(*x.shape[1:]), side="right")
        return (found - x.astype(np.intp) * most).astype(np.float64)
