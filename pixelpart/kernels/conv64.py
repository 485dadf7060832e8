"""A 3x3 convolution of 64 to 64 channels with bias, sum and ReLU, on a Hopper GPU (the kernel: conv64.cu).

Networks for small images spend a third of an attack here, and cuDNN's kernels are bound by memory at that width.
"""

import ctypes

import torch
from torch import Tensor

from pixelpart.kernels import cuda
from pixelpart.kernels.cuda import LINE, TensorMap, Unsupported, image_map, weight_map

CHANNELS, GROUPS, POSITIONS, LINES = 64, 3, 136, 206  # as in conv64.cu; pixels of a tile without and with its border
TILE = -(-LINES * LINE // 1024) * 1024  # bytes
REST = 9 * cuda.SQUARE + 2048  # bytes of weights, barriers, and lines that receive discarded results


def supports(x: Tensor, weight: Tensor) -> bool:
    """Whether the kernel can be used, and at least 65 % of what it computes lies inside the images."""
    _, _, height, width = x.shape
    if weight.shape != (CHANNELS, CHANNELS, 3, 3) or not cuda.is_hopper(x.device):
        return False
    rows = rows_of(width)
    return rows > 0 and height * width >= 0.65 * POSITIONS * -(-height // rows)


def rows_of(width: int) -> int:
    """The rows of a tile for images of this width; 0 if not even one fits."""
    padded = width + 2
    if POSITIONS + 2 * padded + 2 > LINES:
        return 0
    return min((POSITIONS + 2) // padded, LINES // padded - 2)


def tiles_for(boxes: int) -> int:
    """The number of tiles that fit into shared memory next to `boxes` boxes for each warpgroup."""
    return (cuda.ROOM - REST - GROUPS * boxes * cuda.BOX) // TILE


def forward(x: Tensor, weight: Tensor, bias: Tensor | None, other: Tensor | None = None) -> Tensor:
    """relu(conv(x, weight) + bias + other), padded by 1; conv(x, weight) if bias is None. May raise Unsupported."""
    return _run(1, x, weight, bias, other, None)


def backward(grad: Tensor, weight: Tensor, rectified: Tensor | None, other: Tensor | None = None) -> Tensor:
    """where(rectified > 0, g + other, 0) with g the input gradient of the convolution; g if rectified is None."""
    return _run(0, grad, weight, None, other, rectified)


class Work(ctypes.Structure):
    """The kernel's argument, as in conv64.cu."""

    _fields_ = [
        *((name, TensorMap) for name in ("source", "weights", "out", "gate", "other")),
        ("bias", ctypes.c_void_p),
        ("images", ctypes.c_int),
        ("down", ctypes.c_int),
        ("rest", ctypes.c_int * 12),  # padding to a multiple of 64 bytes
    ]


def _run(
    is_forward: int, x: Tensor, weight: Tensor, bias: Tensor | None, other: Tensor | None, rectified: Tensor | None
) -> Tensor:
    images, _, height, width = x.shape
    rows = rows_of(width)
    for tensor in (x, weight, other, rectified):
        if tensor is not None and not cuda.readable(tensor):
            raise Unsupported("a tensor is not bf16, channels last and aligned")
    if any(tensor is not None and tensor.shape != x.shape for tensor in (other, rectified)):
        raise Unsupported("shapes differ")
    if bias is not None and bias.dtype != torch.bfloat16:
        raise Unsupported("the bias is not bf16")
    tiles = tiles_for(max(1, sum(tensor is not None for tensor in (other, rectified))))
    plain, summed = int(bias is None and rectified is None), int(other is not None)
    settings = {"FORWARD": is_forward, "PLAIN": plain, "OTHER": summed, "WIDTH": width, "ROWS": rows, "TILES": tiles}
    kernel = cuda.load_kernel("conv64", POSITIONS // 2, tuple(settings.items()), x.device)
    if kernel is None:
        raise Unsupported("kernel unavailable")
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
