"""The first convolution, 3 channels to many, 3x3: fp32 pixels in, bf16 activations out.

cuDNN has no good kernel for three channels. On a GPU each block of pixels is one matrix product of its 27 neighbours
with the weights, in TF32 (pixels keep 11 bits; near white a step is 1/2048). The gradient goes back the same way, with
the weights as two bf16 numbers each, 16 bits, since it arrives in bf16 already.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # no GPU here
    triton = None

BLOCK = 128


@torch.library.custom_op("pixelpart::stem", mutates_args=())
def stem(x: Tensor, weight: Tensor, bias: Tensor, relu: bool) -> Tensor:
    """conv(x, weight) + bias, and ReLU if so asked, in bf16; stride 1, padding 1."""
    if not (x.is_cuda and triton is not None):
        out = F.conv2d(x, weight, bias, padding=1)
        return _nhwc((out.relu() if relu else out).to(torch.bfloat16))
    x, weight = _nhwc(x), _nhwc(weight)
    n, _, h, w = x.shape
    out = _like(x, len(weight), torch.bfloat16)
    _forward[(triton.cdiv(n * h * w, BLOCK),)](
        x, weight, bias, out, n * h * w, h, w, channels=len(weight), relu=relu, block=BLOCK, num_warps=4
    )
    return out


@torch.library.custom_op("pixelpart::stem_backward", mutates_args=())
def stem_backward(grad: Tensor, weight: Tensor) -> Tensor:
    """The gradient with respect to the pixels, in fp32."""
    if not (grad.is_cuda and triton is not None):
        return _nhwc(F.conv_transpose2d(grad.to(weight.dtype), weight, padding=1))
    grad, weight = _nhwc(grad), _nhwc(weight)
    n, _, h, w = grad.shape
    back = _like(grad, 3, torch.float32)
    _backward[(triton.cdiv(n * h * w, BLOCK),)](
        grad, weight, back, n * h * w, h, w, channels=len(weight), block=BLOCK, num_warps=4
    )
    return back


@stem.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor, relu: bool) -> Tensor:
    return _like(x, len(weight), torch.bfloat16)


@stem_backward.register_fake
def _(grad: Tensor, weight: Tensor) -> Tensor:
    return _like(grad, 3, torch.float32)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, weight, _, ctx.relu = inputs
    # without a ReLU the output is not needed, and may be changed in place
    ctx.save_for_backward(weight, *([output] if ctx.relu else []))


def _stem_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    weight, *output = ctx.saved_tensors
    return stem_backward(torch.where(output[0] > 0, grad, 0) if output else grad, weight), None, None, None


stem.register_autograd(_stem_backward, setup_context=_remember)


def suits(conv: torch.nn.Conv2d) -> bool:
    """Whether `stem` computes what this convolution does."""
    plain = (conv.stride, conv.padding, conv.dilation, conv.groups, conv.padding_mode) == (
        (1, 1),
        (1, 1),
        (1, 1),
        1,
        "zeros",
    )
    width = conv.out_channels
    return (
        plain
        and conv.kernel_size == (3, 3)
        and conv.in_channels == 3
        and 16 <= width <= 256
        and width & (width - 1) == 0
    )


def _nhwc(tensor: Tensor) -> Tensor:
    return tensor.contiguous(memory_format=torch.channels_last)


def _like(tensor: Tensor, channels: int, dtype: torch.dtype) -> Tensor:
    n, _, h, w = tensor.shape
    return torch.empty((n, channels, h, w), dtype=dtype, device=tensor.device, memory_format=torch.channels_last)


if triton is not None:

    @triton.jit
    def _forward(  # type: ignore[no-untyped-def]
        x, weight, bias, out, pixels, h, w, channels: tl.constexpr, relu: tl.constexpr, block: tl.constexpr
    ):
        p = tl.program_id(0) * block + tl.arange(0, block)
        column, row = p % w, (p // w) % h
        k = tl.arange(0, 32)  # neighbour and channel: weights of one output lie in this order, 27 of them
        down, right, c = k // 9 - 1, (k // 3) % 3 - 1, k % 3
        y, z = row[:, None] + down[None, :], column[:, None] + right[None, :]
        inside = (k < 27)[None, :] & (y >= 0) & (y < h) & (z >= 0) & (z < w) & (p < pixels)[:, None]
        near = tl.load(x + (p[:, None] + (down * w + right)[None, :]) * 3 + c[None, :], mask=inside, other=0.0)
        o = tl.arange(0, channels)
        taps = tl.load(weight + o[None, :] * 27 + k[:, None], mask=(k < 27)[:, None], other=0.0)
        total = tl.dot(near, taps, input_precision="tf32") + tl.load(bias + o)[None, :]
        if relu:
            total = tl.maximum(total, 0.0)
        tl.store(out + p[:, None] * channels + o[None, :], total.to(tl.bfloat16), mask=(p < pixels)[:, None])

    @triton.jit
    def _backward(  # type: ignore[no-untyped-def]
        grad, weight, back, pixels, h, w, channels: tl.constexpr, block: tl.constexpr
    ):
        p = tl.program_id(0) * block + tl.arange(0, block)
        column, row = p % w, (p // w) % h
        o, c = tl.arange(0, channels), tl.arange(0, 16)  # 3 input channels, as many as a product takes at least
        total = tl.zeros((block, 16), dtype=tl.float32)
        for tap in tl.static_range(9):
            down, right = tap // 3 - 1, tap % 3 - 1
            y, z = row - down, column - right
            inside = (y >= 0) & (y < h) & (z >= 0) & (z < w) & (p < pixels)
            q = p - down * w - right
            arriving = tl.load(grad + q[:, None] * channels + o[None, :], mask=inside[:, None], other=0.0)
            taps = tl.load(weight + o[:, None] * 27 + tap * 3 + c[None, :], mask=(c < 3)[None, :], other=0.0)
            high = taps.to(tl.bfloat16)
            total = tl.dot(arriving, high, total)
            total = tl.dot(arriving, (taps - high.to(tl.float32)).to(tl.bfloat16), total)
        tl.store(back + p[:, None] * 3 + c[None, :], total, mask=(p < pixels)[:, None] & (c < 3)[None, :])
