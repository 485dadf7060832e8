"""Convolution, bias, residual sum and ReLU in one pass over memory, in the forward and in the backward pass.

A Hopper GPU runs the kernels conv64 and conv3x3; other GPUs run cuDNN's fused forward pass; a CPU runs the operations
one by one.

An attack needs gradients with respect to images only, so the operations have no weight gradients. The last operation,
`conv`, is for training and has both.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pixelpart.kernels import conv3x3, conv64
from pixelpart.kernels.cuda import Unsupported


@torch.library.custom_op("pixelpart::conv_relu", mutates_args=())
def conv_relu(x: Tensor, weight: Tensor, bias: Tensor, stride: int, padding: int) -> Tensor:
    """relu(conv(x, weight) + bias)"""
    if (out := _own_kernel(x, weight, bias, None, stride, padding)) is not None:
        return out
    if x.is_cuda:
        return torch.cudnn_convolution_relu(x, weight, bias, [stride] * 2, [padding] * 2, [1, 1], 1)
    return F.conv2d(x, weight, bias, stride, padding).relu()


@torch.library.custom_op("pixelpart::conv_add_relu", mutates_args=())
def conv_add_relu(x: Tensor, weight: Tensor, bias: Tensor, other: Tensor, stride: int, padding: int) -> Tensor:
    """relu(conv(x, weight) + bias + other)"""
    if (out := _own_kernel(x, weight, bias, other, stride, padding)) is not None:
        return out
    if x.is_cuda and other.shape == _output_shape(x, weight, stride, padding):
        args = [stride] * 2, [padding] * 2, [1, 1], 1
        return torch.cudnn_convolution_add_relu(x, weight, other, 1.0, bias, *args)
    return F.conv2d(x, weight, bias, stride, padding).add(other).relu()


def _own_kernel(
    x: Tensor, weight: Tensor, bias: Tensor | None, other: Tensor | None, stride: int, padding: int
) -> Tensor | None:
    """relu(conv(x, weight) + bias + other), or conv(x, weight) if bias is None; None if no own kernel supports it."""
    try:
        if padding == 1 and stride == 1 and conv64.supports(x, weight):
            return conv64.forward(x, weight, bias, other)
        if padding == 1 and conv3x3.supports(x, weight, stride):
            return conv3x3.forward(x, weight, bias, other, stride=stride)
    except Unsupported:
        pass
    return None


@conv_relu.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor, stride: int, padding: int) -> Tensor:
    return torch.empty_like(F.conv2d(x, weight, bias, stride, padding))


@conv_add_relu.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor, other: Tensor, stride: int, padding: int) -> Tensor:
    out = F.conv2d(x, weight, bias, stride, padding)
    return torch.empty_like(out if out.shape == other.shape else out + other)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, *_, ctx.stride, ctx.padding = inputs
    ctx.save_for_backward(x, weight, output)


def _input_gradient(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients with respect to the input of the ReLU and to the input of the convolution."""
    x, weight, output = ctx.saved_tensors
    grad = torch.where(output > 0, grad, 0)
    shape = _output_shape(x, weight, ctx.stride, ctx.padding)
    conv_grad = grad.sum_to_size(shape)  # a sum, if the convolution's output was broadcast
    return grad, _conv_backward(conv_grad, x, weight, ctx.stride, ctx.padding)


def _conv_relu_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    return _input_gradient(ctx, grad)[1], None, None, None, None


def _conv_add_relu_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    sum_grad, x_grad = _input_gradient(ctx, grad)
    return x_grad, None, None, sum_grad, None, None


conv_relu.register_autograd(_conv_relu_backward, setup_context=_save)
conv_add_relu.register_autograd(_conv_add_relu_backward, setup_context=_save)


