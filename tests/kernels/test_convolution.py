"""Fused convolutions and residual blocks against convolution, addition and ReLU one by one."""

import pytest
import torch
import torch.nn.functional as F

from accelerator import on_hopper
from pixelpart.kernels import conv, conv_add_relu, conv_back, conv_relu, rectified_gradient, residual
from pixelpart.models import build
from pixelpart.view.views import TrainingView

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
SHAPES = [  # batch, channels in, channels out, height, width, kernel, stride, padding
    (2, 3, 5, 6, 7, 3, 1, 1),
    (3, 4, 6, 9, 8, 3, 2, 1),
    (2, 4, 3, 5, 5, 1, 2, 0),
    (1, 2, 4, 7, 6, 5, 1, 3),
    (2, 8, 8, 32, 32, 3, 1, 1),
    (1, 3, 2, 1, 1, 3, 1, 1),
]


def case(shape, dtype, device="cpu", layout=torch.contiguous_format):
    """x, weight, bias, the tensor to add, the incoming gradient, and stride and padding."""
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


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=["nchw", "nhwc"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_output_and_input_gradients_equal_those_of_plain_operations(shape, layout):
    x, weight, bias, other, grad, settings = case(shape, torch.float64, layout=layout)
    for ours, expected, leaves in (
        (conv_relu(x, weight, bias, *settings), plain(x, weight, bias, None, *settings), [x]),
        (conv_add_relu(x, weight, bias, other, *settings), plain(x, weight, bias, other, *settings), [x, other]),
    ):
        torch.testing.assert_close(ours, expected)
        assert (ours == 0).any() or ours.numel() < 10  # the ReLU has an effect
        for a, b in zip(*(torch.autograd.grad(out, leaves, grad) for out in (ours, expected)), strict=True):
            torch.testing.assert_close(a, b)


def test_no_gradient_passes_where_the_sum_is_exactly_zero():
    x = torch.tensor([-1.0, 0.0, 2.0]).view(1, 1, 1, 3).requires_grad_()
    one, none = torch.ones(1, 1, 1, 1), torch.zeros(1)
    out = conv_relu(x, one, none, 1, 0)
    assert out.flatten().tolist() == [0, 0, 2]
    assert torch.autograd.grad(out.sum(), x)[0].flatten().tolist() == [0, 0, 1]
    other = torch.tensor([3.0, 0.0, -2.0]).view(1, 1, 1, 3).requires_grad_()
    out = conv_add_relu(x, one, none, other, 1, 0)
    assert out.flatten().tolist() == [2, 0, 0]
    assert [g.flatten().tolist() for g in torch.autograd.grad(out.sum(), (x, other))] == [[1, 0, 0]] * 2


@pytest.mark.parametrize(
    ("shape", "layout"), [(SHAPES[0], torch.contiguous_format), (SHAPES[1], torch.channels_last)], ids=["nchw", "nhwc"]
)
def test_both_pass_opcheck(shape, layout):
    """Schema, autograd, and the shape, type and strides of the fake tensors that a compiler uses."""
    x, weight, bias, other, _, settings = case(shape, torch.float32, layout=layout)
    torch.library.opcheck(conv_relu, (x, weight, bias, *settings))
    torch.library.opcheck(conv_add_relu, (x, weight, bias, other, *settings))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", [SHAPES[1], SHAPES[2], SHAPES[4], (2, 64, 128, 32, 32, 3, 2, 1)], ids=str)
def test_in_bf16_both_equal_exact_arithmetic_up_to_rounding(shape, device):
    x, weight, bias, other, grad, settings = case(shape, torch.bfloat16, device, torch.channels_last)
    stride, padding = settings
    wide = [t.detach().double() for t in (x, weight, bias, other, grad)]
    size = F.conv2d(wide[0].abs(), wide[1].abs(), wide[2].abs(), *settings)  # terms that cancel in a sum still round
    for out, exact, added, leaves in (
        (conv_relu(x, weight, bias, *settings), plain(*wide[:3], None, *settings), 0, [x]),
        (conv_add_relu(x, weight, bias, other, *settings), plain(*wide[:4], *settings), wide[3].abs(), [x, other]),
    ):
        assert out.dtype == torch.bfloat16
        room = 2**-7 * (exact + added) + 1e-5 * size  # may be rounded before the addition and after it
        assert ((out.double() - exact).abs() <= room).all()
        behind = torch.where(out > 0, wide[4], 0)  # the sign of a sum near zero depends on rounding
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
    """x, and the block's tensors: two convolutions and a shortcut, each with its bias."""
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
    """The gradients of its own ReLU and of the ReLU before it may be part of the incoming and the returned gradient."""
    x, weights = block(shape, torch.float64)
    entry = F.relu(x) if rectified else x * 1
    expected = plain_block(entry, *weights, shape[4])
    grad = torch.randn(expected.shape, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    (reference,) = torch.autograd.grad(expected, x, grad, retain_graph=True)
    for ready in (True, False):
        out, inner = residual(entry, *weights, shape[4], rectified, ready)
        torch.testing.assert_close(out, expected)
        assert (inner == 0).any()
        assert not inner.requires_grad
        incoming = torch.where(expected > 0, grad, 0) if ready else grad
        entry_grad, x_grad = torch.autograd.grad(out, (entry, x), incoming, retain_graph=True)
        torch.testing.assert_close(x_grad, reference)
        if rectified:
            assert (entry_grad[entry == 0] == 0).all()


@pytest.mark.parametrize("shape", BLOCKS[:2], ids=str)
def test_a_block_passes_opcheck(shape):
    x, weights = block(shape, torch.float32)
    torch.library.opcheck(residual, (x, *weights, shape[4], True, False))
    grad, inner = torch.randn(2, 5, 6, 6), torch.randn(2, 4, 6, 6)
    torch.library.opcheck(rectified_gradient, (grad, torch.randn(5, 4, 3, 3), inner, None))


SMALL, LARGE = [(3, 8, 5), (2, 64, 32)], [(128, 64, 32), (128, 128, 16), (128, 512, 4)]


@pytest.mark.parametrize("added", [True, False])
@pytest.mark.parametrize(
    ("shape", "device"),
    [(shape, "cpu") for shape in SMALL]
    + [pytest.param(shape, "cuda", marks=pytest.mark.gpu) for shape in SMALL + LARGE],
    ids=str,
)
def test_in_bf16_a_rectified_gradient_equals_exact_arithmetic_up_to_rounding(shape, added, device):
    b, channels, side = shape
    g = torch.Generator().manual_seed(7)

    def draw(*size):
        return torch.randn(*size, generator=g).to(device, torch.bfloat16).contiguous(memory_format=torch.channels_last)

    grad, weight = draw(b, channels, side, side), draw(channels, channels, 3, 3)
    rectified, other = draw(b, channels, side, side).relu(), draw(b, channels, side, side) if added else None
    ours = rectified_gradient(grad, weight, rectified, other).double()
    extra = other.double() if added else torch.zeros((), dtype=torch.float64, device=device)
    exact = F.conv_transpose2d(grad.double(), weight.double(), padding=1)
    size = F.conv_transpose2d(grad.double().abs(), weight.double().abs(), padding=1)
    assert (ours[rectified == 0] == 0).all()
    gap = torch.where(rectified > 0, ours - (exact + extra), 0).abs()
    assert (gap <= 2**-7 * (exact.abs() + extra.abs()) + 1e-5 * size).all()  # may be rounded before the sum


# -- convolutions of the training pass


def training_case(n: int, inputs: int, outputs: int, side: int, stride: int, **options):
    """x, weight and the incoming gradient, channels last."""
    g = torch.Generator().manual_seed(inputs + outputs + side)
    x, weight = torch.randn(n, inputs, side, side, generator=g), torch.randn(outputs, inputs, 3, 3, generator=g)
    grad = torch.randn(n, outputs, *[-(-side // stride)] * 2, generator=g)
    tensors = (x, weight / (3 * inputs**0.5), grad)
    return [tensor.to(memory_format=torch.channels_last, **options) for tensor in tensors]


@pytest.mark.parametrize(("side", "stride"), [(5, 1), (5, 2), (6, 2)])
def test_conv_and_both_gradients_equal_those_of_torch(side, stride):
    x, weight, grad = training_case(2, 4, 6, side, stride, dtype=torch.float64)
    leaves = x.requires_grad_(), weight.requires_grad_()
    ours, expected = conv(x, weight, stride), F.conv2d(x, weight, None, stride, 1)
    torch.testing.assert_close(ours, expected)
    for a, b in zip(*(torch.autograd.grad(out, leaves, grad) for out in (ours, expected)), strict=True):
        torch.testing.assert_close(a, b)


def test_conv_passes_opcheck():
    x, weight, grad = training_case(2, 4, 6, 8, 2)
    torch.library.opcheck(conv, (x.requires_grad_(), weight.requires_grad_(), 2))
    torch.library.opcheck(conv_back, (grad, weight.detach(), x.detach(), 2))


@pytest.mark.parametrize("odd", range(3))
def test_fake_tensors_of_conv_have_the_right_layout_if_one_input_has_another(odd):
    tensors = [tensor.contiguous() if i == odd else tensor for i, tensor in enumerate(training_case(2, 4, 6, 8, 1))]
    x, weight, grad = tensors
    torch.library.opcheck(conv, (x, weight, 1), test_utils="test_faketensor")
    torch.library.opcheck(conv_back, (grad, weight, x, 1), test_utils="test_faketensor")


def test_a_training_pass_through_conv_is_the_same():
    model = build("resnet18", num_classes=10).train()
    state = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    x, results = torch.rand(2, 3, 8, 8), []
    for own in (False, True):
        model.load_state_dict(state)
        network = TrainingView(model, dtype=torch.bfloat16, own_kernels=own)
        calls = [str(node.target) for node in network._features.structure.graph.nodes]
        assert sum("pixelpart.conv" in call for call in calls) == (16 if own else 0)
        logits = network(x)
        grads = torch.autograd.grad(logits.square().sum(), list(model.parameters()))
        results.append([logits.detach(), *grads, *(tensor.clone() for tensor in model.buffers())])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.gpu
@on_hopper
@pytest.mark.parametrize(
    "shape",
    [(128, 64, 64, 32, 1), (128, 64, 128, 32, 2), (128, 128, 128, 16, 1), (128, 512, 512, 4, 1), (5, 64, 192, 14, 2)],
    ids=str,
)
def test_on_a_gpu_conv_in_bf16_is_rounded_once(shape):
    stride = shape[-1]
    x, weight, grad = training_case(*shape, dtype=torch.bfloat16, device="cuda")
    exact = F.conv2d(x.double(), weight.double(), None, stride, 1)
    torch.testing.assert_close(conv(x, weight, stride).double(), exact, rtol=2**-8, atol=3e-3)
    back = F.conv_transpose2d(grad.double(), weight.double(), None, stride, 1, stride - 1)
    torch.testing.assert_close(conv_back(grad, weight, x, stride).double(), back, rtol=2**-8, atol=3e-3)
