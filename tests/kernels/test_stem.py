"""The first convolution against exact arithmetic: fp32 pixels in, bf16 out, gradient in fp32; on any device."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pixelpart.kernels import stem
from pixelpart.kernels.stem import stem_backward, supports

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
# fewer pixels than a block, one more, no multiple of it, 64 x 64, one pixel, and a batch as in training
SHAPES = [(1, 5, 7), (1, 3, 43), (3, 9, 11), (2, 64, 64), (1, 1, 1), (128, 32, 32)]
LAYOUTS = pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=["nchw", "nhwc"])


def case(shape, channels, device="cpu", layout=torch.contiguous_format):
    b, h, w = shape
    g = torch.Generator().manual_seed(4)
    x = torch.rand(b, 3, h, w, generator=g)
    weight = torch.randn(channels, 3, 3, 3, generator=g) * 27**-0.5
    bias, grad = torch.randn(channels, generator=g) * 0.1, torch.randn(b, channels, h, w, generator=g).bfloat16()
    x, weight, grad = (t.to(device).contiguous(memory_format=layout) for t in (x, weight, grad))
    return x.requires_grad_(), weight, bias.to(device), grad


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize("channels", [16, 128])
@pytest.mark.parametrize("shape", SHAPES[:5], ids=str)
@LAYOUTS
def test_output_and_gradient_equal_those_of_the_convolution(shape, channels, relu, layout, device):
    check(case(shape, channels, device, layout), relu)


@pytest.mark.gpu
@pytest.mark.parametrize("channels", [32, 64, 256])
@pytest.mark.parametrize("relu", [True, False])
def test_on_a_gpu_a_training_batch_equals_the_convolution(relu, channels):
    check(case(SHAPES[5], channels, "cuda", torch.channels_last), relu)


def check(inputs, relu):
    x, weight, bias, grad = inputs
    out = stem(x, weight, bias, relu)
    wide_x, wide, wide_bias = x.detach().double(), weight.double(), bias.double()
    exact = F.conv2d(wide_x, wide, wide_bias, padding=1)
    exact = exact.relu() if relu else exact
    size = F.conv2d(wide_x, wide.abs(), wide_bias.abs(), padding=1)
    tf32 = 2**-9 if x.is_cuda else 1e-6  # pixels and weights have 11 bits
    assert out.dtype == torch.bfloat16
    assert ((out.double() - exact).abs() <= 2**-8 * exact.abs() + tf32 * size).all()

    (back,) = torch.autograd.grad(out, x, grad)
    behind = torch.where(out > 0, grad, 0).double() if relu else grad.double()
    exact_back = F.conv_transpose2d(behind, wide, padding=1)
    size_back = F.conv_transpose2d(behind.abs(), wide.abs(), padding=1)
    assert back.dtype == torch.float32
    assert ((back.double() - exact_back).abs() <= 2**-15 * size_back).all()


@pytest.mark.parametrize("device", DEVICES)
def test_a_ready_gradient_is_used_as_it_is_also_where_the_output_is_zero(device):
    x, weight, bias, grad = case(SHAPES[2], 16, device)
    plain = torch.autograd.grad(stem(x, weight, bias, False), x, grad)[0]
    out = stem(x, weight, bias, True, True)
    assert torch.equal(out, stem(x, weight, bias, True))
    assert torch.equal(torch.autograd.grad(out, x, grad)[0], plain)


def test_without_a_relu_the_output_may_be_changed_in_place():
    x, weight, bias, grad = case(SHAPES[0], 16)
    expected = torch.autograd.grad(stem(x, weight, bias, False), x, grad)
    assert torch.equal(torch.autograd.grad(stem(x, weight, bias, False).add_(1), x, grad)[0], expected[0])


@pytest.mark.parametrize("device", DEVICES)
@LAYOUTS
def test_it_passes_opcheck(layout, device):
    """Schema, autograd, and the shape, type and strides of the fake tensors that a compiler uses."""
    x, weight, bias, grad = case(SHAPES[2], 16, device, layout)
    torch.library.opcheck(stem, (x, weight, bias, True))
    torch.library.opcheck(stem_backward, (grad, weight, None))
    torch.library.opcheck(stem_backward, (grad, weight, stem(x, weight, bias, True).detach()))


PLAIN = {"in_channels": 3, "out_channels": 64, "kernel_size": 3, "padding": 1}


@pytest.mark.parametrize(
    ("change", "supported"),
    [({"out_channels": n}, n in (16, 64, 128, 256)) for n in (8, 16, 64, 128, 256, 512)]
    + [({"in_channels": 4}, False), ({"kernel_size": 5}, False), ({"padding": 0}, False), ({"padding": "same"}, False)]
    + [({"stride": 2}, False), ({"dilation": 2}, False), ({"padding_mode": "reflect"}, False)],
    ids=str,
)
def test_it_supports_plain_3x3_convolutions_of_three_channels_only(change, supported):
    assert supports(nn.Conv2d(**PLAIN | change)) == supported