@torch.library.custom_op("pixelpart::residual", mutates_args=())
def residual(
    x: Tensor,
    first: Tensor,
    first_bias: Tensor,
    second: Tensor,
    second_bias: Tensor,
    shortcut: Tensor | None,
    shortcut_bias: Tensor | None,
    stride: int,
    rectified: bool,
    ready: bool,
) -> tuple[Tensor, Tensor]:
    """relu(conv(inner, second) + x) and inner = relu(conv(x, first)), both padded by 1.

    `stride` is that of `first` and of the 1x1 convolution `shortcut` of x, if there is one. `rectified` means that x is
    the output of a ReLU: the gradient with respect to x then includes the gradient of that ReLU. `ready` means that all
    readers of the output are such blocks, so the incoming gradient already includes that of the last ReLU here.
    """
    inner = conv_relu(x, first, first_bias, stride, 1)
    if shortcut is None:
        return conv_add_relu(inner, second, second_bias, x, 1, 1), inner
    assert shortcut_bias is not None
    if stride <= 2 and conv3x3.supports(inner, second, 1):
        try:
            return conv3x3.forward(inner, second, second_bias, extra=conv3x3.Extra(x, shortcut, shortcut_bias)), inner
        except Unsupported:
            pass
    other = F.conv2d(x, shortcut, None, stride)
    return conv_add_relu(inner, second, second_bias + shortcut_bias, other, 1, 1), inner


