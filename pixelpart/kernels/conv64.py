"""A 3x3 convolution of 64 channels to 64 and what follows it, on a Hopper GPU; how is told in conv64.cu.

Networks for small pictures spend a third of an attack there, and cuDNN's kernels wait for memory at that width.
"""

import ctypes

import torch
from torch import Tensor

from pixelpart.kernels import cuda
from pixelpart.kernels.cuda import LINE, Map, Unsupported, image_map, weight_map

CHANNELS, GROUPS, POSITIONS, LINES = 64, 3, 136, 206  # as in conv64.cu: of a tile, without and with its border
TILE = -(-LINES * LINE // 1024) * 1024  # bytes
REST = 9 * cuda.SQUARE + 2048  # weights, barriers, and lines for what is dropped


def suits(x: Tensor, weight: Tensor) -> bool:
    """Whether the kernel is for these, and not mostly busy with what lies beside an image."""
    _, _, height, width = x.shape
    if weight.shape != (CHANNELS, CHANNELS, 3, 3) or not cuda.hopper(x.device):
        return False
    rows = rows_of(width)
    return rows > 0 and height * width >= 0.65 * POSITIONS * -(-height // rows)


def rows_of(width: int) -> int:
    """How many rows of an image of this width are a tile; 0: none fits."""
    padded = width + 2
    if POSITIONS + 2 * padded + 2 > LINES:
        return 0
    return min((POSITIONS + 2) // padded, LINES // padded - 2)


def tiles_for(boxes: int) -> int:
    """How many tiles there is room for beside so many boxes of each warpgroup."""
    return (cuda.ROOM - REST - GROUPS * boxes * cuda.BOX) // TILE


def forward(x: Tensor, weight: Tensor, bias: Tensor | None, other: Tensor | None = None) -> Tensor:
    """relu(conv(x, weight) + bias + other), padded by 1, or without a bias conv(x, weight); Unsupported if it cannot."""
    return _run(1, x, weight, bias, other, None)


def backward(grad: Tensor, weight: Tensor, rectified: Tensor | None, other: Tensor | None = None) -> Tensor:
    """where(rectified > 0, g + other, 0), or g: what a convolution padded by 1 sends back to what it has read."""
    return _run(0, grad, weight, None, other, rectified)


class Work(ctypes.Structure):
    """What the kernel is told, as in conv64.cu."""

    _fields_ = [
        *((name, Map) for name in ("source", "weights", "out", "gate", "other")),
        ("bias", ctypes.c_void_p),
        ("images", ctypes.c_int),
        ("down", ctypes.c_int),
        ("rest", ctypes.c_int * 12),  # to a whole number of 64 bytes
    ]


def _run(
    ahead: int, x: Tensor, weight: Tensor, bias: Tensor | None, other: Tensor | None, rectified: Tensor | None
) -> Tensor:
    images, _, height, width = x.shape
    rows = rows_of(width)
    for tensor in (x, weight, other, rectified):
        if tensor is not None and not cuda.fits(tensor):
            raise Unsupported("not bf16, channels last and aligned")
    if any(tensor is not None and tensor.shape != x.shape for tensor in (other, rectified)):
        raise Unsupported("not one number for every pixel and channel")
    if bias is not None and bias.dtype != torch.bfloat16:
        raise Unsupported("a bias that is not bf16")
    tiles = tiles_for(max(1, sum(tensor is not None for tensor in (other, rectified))))
    plain = int(bias is None and rectified is None)
    settings = {
        "FORWARD": ahead,
        "PLAIN": plain,
        "OTHER": int(other is not None),
        "WIDTH": width,
        "ROWS": rows,
        "TILES": tiles,
    }
    kernel = cuda.kernel("conv64", POSITIONS // 2, tuple(settings.items()), x.device)
    if kernel is None:
        raise Unsupported("not made here")
    out, box = torch.empty_like(x), (CHANNELS, width, rows, 1)
    work = Work(images=images, down=-(-height // rows), bias=None if bias is None else bias.data_ptr())
    work.source, work.weights = image_map(x, (CHANNELS, width + 2, rows + 2, 1)), weight_map(weight, CHANNELS)
    work.out = image_map(out, box)
    if other is not None:
        work.other = image_map(other, box)
    if rectified is not None:
        work.gate = image_map(rectified, box)
    kernel(min(cuda.processors(x.device), images * work.down), 128 * GROUPS + 32, work)
    return out
