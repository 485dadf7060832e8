"""The first convolution, 3 channels to many, 3x3: fp32 pixels in, bf16 activations out.

cuDNN has no fast kernel for three channels. On a GPU each block of pixels is one matrix product of its 27 neighbours
with the weights, in TF32 (pixels keep 11 bits; near white a step is 1/2048). The backward pass does the same, with each
weight as the sum of two bf16 numbers, since the incoming gradient is bf16 already.
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
def stem(x: Tensor, weight: Tensor, bias: Tensor, relu: bool, ready: bool = False) -> Tensor:
    """conv(x, weight) + bias, with a ReLU if `relu`, in bf16; stride 1, padding 1.

    `ready` means that the incoming gradient already includes that of the ReLU (see `residual`).
    """
    if not _has_kernel(x, len(weight)):
        out = F.conv2d(x, weight, bias, padding=1)
        return _nhwc((out.relu() if relu else out).to(torch.bfloat16))
    x, weight = _nhwc(x), _nhwc(weight)
    n, _, h, w = x.shape
    out = _like(x, len(weight), torch.bfloat16)
    with torch.cuda.device(x.device):
        _forward[(triton.cdiv(n * h * w, BLOCK),)](
            x, weight, bias, out, n * h * w, h, w, channels=len(weight), relu=relu, block=BLOCK, num_warps=4
        )
    return out


@torch.library.custom_op("pixelpart::stem_backward", mutates_args=())
def stem_backward(grad: Tensor, weight: Tensor, output: Tensor | None) -> Tensor:
    """The gradient with respect to the pixels, in fp32; `output` is the output of the ReLU, if there is one."""
    if not _has_kernel(grad, len(weight)):
        grad = grad if output is None else torch.where(output > 0, grad, 0)
        return _nhwc(F.conv_transpose2d(grad.to(weight.dtype), weight, padding=1))
    grad, weight = _nhwc(grad), _nhwc(weight)
    n, _, h, w = grad.shape
    pixels, back = n * h * w, _like(grad, 3, torch.float32)
    parts = grad.new_empty((27, pixels), dtype=torch.float32)
    gate = grad if output is None else _nhwc(output)
    with torch.cuda.device(grad.device):
        masked = output is not None
        _parts[(triton.cdiv(pixels, BLOCK),)](
            grad, gate, weight, parts, pixels, channels=len(weight), relu=masked, block=BLOCK, num_warps=4
        )
        _gather[(triton.cdiv(pixels, 2 * BLOCK),)](parts, back, pixels, h, w, block=2 * BLOCK, num_warps=4)
    return back


@stem.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor, relu: bool, ready: bool = False) -> Tensor:
    return _like(x, len(weight), torch.bfloat16)


@stem_backward.register_fake
def _(grad: Tensor, weight: Tensor, output: Tensor | None) -> Tensor:
    return _like(grad, 3, torch.float32)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, weight, _, relu, ready = inputs
    # the output is saved only if needed: otherwise it may be changed in place
    ctx.save_for_backward(weight, *([output] if relu and not ready else []))


def _stem_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    weight, *output = ctx.saved_tensors
    return stem_backward(grad, weight, output[0] if output else None), *[None] * 4


stem.register_autograd(_stem_backward, setup_context=_save)


def supports(conv: torch.nn.Conv2d) -> bool:
    """Whether `stem` computes what this convolution does."""
    plain = conv.stride == conv.padding == conv.dilation == (1, 1) and conv.groups == 1 and conv.padding_mode == "zeros"
    shape = conv.kernel_size == (3, 3) and conv.in_channels == 3 and conv.out_channels in (16, 32, 64, 128, 256)
    return plain and shape


def _has_kernel(tensor: Tensor, channels: int) -> bool:
    """Whether the kernels below can be used: they index in 32 bits."""
    n, _, h, w = tensor.shape
    return tensor.is_cuda and triton is not None and n * h * w * max(channels, 32) < 2**31


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
    def _parts(  # type: ignore[no-untyped-def]
        grad, output, weight, parts, pixels, channels: tl.constexpr, relu: tl.constexpr, block: tl.constexpr
    ):
        """What each pixel's gradient adds to its 9 neighbours in 3 channels: one product, each number read once."""
        p = tl.program_id(0) * block + tl.arange(0, block)
        o, k = tl.arange(0, channels), tl.arange(0, 32)
        at = p[:, None] * channels + o[None, :]
        here = (p < pixels)[:, None]
        arriving = tl.load(grad + at, mask=here, other=0.0)
        if relu:
            arriving = tl.where(tl.load(output + at, mask=here, other=0.0) > 0.0, arriving, 0.0)
        taps = tl.load(weight + o[None, :] * 27 + k[:, None], mask=(k < 27)[:, None], other=0.0)
        high = taps.to(tl.bfloat16)
        total = tl.dot(high, tl.trans(arriving))  # pixels along rows, so that neighbours are stored and read together
        total = tl.dot((taps - high.to(tl.float32)).to(tl.bfloat16), tl.trans(arriving), total)
        tl.store(parts + k[:, None] * pixels + p[None, :], total, mask=(k < 27)[:, None] & (p < pixels)[None, :])

    @triton.jit
    def _gather(parts, back, pixels, h, w, block: tl.constexpr):  # type: ignore[no-untyped-def]
        """The sum of the parts that belong to a pixel."""
        p = tl.program_id(0) * block + tl.arange(0, block)
        column, row = p % w, (p // w) % h
        for c in tl.static_range(3):
            total = tl.zeros((block,), dtype=tl.float32)
            for tap in tl.static_range(9):
                down, right = tap // 3 - 1, tap % 3 - 1
                y, z = row - down, column - right
                inside = (y >= 0) & (y < h) & (z >= 0) & (z < w) & (p < pixels)
                total += tl.load(parts + (tap * 3 + c) * pixels + p - down * w - right, mask=inside, other=0.0)
            tl.store(back + p * 3 + c, total, mask=p < pixels)
