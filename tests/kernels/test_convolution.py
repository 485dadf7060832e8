"""conv_relu and conv_add_relu against convolution, addition and ReLU one after the other; images' gradients alone."""

import pytest
import torch
import torch.nn.functional as F

from pixelpart.kernels import conv_add_relu, conv_relu

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
SHAPES = [  # batch, channels in, channels out, height, width, kernel, stride, padding
    (2, 3, 5, 6, 7, 3, 1, 1),
    (3, 4, 6, 9, 8, 3, 2, 1),
    (2, 4, 3, 5, 5, 1, 2, 0),
    (1, 2, 4, 7, 6, 5, 1, 3),
    (2, 8, 8, 64, 64, 3, 1, 1),
    (1, 3, 2, 1, 1, 3, 1, 1),
]


def case(shape, dtype, device="cpu", layout=torch.contiguous_format):
    """x, weight, bias, what is added, the arriving gradient, and the convolution's settings."""
    b, channels_in, channels, h, w, kernel, stride, padding = shape
    g = torch.Generator().manual_seed(3)

    def draw(*size):
        return torch.randn(*size, generator=g, dtype=torch.float64)

    x, weight, bias = draw(b, channels_in, h, w), draw(channels, channels_in, kernel, kernel), draw(channels)
    size = F.conv2d(x, weight, stride=stride, padding=padding).shape
    placed = (t.to(device, dtype) for t in (x, weight, bias, draw(*size), draw(*size)))
    x, weight, bias, other, grad = (t.contiguous(memory_format=layout) if t.ndim == 4 else t for t in placed)
    return x.requires_grad_(), weight, bias, other.requires_grad_(), grad, (stride, padding)


def plain(x, weight, bias, other, stride, padding):
    out = F.conv2d(x, weight, bias, stride, padding)
    return F.relu(out if other is None else out + other)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=["nchw", "nhwc"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_output_and_input_gradients_equal_those_of_plain_operations(shape, layout, dtype):
    x, weight, bias, other, grad, settings = case(shape, dtype, layout=layout)
    for mine, theirs, leaves in (
        (conv_relu(x, weight, bias, *settings), plain(x, weight, bias, None, *settings), [x]),
        (conv_add_relu(x, weight, bias, other, *settings), plain(x, weight, bias, other, *settings), [x, other]),
    ):
        assert mine.dtype == dtype
        torch.testing.assert_close(mine, theirs)
        assert (mine == 0).any() or mine.numel() < 10  # the ReLU has something to do
        for a, b in zip(*(torch.autograd.grad(out, leaves, grad) for out in (mine, theirs)), strict=True):
            torch.testing.assert_close(a, b)


@pytest.mark.parametrize("shape", SHAPES[1:4], ids=str)
def test_gradients_are_those_of_small_differences(shape):
    x, weight, bias, other, _, settings = case(shape, torch.float64)
    assert torch.autograd.gradcheck(lambda x: conv_relu(x, weight, bias, *settings), (x,))
    assert torch.autograd.gradcheck(lambda x, other: conv_add_relu(x, weight, bias, other, *settings), (x, other))


def test_where_the_sum_is_exactly_zero_no_gradient_passes():
    x = torch.tensor([-1.0, 0.0, 2.0]).view(1, 1, 1, 3).requires_grad_()
    one, none = torch.ones(1, 1, 1, 1), torch.zeros(1)
    out = conv_relu(x, one, none, 1, 0)
    assert out.flatten().tolist() == [0, 0, 2]
    assert torch.autograd.grad(out.sum(), x)[0].flatten().tolist() == [0, 0, 1]
    other = torch.tensor([3.0, 0.0, -2.0]).view(1, 1, 1, 3).requires_grad_()
    out = conv_add_relu(x, one, none, other, 1, 0)
    assert out.flatten().tolist() == [2, 0, 0]
    assert [g.flatten().tolist() for g in torch.autograd.grad(out.sum(), (x, other))] == [[1, 0, 0]] * 2


def test_weights_get_no_gradient():
    x, weight, bias, other, grad, settings = case(SHAPES[0], torch.float64)
    weight.requires_grad_()
    bias.requires_grad_()
    conv_relu(x, weight, bias, *settings).backward(grad)
    conv_add_relu(x, weight, bias, other, *settings).backward(grad)
    assert weight.grad is None
    assert bias.grad is None
    assert x.grad is not None


@pytest.mark.parametrize(
    ("shape", "layout"), [(SHAPES[0], torch.contiguous_format), (SHAPES[1], torch.channels_last)], ids=["nchw", "nhwc"]
)
def test_torch_finds_both_well_made(shape, layout):
    """Schema, autograd, and the shape, type and strides that a compiler is told beforehand."""
    x, weight, bias, other, _, settings = case(shape, torch.float32, layout=layout)
    torch.library.opcheck(conv_relu, (x, weight, bias, *settings))
    torch.library.opcheck(conv_add_relu, (x, weight, bias, other, *settings))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", [SHAPES[1], SHAPES[2], SHAPES[4], (16, 64, 128, 32, 32, 3, 2, 1)], ids=str)
def test_in_bf16_both_stay_within_its_rounding_of_exact_arithmetic(shape, device):
    x, weight, bias, other, grad, settings = case(shape, torch.bfloat16, device, torch.channels_last)
    stride, padding = settings
    wide = [t.detach().double() for t in (x, weight, bias, other, grad)]
    size = F.conv2d(wide[0].abs(), wide[1].abs(), wide[2].abs(), *settings)  # what cancels in a sum still rounds in it
    for out, exact, added, leaves in (
        (conv_relu(x, weight, bias, *settings), plain(*wide[:3], None, *settings), 0, [x]),
        (conv_add_relu(x, weight, bias, other, *settings), plain(*wide[:4], *settings), wide[3].abs(), [x, other]),
    ):
        assert out.dtype == torch.bfloat16
        room = 2**-7 * (exact + added) + 1e-5 * size  # rounded before the addition, maybe, and behind it
        assert ((out.double() - exact).abs() <= room).all()
        behind = torch.where(out > 0, wide[4], 0)  # with the ReLU's own verdict where the sum is all but zero
        rest = [x.shape[i] - ((out.shape[i] - 1) * stride - 2 * padding + weight.shape[i]) for i in (2, 3)]
        args = {"stride": stride, "padding": padding, "output_padding": rest}
        back, *direct = torch.autograd.grad(out, leaves, grad)
        exact_back = F.conv_transpose2d(behind, wide[1], **args)
        size_back = F.conv_transpose2d(behind.abs(), wide[1].abs(), **args)
        assert ((back.double() - exact_back).abs() <= 2**-7 * exact_back.abs() + 1e-5 * size_back).all()
        assert all(torch.equal(d.double(), behind) for d in direct)
