"""Convolutions of the training pass: results and both gradients against torch's own."""

import pytest
import torch
import torch.nn.functional as F

from pixelpart.kernels import conv, conv_back
from pixelpart.models import build
from pixelpart.view.views import TrainingView

hopper = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
on_hopper = pytest.mark.skipif(not hopper, reason="its instructions are Hopper's alone")


def case(n: int, inputs: int, outputs: int, side: int, stride: int, **placed):
    g = torch.Generator().manual_seed(inputs + outputs + side)
    x, weight = torch.randn(n, inputs, side, side, generator=g), torch.randn(outputs, inputs, 3, 3, generator=g)
    grad = torch.randn(n, outputs, *[-(-side // stride)] * 2, generator=g)
    tensors = (x, weight / (3 * inputs**0.5), grad)
    return [tensor.to(memory_format=torch.channels_last, **placed) for tensor in tensors]


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("side", [6, 7])
def test_results_and_gradients_equal_those_of_torch(side: int, stride: int) -> None:
    x, weight, grad = case(2, 4, 6, side, stride, dtype=torch.float64)
    leaves = x.requires_grad_(), weight.requires_grad_()
    mine, theirs = conv(x, weight, stride), F.conv2d(x, weight, None, stride, 1)
    torch.testing.assert_close(mine, theirs)
    for a, b in zip(*(torch.autograd.grad(out, leaves, grad) for out in (mine, theirs)), strict=True):
        torch.testing.assert_close(a, b)
    assert torch.autograd.gradcheck(lambda x, weight: conv(x, weight, stride), leaves)


def test_torch_finds_both_well_made() -> None:
    x, weight, grad = case(2, 4, 6, 8, 2)
    torch.library.opcheck(conv, (x.requires_grad_(), weight.requires_grad_(), 2))
    torch.library.opcheck(conv_back, (grad, weight.detach(), x.detach(), 2))


@pytest.mark.parametrize("odd", range(3))
def test_a_compiler_is_told_the_layout_also_where_one_tensor_has_another(odd: int) -> None:
    tensors = [tensor.contiguous() if i == odd else tensor for i, tensor in enumerate(case(2, 4, 6, 8, 1))]
    x, weight, grad = tensors
    torch.library.opcheck(conv, (x, weight, 1), test_utils="test_faketensor")
    torch.library.opcheck(conv_back, (grad, weight, x, 1), test_utils="test_faketensor")


@pytest.mark.parametrize("name", ["resnet18", "preactresnet18"])
def test_a_training_pass_through_them_is_the_same(name: str) -> None:
    torch.manual_seed(0)
    model = build(name, num_classes=10).train()
    state = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    x, results = torch.rand(2, 3, 32, 32), []
    for own in (False, True):
        model.load_state_dict(state)
        network = TrainingView(model, dtype=torch.bfloat16, own=own)
        calls = [str(node.target) for node in network._features.structure.graph.nodes]
        assert sum("pixelpart.conv" in call for call in calls) == (16 if own else 0)
        logits = network(x)
        grads = torch.autograd.grad(logits.square().sum(), list(model.parameters()))
        results.append([logits.detach(), *grads, *(tensor.clone() for tensor in model.buffers())])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b)


CASES = [
    (128, 64, 64, 32, 1),
    (128, 64, 128, 32, 2),
    (128, 128, 128, 16, 1),
    (128, 512, 512, 4, 1),
    (5, 64, 192, 14, 2),
]


@pytest.mark.gpu
@on_hopper
@pytest.mark.parametrize("shape", CASES, ids=str)
def test_in_bf16_they_are_rounded_once(shape: tuple[int, ...]) -> None:
    stride = shape[-1]
    x, weight, grad = case(*shape, dtype=torch.bfloat16, device="cuda")
    exact = F.conv2d(x.double(), weight.double(), None, stride, 1)
    torch.testing.assert_close(conv(x, weight, stride).double(), exact, rtol=2**-8, atol=3e-3)
    back = F.conv_transpose2d(grad.double(), weight.double(), None, stride, 1, stride - 1)
    torch.testing.assert_close(conv_back(grad, weight, x, stride).double(), back, rtol=2**-8, atol=3e-3)
