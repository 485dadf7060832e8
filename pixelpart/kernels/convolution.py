"""Convolution, bias, residual and ReLU in one pass over memory, forward and back, which autograd by itself does not do.

On a Hopper GPU by kernels of our own, conv64 and conv3x3, elsewhere by cuDNN's fused forward pass or one by one.

Only the gradients that an attack needs are there: with respect to the images, not the weights. The last operation,
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
    if (out := _by_hand(x, weight, bias, None, stride, padding)) is not None:
        return out
    if x.is_cuda:
        return torch.cudnn_convolution_relu(x, weight, bias, [stride] * 2, [padding] * 2, [1, 1], 1)
    return F.conv2d(x, weight, bias, stride, padding).relu()


@torch.library.custom_op("pixelpart::conv_add_relu", mutates_args=())
def conv_add_relu(x: Tensor, weight: Tensor, bias: Tensor, other: Tensor, stride: int, padding: int) -> Tensor:
    """relu(conv(x, weight) + bias + other)"""
    if (out := _by_hand(x, weight, bias, other, stride, padding)) is not None:
        return out
    if x.is_cuda and other.shape == _size(x, weight, stride, padding):
        args = [stride] * 2, [padding] * 2, [1, 1], 1
        return torch.cudnn_convolution_add_relu(x, weight, other, 1.0, bias, *args)
    return F.conv2d(x, weight, bias, stride, padding).add(other).relu()


def _by_hand(
    x: Tensor, weight: Tensor, bias: Tensor | None, other: Tensor | None, stride: int, padding: int
) -> Tensor | None:
    """relu(conv(x, weight) + bias + other), or conv(x, weight), by a kernel of our own; None where there is none."""
    try:
        if padding == 1 and stride == 1 and conv64.suits(x, weight):
            return conv64.forward(x, weight, bias, other)
        if padding == 1 and conv3x3.suits(x, weight, stride):
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


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, *_, ctx.stride, ctx.padding = inputs
    ctx.save_for_backward(x, weight, output)


def _input_gradient(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient behind the ReLU, and what the convolution sends back of it."""
    x, weight, output = ctx.saved_tensors
    grad = torch.where(output > 0, grad, 0)
    arriving = grad.sum_to_size(_size(x, weight, ctx.stride, ctx.padding))  # smaller where it was added to many pixels
    return grad, _conv_backward(arriving, x, weight, ctx.stride, ctx.padding)


def _conv_relu_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    return _input_gradient(ctx, grad)[1], None, None, None, None


def _conv_add_relu_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    behind, back = _input_gradient(ctx, grad)
    return back, None, None, behind, None, None


conv_relu.register_autograd(_conv_relu_backward, setup_context=_remember)
conv_add_relu.register_autograd(_conv_add_relu_backward, setup_context=_remember)


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
    """relu(conv(inner, second) + x), with inner = relu(conv(x, first)), both padded by 1; and inner.

    `first` moves by `stride`, and so does the 1x1 convolution `shortcut` of x, where there is one. Where x comes out of
    a ReLU it is `rectified`, and its gradient leaves here with that ReLU's own already applied; `ready` says that the
    gradient which arrives has been treated so by all who read the output.
    """
    inner = conv_relu(x, first, first_bias, stride, 1)
    if shortcut is None:
        return conv_add_relu(inner, second, second_bias, x, 1, 1), inner
    assert shortcut_bias is not None
    if stride <= 2 and conv3x3.suits(inner, second, 1):
        try:
            return conv3x3.forward(inner, second, second_bias, extra=conv3x3.Extra(x, shortcut, shortcut_bias)), inner
        except Unsupported:
            pass
    other = F.conv2d(x, shortcut, None, stride)
    return conv_add_relu(inner, second, second_bias + shortcut_bias, other, 1, 1), inner