@residual.register_fake
def _(x: Tensor, first: Tensor, bias: Tensor, second: Tensor, second_bias: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    _, _, stride, *_ = rest
    inner = torch.empty_like(F.conv2d(x, first, bias, stride, 1))
    return torch.empty_like(F.conv2d(inner, second, second_bias, 1, 1)), inner


@torch.library.custom_op("pixelpart::rectified_gradient", mutates_args=())
def rectified_gradient(grad: Tensor, weight: Tensor, rectified: Tensor, other: Tensor | None) -> Tensor:
    """where(rectified > 0, g + other, 0), where g is the input gradient of a convolution of stride 1 and padding 1."""
    try:
        if conv64.supports(grad, weight):
            return conv64.backward(grad, weight, rectified, other)
        if conv3x3.supports(rectified, weight, 1):
            return conv3x3.backward(grad, weight, rectified, other)
    except Unsupported:
        pass
    return _plain_rectified_gradient(grad, weight, rectified, other)


@rectified_gradient.register_fake
def _(grad: Tensor, weight: Tensor, rectified: Tensor, other: Tensor | None) -> Tensor:
    return torch.empty_like(rectified)


@torch.library.custom_op("pixelpart::strided_gradient", mutates_args=())
def strided_gradient(
    grad: Tensor, weight: Tensor, shortcut_grad: Tensor, shortcut: Tensor, rectified: Tensor, stride: int
) -> Tensor:
    """where(rectified > 0, g + s, 0), where g and s are the input gradients of a 3x3 and a 1x1 convolution."""
    try:
        extra = conv3x3.Extra(shortcut_grad, shortcut, None)
        return conv3x3.backward(grad, weight, rectified, stride=stride, extra=extra)
    except Unsupported:
        x_grad = _plain_strided_gradient(grad, weight, shortcut_grad, shortcut, rectified, stride)
        return torch.where(rectified > 0, x_grad, 0)


@strided_gradient.register_fake
def _(grad: Tensor, weight: Tensor, shortcut_grad: Tensor, shortcut: Tensor, rectified: Tensor, stride: int) -> Tensor:
    return torch.empty_like(rectified)


def _plain_strided_gradient(
    grad: Tensor, weight: Tensor, shortcut_grad: Tensor, shortcut: Tensor | None, x: Tensor, stride: int
) -> Tensor:
    """A block's gradient with respect to x, in plain operations that a compiler can fuse."""
    other = shortcut_grad
    if shortcut is not None:
        other = _scattered(F.conv2d(shortcut_grad, shortcut.transpose(0, 1)), x, stride)
    return _conv_backward(grad, x, weight, stride, 1) + other


def _plain_rectified_gradient(grad: Tensor, weight: Tensor, rectified: Tensor, other: Tensor | None) -> Tensor:
    """`rectified_gradient` in plain operations that a compiler can fuse."""
    x_grad = _conv_backward(grad, rectified, weight, 1, 1)
    return torch.where(rectified > 0, x_grad if other is None else x_grad + other, 0)


def _save_residual(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, first, _, second, _, shortcut, _, ctx.stride, ctx.rectified, ctx.ready = inputs
    ctx.save_for_backward(x, first, second, shortcut, *output)
    ctx.mark_non_differentiable(output[1])


def _residual_backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    x, first, second, shortcut, output, inner = ctx.saved_tensors
    grad = grad if ctx.ready else torch.where(output > 0, grad, 0)
    has_kernel = conv64.supports(inner, second) or conv3x3.supports(inner, second, 1)
    masked_gradient = rectified_gradient if has_kernel else _plain_rectified_gradient
    inner_grad = masked_gradient(grad, second, inner, None)
    if ctx.rectified and shortcut is None and ctx.stride == 1:
        x_grad = masked_gradient(inner_grad, first, x, grad)
    elif ctx.rectified and shortcut is not None and conv3x3.supports(x, first, ctx.stride):
        x_grad = strided_gradient(inner_grad, first, grad, shortcut, x, ctx.stride)
    else:
        x_grad = _plain_strided_gradient(inner_grad, first, grad, shortcut, x, ctx.stride)
        x_grad = torch.where(x > 0, x_grad, 0) if ctx.rectified else x_grad
    return x_grad, *[None] * 9


residual.register_autograd(_residual_backward, setup_context=_save_residual)


def _scattered(values: Tensor, like: Tensor, stride: int) -> Tensor:
    """The values at every `stride`-th pixel of an image of this shape, zeros elsewhere: the input gradient of a strided
    1x1 convolution. Written so that a compiler can fuse it into the sum that follows.
    """
    if stride == 1:
        return values
    n, c, h, w = values.shape
    gaps = F.pad(values[:, :, :, None, :, None], (0, stride - 1, 0, 0, 0, stride - 1))
    return gaps.reshape(n, c, h * stride, w * stride)[:, :, : like.shape[2], : like.shape[3]]


def _output_shape(x: Tensor, weight: Tensor, stride: int, padding: int) -> tuple[int, ...]:
    """The shape of a convolution's output."""
    (n, _, *sizes), (channels, _, *kernel) = x.shape, weight.shape
    return n, channels, *((size + 2 * padding - k) // stride + 1 for size, k in zip(sizes, kernel, strict=True))


def _conv_backward(grad: Tensor, x: Tensor, weight: Tensor, stride: int, padding: int, *, to: int = 0) -> Tensor:
    """The gradient of a convolution with respect to x (to=0) or to its weight (to=1)."""
    args = None, [stride] * 2, [padding] * 2, [1, 1], False, [0, 0], 1, [to == 0, to == 1, False]
    return torch.ops.aten.convolution_backward(grad, x, weight, *args)[to]


# -- for training: the convolution only, with input and weight gradients


@torch.library.custom_op("pixelpart::conv", mutates_args=())
def conv(x: Tensor, weight: Tensor, stride: int) -> Tensor:
    """The 3x3 convolution of x, padded by 1."""
    out = _own_kernel(x, weight, None, None, stride, 1)
    return F.conv2d(x, weight, None, stride, 1) if out is None else out


@conv.register_fake
def _(x: Tensor, weight: Tensor, stride: int) -> Tensor:
    return torch.empty_like(F.conv2d(x, weight, None, stride, 1))


@torch.library.custom_op("pixelpart::conv_back", mutates_args=())
def conv_back(grad: Tensor, weight: Tensor, x: Tensor, stride: int) -> Tensor:
    """The gradient of `conv` with respect to x."""
    try:
        if stride == 1 and conv64.supports(x, weight):
            return conv64.backward(grad, weight, None)
        if conv3x3.supports(x, weight, stride):
            return conv3x3.backward(grad, weight, None, stride=stride)
    except Unsupported:
        pass
    return _conv_backward(grad, x, weight, stride, 1)


@conv_back.register_fake
def _(grad: Tensor, weight: Tensor, x: Tensor, stride: int) -> Tensor:
    return torch.empty_like(_conv_backward(grad, x, weight, stride, 1))  # channels last if the weight is


def _save_conv(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, ctx.stride = inputs
    ctx.save_for_backward(x, weight)


def _conv_gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, weight = ctx.saved_tensors
    return conv_back(grad, weight, x, ctx.stride), _conv_backward(grad, x, weight, ctx.stride, 1, to=1), None


conv.register_autograd(_conv_gradients, setup_context=_save_conv)
