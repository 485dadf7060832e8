"""Random crops and flips in two halves, `draw` and `apply`: what moved an image can move its mask, pixel for pixel."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int64, Shaped
from torch import Tensor

from pixelpart.errors import choose

PAD = 4


@dataclass(frozen=True)
class Params:
    """One move per image: the crop's corner in the padded image, from 0 to 2 PAD, and whether it is then mirrored."""

    top: Int64[Tensor, " b"]
    left: Int64[Tensor, " b"]
    flip: Bool[Tensor, " b"]

    def __getitem__(self, rows: slice | Tensor) -> "Params":
        """The moves of some of the images."""
        return Params(self.top[rows], self.left[rows], self.flip[rows])


def draw_none(n: int, generator: torch.Generator) -> Params:
    """The move that leaves every image as it is; nothing is drawn."""
    corner = torch.full((n,), PAD, dtype=torch.int64, device=generator.device)
    return Params(corner, corner.clone(), torch.zeros(n, dtype=torch.bool, device=generator.device))


def draw_crop_flip(n: int, generator: torch.Generator) -> Params:
    """Corners uniform over all (2 PAD + 1)^2, mirrored half of the time."""
    top, left = torch.randint(2 * PAD + 1, (2, n), generator=generator, device=generator.device)
    return Params(top, left, torch.rand(n, generator=generator, device=generator.device) < 0.5)


AUGMENTS: dict[str, Callable[[int, torch.Generator], Params]] = {"none": draw_none, "crop-flip": draw_crop_flip}


def draw(kind: str, n: int, *, generator: torch.Generator | None = None) -> Params:
    """n moves of this kind, on the generator's device; None: a fresh generator seeded with 0."""
    return choose(AUGMENTS, kind, "augment")(n, torch.Generator().manual_seed(0) if generator is None else generator)


def apply(params: Params, tensor: Shaped[Tensor, "b c h w"], *, fill: float = 0.0) -> Shaped[Tensor, "b c h w"]:
    """Each image padded by PAD with `fill`, cropped to its size at (top, left), then mirrored where flip says so.

    out[i, :, r, s] = padded[i, :, top_i + r, left_i + s'] with s' = w - 1 - s if flip_i else s
    """
    b, c, h, w = tensor.shape
    column = torch.arange(w, device=tensor.device)
    column = torch.where(params.flip[:, None], w - 1 - column, column) + params.left[:, None] - PAD
    row = torch.arange(h, device=tensor.device) + params.top[:, None] - PAD
    outside = ((row < 0) | (row >= h))[:, :, None] | ((column < 0) | (column >= w))[:, None, :]
    source = row.clamp(0, h - 1)[:, :, None] * w + column.clamp(0, w - 1)[:, None, :]
    moved = tensor.flatten(2).gather(2, source.flatten(1)[:, None].expand(b, c, h * w)).view(b, c, h, w)
    return moved.masked_fill(outside[:, None], fill)
