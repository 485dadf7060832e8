"""Convolution, bias, residual and ReLU in one pass over memory: cuDNN fuses them, autograd by itself does not.

Only the gradients that an attack needs are there: with respect to the images, not the weights.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


@torch.library.custom_op("pixelpart::conv_relu", mutates_args=())
def conv_relu(x: Tensor, weight: Tensor, bias: Tensor, stride: int, padding: int) -> Tensor:
    """relu(conv(x, weight) + bias)"""
    if x.is_cuda:
        return torch.cudnn_convolution_relu(x, weight, bias, [stride] * 2, [padding] * 2, [1, 1], 1)
    return F.conv2d(x, weight, bias, stride, padding).relu()


@torch.library.custom_op("pixelpart::conv_add_relu", mutates_args=())
def conv_add_relu(x: Tensor, weight: Tensor, bias: Tensor, other: Tensor, stride: int, padding: int) -> Tensor:
    """relu(conv(x, weight) + bias + other)"""
    if x.is_cuda:
        args = [stride] * 2, [padding] * 2, [1, 1], 1
        return torch.cudnn_convolution_add_relu(x, weight, other, 1.0, bias, *args)
    return F.conv2d(x, weight, bias, stride, padding).add(other).relu()


@conv_relu.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor, stride: int, padding: int) -> Tensor:
    return torch.empty_like(F.conv2d(x, weight, bias, stride, padding))


@conv_add_relu.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor, other: Tensor, stride: int, padding: int) -> Tensor:
    return torch.empty_like(F.conv2d(x, weight, bias, stride, padding))


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, *_, ctx.stride, ctx.padding = inputs
    ctx.save_for_backward(x, weight, output)


def _input_gradient(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient behind the ReLU, and what the convolution sends back of it."""
    x, weight, output = ctx.saved_tensors
    grad = torch.where(output > 0, grad, 0)
    args = None, [ctx.stride] * 2, [ctx.padding] * 2, [1, 1], False, [0, 0], 1, [True, False, False]
    return grad, torch.ops.aten.convolution_backward(grad, x, weight, *args)[0]


def _conv_relu_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    return _input_gradient(ctx, grad)[1], None, None, None, None


def _conv_add_relu_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    behind, back = _input_gradient(ctx, grad)
    return back, None, None, behind, None, None


conv_relu.register_autograd(_conv_relu_backward, setup_context=_remember)
conv_add_relu.register_autograd(_conv_add_relu_backward, setup_context=_remember)
