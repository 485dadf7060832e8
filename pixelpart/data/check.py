"""What comes in from outside is looked at once, before anything is computed from it."""

import torch
from torch import Tensor

from pixelpart.errors import UserError

INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def check_images(x: Tensor, y: Tensor, num_classes: int, *, shape: tuple[int, int, int] | None = None) -> None:
    """Returns if x are pixels and y is one class number below num_classes for each image; else raises UserError."""
    check_pixels(x, shape=shape)
    check_labels(y, num_classes, n=len(x))


def check_pixels(x: Tensor, *, shape: tuple[int, int, int] | None = None) -> None:
    """Returns if x is (n, channels, h, w), of `shape` if given, and uint8 or float in [0, 1]; else raises UserError."""
    expected = "(n, 3, h, w)" if shape is None else f"(n, {', '.join(map(str, shape))})"
    found = tuple(x.shape)
    if x.ndim != 4 or (found[1] not in (1, 3) if shape is None else found[1:] != shape) or 0 in found:
        hint = "; channels come before rows" if x.ndim == 4 and found[3] in (1, 3) and found[1] not in (1, 3) else ""
        raise UserError(f"images have shape {found}, not {expected}{hint}")
    if x.dtype != torch.uint8:
        if not x.is_floating_point():
            raise UserError(f"images are {_name(x)}; give uint8, or float in [0, 1]")
        low, high = x.aminmax()
        if not bool(torch.isfinite(low) & torch.isfinite(high)):
            raise UserError("images hold NaN or infinite values; give uint8, or float in [0, 1]")
        if low < 0 or high > 1:
            raise UserError(f"images lie in [{float(low):.4g}, {float(high):.4g}]; give uint8, or float in [0, 1]")


def check_labels(y: Tensor, num_classes: int, *, n: int) -> None:
    """Returns if y is n class numbers below num_classes; else raises UserError."""
    if y.dtype not in INTEGERS:
        raise UserError(f"labels are {_name(y)}; give whole numbers from 0 to {num_classes - 1}")
    if y.ndim != 1 or len(y) != n:
        raise UserError(f"labels have shape {tuple(y.shape)}; {n} images need ({n},)")
    low, high = y.aminmax()
    if low < 0 or high >= num_classes:
        bad = int(low) if low < 0 else int(high)
        raise UserError(f"label {bad} is out of range; {num_classes} classes are numbered 0 to {num_classes - 1}")


def _name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
