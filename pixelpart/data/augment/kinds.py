"""Draws the parameters of each kind of augmentation, for a batch at once."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from pixelpart.data.augment.colour import OPERATIONS, Colour
from pixelpart.data.augment.moving import PAD, Box, Mix, Params, Warp
from pixelpart.errors import choose

CUT_LINES = 11 / 32  # CropShift cuts fewer lines than this, rows and columns together
STRENGTHS = ((0.1, 1.9), (0.5, 1.9), (0.5, 1.9), (0.1, 1.9), (1.0, 1.0), (1.0, 1.0))  # of colour.OPERATIONS
SHEAR, TURN = (0.05, 0.15), (math.radians(1), math.radians(10))  # smallest and largest, in both directions
ERASED, RATIO = (0.02, 0.33), (0.3, 3.3)  # share of the image, and height by width


def draw_none(n: int, generator: torch.Generator) -> Params:
    """Parameters that leave every image unchanged; nothing is drawn."""
    corner = torch.full((n,), PAD, dtype=torch.int64, device=generator.device)
    return Params(corner, corner.clone(), torch.zeros(n, dtype=torch.bool, device=generator.device))


def draw_crop_flip(n: int, generator: torch.Generator) -> Params:
    """Corners uniform over all (2 PAD + 1)^2, flipped with probability 1/2."""
    top, left = torch.randint(2 * PAD + 1, (2, n), generator=generator, device=generator.device)
    return Params(top, left, torch.rand(n, generator=generator, device=generator.device) < 0.5)


def draw_cutout(n: int, generator: torch.Generator) -> Params:
    """Crop and flip, then a square of a quarter to half the image's side erased, its centre anywhere.

    DeVries and Taylor 2017, who take 16 of 32 pixels for CIFAR-10 and 8 for CIFAR-100.
    """
    moves = draw_crop_flip(n, generator)
    y, x, side = _uniform(3, n, generator=generator)
    side = 0.25 + 0.25 * side
    return Params(moves.top, moves.left, moves.flip, erase=Box(y, x, side, side))


def draw_cutmix(n: int, generator: torch.Generator) -> Params:
    """Crop and flip, then a box of the neighbour in the batch, its centre anywhere, its share of the image uniform.

    CutMix (Yun et al. 2019), whose Beta(1, 1) is uniform. Images 0 and 1, 2 and 3, ... are partners.
    """
    moves = draw_crop_flip(n, generator)
    y, x, share = _uniform(3, n, generator=generator)
    side = share.sqrt()
    step = 1 - 2 * (torch.arange(n, device=generator.device) % 2)
    return Params(moves.top, moves.left, moves.flip, mix=Mix(Box(y, x, side, side), step))


def draw_idbh(n: int, generator: torch.Generator) -> Params:
    """Flip, CropShift, one of eight operations on colour or shape, and for half of the images a random erasing.

    The ranges are those of Li and Spratling 2023, "Data augmentation alone can improve adversarial training", for
    CIFAR-10 and a small network. Colours are changed before pixels are moved, so that padding does not matter.
    """
    flip, cut_top, cut_left, pad_top, pad_left = _uniform(5, n, generator=generator)
    strength, side, axis = _uniform(3, n, generator=generator)
    operation = torch.randint(len(OPERATIONS) + 2, (n,), generator=generator, device=generator.device)
    rows, columns = _cut(n, generator)
    still = draw_none(n, generator)
    shear, turn = operation == len(OPERATIONS), operation == len(OPERATIONS) + 1
    warp = Warp(
        torch.stack((rows, columns), 1),
        torch.stack((cut_top, cut_left), 1),
        torch.stack((pad_top, pad_left), 1),
        _matrix(shear, turn, strength, torch.where(side < 0.5, -1, 1), axis < 0.5),
    )
    colour = torch.where(shear | turn, -1, operation)
    return Params(still.top, still.left, flip < 0.5, warp, _erasing(n, generator), colour=_colour(colour, strength))


AUGMENTS: dict[str, Callable[[int, torch.Generator], Params]] = {
    "none": draw_none,
    "crop-flip": draw_crop_flip,
    "crop-flip-cutout": draw_cutout,
    "crop-flip-cutmix": draw_cutmix,
    "idbh": draw_idbh,
}


def draw(kind: str, n: int, *, generator: torch.Generator | None = None) -> Params:
    """Parameters for n images, on the generator's device; None: a fresh generator seeded with 0."""
    return choose(AUGMENTS, kind, "augment")(n, torch.Generator().manual_seed(0) if generator is None else generator)


def _cut(n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """The shares of rows and of columns that CropShift cuts: 0 to 10 of 32 lines in total, divided at random."""
    total, part = _uniform(2, n, generator=generator)
    total = (total * 32 * CUT_LINES).floor()
    rows = (part * (total + 1)).floor()
    return rows / 32, (total - rows) / 32


def _matrix(shear: Tensor, turn: Tensor, strength: Tensor, side: Tensor, upright: Tensor) -> Tensor:
    """A shear along one axis, a rotation, or neither."""
    slope = torch.where(shear, side * _between(*SHEAR, strength), 0.0)
    angle = torch.where(turn, side * _between(*TURN, strength), 0.0)
    across, down = torch.where(upright, 0.0, slope), torch.where(upright, slope, 0.0)
    first = torch.stack((angle.cos(), across - angle.sin()), 1)
    return torch.stack((first, torch.stack((down + angle.sin(), angle.cos()), 1)), 1)


def _colour(operation: Tensor, strength: Tensor) -> Colour:
    scaled = torch.ones_like(strength)
    for number, (low, high) in enumerate(STRENGTHS):
        scaled = torch.where(operation == number, _between(low, high, strength), scaled)
    return Colour(operation, scaled)


def _erasing(n: int, generator: torch.Generator) -> Box:
    """Random erasing (Zhong et al. 2020) for half of the images; the box is inside the image."""
    erased, area, ratio, y, x = _uniform(5, n, generator=generator)
    area = torch.where(erased < 0.5, _between(*ERASED, area), 0.0)
    ratio = _between(math.log(RATIO[0]), math.log(RATIO[1]), ratio).exp()
    height, width = (area * ratio).sqrt().clamp(max=1), (area / ratio).sqrt().clamp(max=1)
    return Box(height / 2 + (1 - height) * y, width / 2 + (1 - width) * x, height, width)


def _between(low: float, high: float, share: Tensor) -> Tensor:
    return low + (high - low) * share


def _uniform(*shape: int, generator: torch.Generator) -> Tensor:
    return torch.rand(shape, generator=generator, device=generator.device)
