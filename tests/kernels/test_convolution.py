"""Fused convolutions and blocks against convolution, addition and ReLU one by one; images' gradients alone."""

import pytest
import torch
import torch.nn.functional as F

from pixelpart.kernels import conv_add_relu, conv_relu, rectified_gradient, residual

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


# -- residual blocks

BLOCKS = [  # batch, channels in, channels out, side, stride, shortcut
    (2, 4, 4, 6, 1, False),
    (2, 4, 6, 8, 2, True),
    (3, 4, 6, 7, 2, True),
    (1, 4, 6, 5, 1, True),
]


def block(shape, dtype, device="cpu"):
    """x, whose ReLU the block reads, and the block's tensors: two convolutions, a shortcut, each with its bias."""
    b, channels_in, channels, side, _, shortcut = shape
    g = torch.Generator().manual_seed(5)

    def draw(*size):
        return torch.randn(*size, generator=g, dtype=torch.float64).to(device, dtype)

    weights = [draw(channels, channels_in, 3, 3), draw(channels), draw(channels, channels, 3, 3), draw(channels)]
    weights += [draw(channels, channels_in, 1, 1), draw(channels)] if shortcut else [None, None]
    return draw(b, channels_in, side, side).requires_grad_(), weights


def plain_block(x, first, first_bias, second, second_bias, shortcut, shortcut_bias, stride):
    inner = F.relu(F.conv2d(x, first, first_bias, stride, 1))
    other = x if shortcut is None else F.conv2d(x, shortcut, shortcut_bias, stride)
    return F.relu(F.conv2d(inner, second, second_bias, 1, 1) + other)


@pytest.mark.parametrize("rectified", [True, False])
@pytest.mark.parametrize("shape", BLOCKS, ids=str)
def test_a_block_equals_plain_operations(shape, rectified):
    """Its ReLU's gradient may come with what arrives, and that of the ReLU before it leave with what it sends back."""
    x, weights = block(shape, torch.float64)
    entered = F.relu(x) if rectified else x * 1
    expected = plain_block(entered, *weights, shape[4])
    grad = torch.randn(expected.shape, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    (reference,) = torch.autograd.grad(expected, x, grad, retain_graph=True)
    for ready in (True, False):
        out, inner = residual(entered, *weights, shape[4], rectified, ready)
        torch.testing.assert_close(out, expected)
        assert (inner == 0).any()
        assert not inner.requires_grad
        arriving = torch.where(expected > 0, grad, 0) if ready else grad
        sent, mine = torch.autograd.grad(out, (entered, x), arriving, retain_graph=True)
        torch.testing.assert_close(mine, reference)
        if rectified:
            assert (sent[entered == 0] == 0).all()


@pytest.mark.parametrize("shape", BLOCKS, ids=str)
def test_gradients_of_a_block_are_those_of_small_differences(shape):
    x, weights = block(shape, torch.float64)
    assert torch.autograd.gradcheck(lambda x: residual(x, *weights, shape[4], False, False)[0], (x,))


@pytest.mark.parametrize("shape", BLOCKS[:2], ids=str)
def test_torch_finds_a_block_well_made(shape):
    x, weights = block(shape, torch.float32)
    torch.library.opcheck(residual, (x, *weights, shape[4], True, False))
    grad, inner = torch.randn(2, 5, 6, 6), torch.randn(2, 4, 6, 6)
    torch.library.opcheck(rectified_gradient, (grad, torch.randn(5, 4, 3, 3), inner, None))


SMALL, LARGE = [(3, 8, 5), (16, 64, 32)], [(128, 64, 32), (128, 128, 16), (128, 512, 4)]


@pytest.mark.parametrize("added", [True, False])
@pytest.mark.parametrize(
    ("shape", "device"),
    [(shape, "cpu") for shape in SMALL]
    + [pytest.param(shape, "cuda", marks=pytest.mark.gpu) for shape in SMALL + LARGE],
    ids=str,
)
def test_in_bf16_a_rectified_gradient_stays_within_its_rounding_of_exact_arithmetic(shape, added, device):
    b, channels, side = shape
    g = torch.Generator().manual_seed(7)

    def draw(*size):
        return torch.randn(*size, generator=g).to(device, torch.bfloat16).contiguous(memory_format=torch.channels_last)

    grad, weight = draw(b, channels, side, side), draw(channels, channels, 3, 3)
    entered, other = draw(b, channels, side, side).relu(), draw(b, channels, side, side) if added else None
    mine = rectified_gradient(grad, weight, entered, other).double()
    extra = other.double() if added else torch.zeros((), dtype=torch.float64, device=device)
    exact = F.conv_transpose2d(grad.double(), weight.double(), padding=1)
    size = F.conv_transpose2d(grad.double().abs(), weight.double().abs(), padding=1)
    assert (mine[entered == 0] == 0).all()
    gap = torch.where(entered > 0, mine - (exact + extra), 0).abs()
    assert (gap <= 2**-7 * (exact.abs() + extra.abs()) + 1e-5 * size).all()  # rounded before the sum, maybe
