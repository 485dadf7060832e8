"""Checks of what sources, rules and controls return. They wait for the device, so a training step makes none."""

from collections.abc import Sequence

import torch
from torch import Tensor

from pixelpart.errors import UserError
from pixelpart.masks.rules import is_dead
from pixelpart.types import Heatmap

ROUNDING = 1e-6  # how far outside [0, 1] a value may be


def check_maps(maps: Tensor, n: int, what: str) -> None:
    """A UserError unless there is a finite map for each of n images."""
    if maps.ndim != 3 or len(maps) != n:
        raise UserError(f"{what} returned shape {tuple(maps.shape)} for {n} images; it must be ({n}, h, w)")
    if not maps.isfinite().all():
        raise UserError(f"{what} returned NaN or infinite values")


def check_size(maps: Tensor, size: Sequence[int], what: str) -> None:
    """A UserError unless the maps have this height and width."""
    if maps.shape[1:] != tuple(size):
        raise UserError(f"{what} returned maps of size {tuple(maps.shape[1:])}; it must be {tuple(size)}")


def check_range(values: Tensor, what: str) -> None:
    """A UserError unless all values are in [0, 1], up to rounding; not checked in code that is being compiled."""
    if type(values) is not Tensor or torch.compiler.is_compiling():
        return
    if not bool(((values >= -ROUNDING) & (values <= 1 + ROUNDING)).all()):
        raise UserError(f"{what} from {float(values.min()):g} to {float(values.max()):g}; they must be in [0, 1]")


def check_share(share: Tensor, heat: Heatmap, what: str) -> None:
    """A UserError unless share is (b, 1 or 3, h, w), in [0, 1]; shares of images whose map is dead are not checked."""
    n, *size = heat.shape
    if share.shape not in ((n, 1, *size), (n, 3, *size)):
        raise UserError(f"{what} returned shape {tuple(share.shape)}; it must be ({n}, 1 or 3, {size[0]}, {size[1]})")
    check_range(torch.where(is_dead(heat)[:, None, None, None], 0, share), f"{what} returned shares")
