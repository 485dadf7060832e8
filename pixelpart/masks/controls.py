"""Controls: what is done to the share of each pixel, to tell what the effect of a policy is due to.

Each is a function (share, dead, noise) -> share; `noise` are normal numbers on a coarse grid. Images whose map is dead
keep their share under every control (see `BudgetPolicy.budget`).
"""

import torch
from jaxtyping import Float
from torch import Tensor

from pixelpart.masks.maps import upscale
from pixelpart.types import Flags, Share

BLOB_GRID = 4
Noise = Float[Tensor, "b g g"]
Blobs = Float[Tensor, "b 2 g g"]


def draw_blobs(n: int, *, generator: torch.Generator, dtype: torch.dtype = torch.float32) -> Blobs:
    """N(0,1) noise of n images on a 4x4 grid: the first for the source `blobs`, the second for the control."""
    shape = (n, 2, BLOB_GRID, BLOB_GRID)
    return torch.randn(shape, generator=generator, device=generator.device, dtype=dtype)


def unchanged(share: Share, dead: Flags, noise: Noise | None) -> Share:
    """The share itself."""
    return share


def inverted(share: Share, dead: Flags, noise: Noise | None) -> Share:
    """1 - share."""
    return 1 - share


def shuffled(share: Share, dead: Flags, noise: Noise | None) -> Share:
    """The share of the next image in the batch whose map is not dead, cyclically."""
    n = len(share)
    number = torch.arange(n, device=share.device)
    distance = (number[None] - number[:, None] - 1) % n
    return share[(distance + n * dead[None]).argmin(1)]


def flat(share: Share, dead: Flags, noise: Noise | None) -> Share:
    """The mean over the image at every pixel."""
    return share.mean((1, 2, 3), keepdim=True).expand_as(share)


def same_area(share: Share, dead: Flags, noise: Noise | None) -> Share:
    """The image's own shares, placed by blobs: the largest where the upscaled noise is highest, ties by index."""
    assert noise is not None
    height = upscale(noise, (share.shape[2], share.shape[3])).flatten(1)
    order = height.sort(dim=1, descending=True, stable=True).indices
    values = share.flatten(2).sort(2, descending=True).values
    return torch.empty_like(values).scatter(2, order[:, None].expand_as(values), values).view_as(share)
