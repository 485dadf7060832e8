"""A 3x3 convolution of 64 channels to 64 and what follows it, on a Hopper GPU; how is told in conv64.cu.

Networks for small pictures spend a third of an attack there, and cuDNN's kernels wait for memory at that width.
"""

import torch
from torch import Tensor

from pixelpart.kernels import cuda

CHANNELS, GROUPS, POSITIONS, LINES = 64, 3, 136, 206  # as in conv64.cu: of a tile, without and with its border
SHARED = 2 * CHANNELS * (9 * CHANNELS + 2 * GROUPS * LINES)  # bytes
HEAD = cuda.accumulators(68)


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


def forward(x: Tensor, weight: Tensor, bias: Tensor, other: Tensor | None) -> Tensor:
    """relu(conv(x, weight) + bias + other), padded by 1; Refused if it cannot."""
    return _run(1, x, weight, bias, other, None)


def backward(grad: Tensor, weight: Tensor, rectified: Tensor, other: Tensor | None) -> Tensor:
    """where(rectified > 0, g + other, 0), g what a convolution padded by 1 sends back to `rectified`."""
    return _run(0, grad, weight, None, other, rectified)


def _run(
    ahead: int, x: Tensor, weight: Tensor, bias: Tensor | None, other: Tensor | None, rectified: Tensor | None
) -> Tensor:
    images, _, height, width = x.shape
    rows = rows_of(width)
    for tensor in (x, weight, other, rectified):
        if tensor is not None and not cuda.fits(tensor):
            raise cuda.Refused("not bf16, channels last and aligned")
    if any(tensor is not None and tensor.shape != x.shape for tensor in (other, rectified)):
        raise cuda.Refused("not one number for every pixel and channel")
    if bias is not None and bias.dtype != torch.bfloat16:
        raise cuda.Refused("a bias that is not bf16")
    defines = ("FORWARD", ahead), ("WIDTH", width), ("ROWS", rows)
    kernel = cuda.kernel("conv64", HEAD, defines, SHARED, x.device)
    if kernel is None:
        raise cuda.Refused("not made here")
    out = torch.empty_like(x)
    blocks = min(cuda.processors(x.device), images * -(-height // rows))
    kernel(blocks, 128 * GROUPS, x, weight, bias, other, rectified, out, images, height)
    return out
