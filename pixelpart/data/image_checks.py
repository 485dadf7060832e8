"""Checks of images and labels that come from outside."""

import torch
from torch import Tensor

from pixelpart.errors import UserError
from pixelpart.types import dtype_name

INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def check_images(x: Tensor, y: Tensor, num_classes: int, *, shape: tuple[int, int, int] | None = None) -> None:
    """UserError unless x are pixels and y has one label below num_classes for each image."""
    check_pixels(x, shape=shape)
    check_labels(y, num_classes, n=len(x))


def check_pixels(x: Tensor, *, shape: tuple[int, int, int] | None = None) -> None:
    """UserError unless x is (n, channels, h, w), of `shape` if given, and uint8 or float in [0, 1]."""
    expected = "(n, 3, h, w)" if shape is None else f"(n, {', '.join(map(str, shape))})"
    given = tuple(x.shape)
    if x.ndim != 4 or (given[1] not in (1, 3) if shape is None else given[1:] != shape) or 0 in given:
        hint = "; channels come before rows" if x.ndim == 4 and given[3] in (1, 3) and given[1] not in (1, 3) else ""
        raise UserError(f"images have shape {given}, not {expected}{hint}")
    if x.dtype != torch.uint8:
        if not x.is_floating_point():
            raise UserError(f"images are {dtype_name(x)}; expected uint8, or float in [0, 1]")
        low, high = x.aminmax()
        if not bool(torch.isfinite(low) & torch.isfinite(high)):
            raise UserError("images have NaN or infinite values; expected uint8, or float in [0, 1]")
        if low < 0 or high > 1:
            raise UserError(f"images are in [{float(low):.4g}, {float(high):.4g}]; expected uint8, or float in [0, 1]")


def check_labels(y: Tensor, num_classes: int, *, n: int) -> None:
    """UserError unless y is n labels from 0 to num_classes - 1."""
    if y.dtype not in INTEGERS:
        raise UserError(f"labels are {dtype_name(y)}; expected integers from 0 to {num_classes - 1}")
    if y.ndim != 1 or len(y) != n:
        raise UserError(f"labels have shape {tuple(y.shape)}; {n} images need ({n},)")
    low, high = y.aminmax()
    if low < 0 or high >= num_classes:
        bad = int(low) if low < 0 else int(high)
        raise UserError(f"label {bad} is out of range; {num_classes} classes are numbered 0 to {num_classes - 1}")