@residual.register_fake
def _(
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
    inner = torch.empty_like(F.conv2d(x, first, first_bias, stride, 1))
    return torch.empty_like(F.conv2d(inner, second, second_bias, 1, 1)), inner


@torch.library.custom_op("pixelpart::rectified_gradient", mutates_args=())
def rectified_gradient(grad: Tensor, weight: Tensor, rectified: Tensor, other: Tensor | None) -> Tensor:
    """where(rectified > 0, g + other, 0), g what a convolution of stride 1 and padding 1 sends back to `rectified`."""
    try:
        if conv64.suits(grad, weight):
            return conv64.backward(grad, weight, rectified, other)
        if conv3x3.suits(rectified, weight, 1):
            return conv3x3.backward(grad, weight, rectified, other)
    except Unsupported:
        pass
    return _rectified_back(grad, weight, rectified, other)


@rectified_gradient.register_fake
def _(grad: Tensor, weight: Tensor, rectified: Tensor, other: Tensor | None) -> Tensor:
    return torch.empty_like(rectified)


@torch.library.custom_op("pixelpart::strided_gradient", mutates_args=())
def strided_gradient(
    grad: Tensor, weight: Tensor, beside: Tensor, shortcut: Tensor, rectified: Tensor, stride: int
) -> Tensor:
    """where(rectified > 0, g + s, 0), g and s what two convolutions of this stride, of 3x3 and 1x1, send back to it."""
    try:
        return conv3x3.backward(grad, weight, rectified, stride=stride, extra=conv3x3.Extra(beside, shortcut, None))
    except Unsupported:
        return torch.where(rectified > 0, _strided_back(grad, weight, beside, shortcut, rectified, stride), 0)


@strided_gradient.register_fake
def _(grad: Tensor, weight: Tensor, beside: Tensor, shortcut: Tensor, rectified: Tensor, stride: int) -> Tensor:
    return torch.empty_like(rectified)


def _strided_back(
    grad: Tensor, weight: Tensor, beside: Tensor, shortcut: Tensor | None, x: Tensor, stride: int
) -> Tensor:
    """What a block sends back to x, for a compiler to fuse with what follows."""
    other = beside if shortcut is None else _scattered(F.conv2d(beside, shortcut.transpose(0, 1)), x, stride)
    return _conv_backward(grad, x, weight, stride, 1) + other


def _rectified_back(grad: Tensor, weight: Tensor, rectified: Tensor, other: Tensor | None) -> Tensor:
    """The same as `rectified_gradient`, one by one, for a compiler to fuse."""
    back = _conv_backward(grad, rectified, weight, 1, 1)
    return torch.where(rectified > 0, back if other is None else back + other, 0)


def _remember_residual(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, first, _, second, _, shortcut, _, ctx.stride, ctx.rectified, ctx.ready = inputs
    ctx.save_for_backward(x, first, second, shortcut, *output)
    ctx.mark_non_differentiable(output[1])


def _residual_backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    x, first, second, shortcut, output, inner = ctx.saved_tensors
    grad = grad if ctx.ready else torch.where(output > 0, grad, 0)
    by_kernel = conv64.suits(inner, second) or conv3x3.suits(inner, second, 1)
    send_back = rectified_gradient if by_kernel else _rectified_back
    behind = send_back(grad, second, inner, None)
    if ctx.rectified and shortcut is None and ctx.stride == 1:
        back = send_back(behind, first, x, grad)
    elif ctx.rectified and shortcut is not None and conv3x3.suits(x, first, ctx.stride):
        back = strided_gradient(behind, first, grad, shortcut, x, ctx.stride)
    else:
        back = _strided_back(behind, first, grad, shortcut, x, ctx.stride)
        back = torch.where(x > 0, back, 0) if ctx.rectified else back
    return back, *[None] * 9


residual.register_autograd(_residual_backward, setup_context=_remember_residual)


def _scattered(values: Tensor, like: Tensor, stride: int) -> Tensor:
    """The values at every `stride`-th pixel of an image of this shape, zeros between them.

    What a strided 1x1 convolution sends back. Written so that a compiler reads the values alone where it is added.
    """
    if stride == 1:
        return values
    n, c, h, w = values.shape
    gaps = F.pad(values[:, :, :, None, :, None], (0, stride - 1, 0, 0, 0, stride - 1))
    return gaps.reshape(n, c, h * stride, w * stride)[:, :, : like.shape[2], : like.shape[3]]


def _size(x: Tensor, weight: Tensor, stride: int, padding: int) -> tuple[int, ...]:
    """The shape of what a convolution gives."""
    (n, _, *sizes), (channels, _, *kernel) = x.shape, weight.shape
    return n, channels, *((size + 2 * padding - k) // stride + 1 for size, k in zip(sizes, kernel, strict=True))


def _conv_backward(grad: Tensor, x: Tensor, weight: Tensor, stride: int, padding: int, *, to: int = 0) -> Tensor:
    """What a convolution of x sends back to x, or, to 1, to its weight."""
    args = None, [stride] * 2, [padding] * 2, [1, 1], False, [0, 0], 1, [to == 0, to == 1, False]
    return torch.ops.aten.convolution_backward(grad, x, weight, *args)[to]


# -- without what follows it, and with the gradient of the weights: for training


@torch.library.custom_op("pixelpart::conv", mutates_args=())
def conv(x: Tensor, weight: Tensor, stride: int) -> Tensor:
    """conv(x, weight), of 3x3 and padded by 1."""
    out = _by_hand(x, weight, None, None, stride, 1)
    return F.conv2d(x, weight, None, stride, 1) if out is None else out


@conv.register_fake
def _(x: Tensor, weight: Tensor, stride: int) -> Tensor:
    return torch.empty_like(F.conv2d(x, weight, None, stride, 1))


@torch.library.custom_op("pixelpart::conv_back", mutates_args=())
def conv_back(grad: Tensor, weight: Tensor, x: Tensor, stride: int) -> Tensor:
    """What `conv` sends back to x."""
    try:
        if stride == 1 and conv64.suits(x, weight):
            return conv64.backward(grad, weight, None)
        if conv3x3.suits(x, weight, stride):
            return conv3x3.backward(grad, weight, None, stride=stride)
    except Unsupported:
        pass
    return _conv_backward(grad, x, weight, stride, 1)


@conv_back.register_fake
def _(grad: Tensor, weight: Tensor, x: Tensor, stride: int) -> Tensor:
    return torch.empty_like(_conv_backward(grad, x, weight, stride, 1))  # channels last if the weights are


def _remember_conv(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, ctx.stride = inputs
    ctx.save_for_backward(x, weight)


def _conv_gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, weight = ctx.saved_tensors
    return conv_back(grad, weight, x, ctx.stride), _conv_backward(grad, x, weight, ctx.stride, 1, to=1), None


conv.register_autograd(_conv_gradients, setup_context=_remember_conv)
