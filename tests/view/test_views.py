"""Views against the model itself in eval mode, in float64: folding changes no number."""

import copy
import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from accelerator import Emulated
from pixelpart import models
from pixelpart.kernels import cuda
from pixelpart.view.check import search_view
from pixelpart.view.views import Folding
from small_nets import (
    LayerTypes,
    Small,
    UserNet,
    close,
    images,
    logits_and_gradient,
    modes_and_flags,
    randomised,
    with_trunk,
)


def made(trunk, **modules):
    return lambda: with_trunk(Small, trunk, **copy.deepcopy(modules))


def conv_used_twice(self, x):
    """One convolution before two norms: folding one of them would change the other."""
    return F.relu(self.bn3(self.same(F.relu(self.bn2(self.same(Small.trunk(self, x)))))))


def conv_read_twice(self, x):
    out = self.conv(x)
    return F.relu(self.bn(out) + out)


def weight_read_by_name(self, x):
    return F.relu(self.bn(self.conv(x)) + self.conv.weight.mean())


def dropout(self, x):
    return F.dropout(self.drop(Small.trunk(self, x)), 0.5, training=self.training)


def tied_weights():
    """Two convolutions share a weight, each with its own norm after it."""
    a, b, *norms = nn.Conv2d(6, 6, 1), nn.Conv2d(6, 6, 1), nn.BatchNorm2d(6), nn.BatchNorm2d(6)
    b.weight = a.weight

    def trunk(self, x):
        return F.relu(self.bn3(self.b(F.relu(self.bn2(self.a(Small.trunk(self, x)))))))

    return with_trunk(Small, trunk, a=a, b=b, bn2=norms[0], bn3=norms[1])


class OwnHead(Small):
    """A head with a batch norm, which is not pooling and one linear layer."""

    def __init__(self) -> None:
        super().__init__(last=nn.Conv2d(6, 5, 1, bias=False), last_bn=nn.BatchNorm2d(5))

    @property
    def pooled_linear(self):
        return None

    def head(self, acts):
        return self.last_bn(self.last(acts)).amax((2, 3))


TRACEABLE = {
    "resnet18": lambda: models.build("resnet18"),
    "wrn-10-1": lambda: models.build("wrn-10-1"),
    "tiny-cnn": lambda: models.build("tiny-cnn", mean=(0.4, 0.5, 0.6), std=(0.2, 0.25, 0.3)),
    "wrapped": lambda: models.wrap(UserNet(), features="down", head="fc"),
    "dropout": made(dropout, drop=nn.Dropout(0.5)),
    "norm without affine": lambda: Small(bn=nn.BatchNorm2d(6, affine=False)),
    "norm with another eps": lambda: Small(bn=nn.BatchNorm2d(6, eps=0.3)),
    "norm of the batch": lambda: Small(bn=nn.BatchNorm2d(6, track_running_stats=False)),
    "norm of the input": made(lambda self, x: Small.trunk(self, self.first(x)), first=nn.BatchNorm2d(3)),
    "own head": OwnHead,
    "convolution used twice": made(
        conv_used_twice, same=nn.Conv2d(6, 6, 1), bn2=nn.BatchNorm2d(6), bn3=nn.BatchNorm2d(6)
    ),
    "convolution read twice": made(conv_read_twice),
    "norm used twice": made(lambda self, x: F.relu(self.bn(self.bn(self.conv(x))))),
    "tied weights": tied_weights,
    "weight read by name": made(weight_read_by_name),
}


def branching(self, x):
    return Small.trunk(self, x) * (1 if x.mean() > 0.5 else 2)


def hooked(register):
    model = Small()
    register(model.conv)
    return model


def plain_tensor():
    """A tensor that is neither parameter nor buffer."""
    scale = torch.full((1, 3, 1, 1), 0.3, dtype=torch.float64)
    return with_trunk(Small, lambda self, x: Small.trunk(self, x * scale))


UNTRACEABLE = {
    "branch on the input": made(branching),
    "forward hook": lambda: hooked(lambda conv: conv.register_forward_hook(lambda m, x, out: 2 * out)),
    "backward hook": lambda: hooked(lambda conv: conv.register_full_backward_hook(lambda m, g, _: (2 * g[0],))),
    "parametrized": lambda: hooked(nn.utils.parametrizations.weight_norm),
    "plain tensor": plain_tensor,
}


@pytest.mark.parametrize("name", [*TRACEABLE, *UNTRACEABLE])
def test_the_view_equals_the_model_in_eval_mode_and_so_does_its_gradient(name):
    model = randomised((TRACEABLE | UNTRACEABLE)[name]()).double().train()
    folding, x = Folding(model), images()
    assert folding.folded == (name in TRACEABLE)
    reference = copy.deepcopy(model).eval()
    for view in (folding(), search_view(model)) if folding.folded else (folding(),):
        expected, expected_grad = logits_and_gradient(reference, x)
        logits, grad = logits_and_gradient(view, x)
        assert close(logits, expected)
        assert close(grad, expected_grad)
        assert expected_grad.abs().max() > 1e-6
        assert close(view.head(reference.features(x)), expected)
    # the view follows the weights and statistics of the model
    with torch.no_grad():
        for tensor in model.state_dict().values():
            if tensor.is_floating_point():
                tensor.mul_(1.1).add_(0.01)
    after = folding()(x)
    assert close(after, copy.deepcopy(model).eval()(x))
    assert not close(after, expected)


def test_a_view_leaves_the_model_unchanged_and_gives_its_parameters_no_gradient():
    model = randomised(models.build("tiny-cnn")).double().train()
    model.layer2.bn.eval()
    model.linear.requires_grad_(False)
    before, state = copy.deepcopy(model.state_dict()), modes_and_flags(model)
    for view in (Folding(model)(), search_view(model)):
        x = images().requires_grad_()
        view(x).sum().backward()
        assert x.grad is not None
        assert not view(images()).requires_grad
    assert modes_and_flags(model) == state
    assert model.layer1.conv.bias is None
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("make", [lambda: models.build("resnet18"), UserNet])
def test_no_batch_norm_after_a_convolution_is_left(make, monkeypatch):
    view = search_view(randomised(make()))
    monkeypatch.setattr(F, "batch_norm", None)
    view(images(dtype=torch.float32))


def test_the_view_has_the_linear_layer_after_the_pooling():
    model = randomised(models.build("tiny-cnn"))
    linear = Folding(model)().pooled_linear
    assert torch.equal(linear.weight, model.linear.weight)
    assert torch.equal(linear.bias, model.linear.bias)
    assert not linear.weight.requires_grad
    assert Folding(Small(linear=nn.Linear(6, 4, bias=False)))().pooled_linear.bias is None
    assert Folding(OwnHead())().pooled_linear is None


# -- search_view: any module


class ReadsPixelsTwice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.fc = nn.Conv2d(3, 4, 3), nn.Conv2d(3, 4, 3), nn.Linear(4, 4)

    def forward(self, x):
        return self.fc((self.a(x).relu() + self.b(x).relu()).mean((2, 3)))


class FirstLayerTwice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.same, self.fc = nn.Conv2d(3, 3, 3), nn.Linear(3, 4)

    def forward(self, x):
        return self.fc(self.same(self.same(x).relu()).relu().mean((2, 3)))


def sequential():
    layers = nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(216, 8), nn.ReLU()
    return nn.Sequential(*layers, nn.Linear(8, 4))


class ScaledLogits(UserNet):
    """Its last linear layer does not give the logits."""

    def forward(self, x):
        return 3 * super().forward(x)


@pytest.mark.parametrize(
    "make", [UserNet, sequential, ReadsPixelsTwice, lambda: nn.Sequential(nn.BatchNorm2d(3), UserNet())]
)
def test_any_traceable_module_has_a_search_view_that_equals_it(make):
    model = randomised(make()).double().train()
    expected = logits_and_gradient(copy.deepcopy(model).eval(), images())
    for a, b in zip(logits_and_gradient(search_view(model), images()), expected, strict=True):
        assert close(a, b)


class Uncopyable(UserNet):
    def __init__(self, kept) -> None:
        super().__init__()
        self.kept = kept(self)


@pytest.mark.parametrize(
    "make",
    [
        *UNTRACEABLE.values(),
        lambda: Uncopyable(lambda net: threading.Lock()),
        lambda: Uncopyable(lambda net: 2 * net.fc.weight),  # a tensor with gradient history
        lambda: torch.sigmoid,
        lambda: Folding(models.build("tiny-cnn"))(),
    ],
)
def test_other_modules_and_functions_have_no_search_view(make):
    assert search_view(make()) is None
    assert search_view(make(), dtype=torch.bfloat16) is None


@pytest.mark.parametrize(
    ("make", "wide"), [(UserNet, (0, 3)), (sequential, (0, 2)), (ScaledLogits, (0,)), (TRACEABLE["tiny-cnn"], (0, 4))]
)
def test_in_bf16_the_first_convolution_and_the_linear_layer_of_the_logits_stay_fp32(make, wide):
    model, x = randomised(make()).eval(), images(dtype=torch.float32)
    with torch.no_grad(), LayerTypes() as types:
        logits = search_view(model, dtype=torch.bfloat16)(x)
    expected = [torch.float32 if i in wide else torch.bfloat16 for i in range(len(types.seen))]
    assert types.seen == [(dtype, dtype) for dtype in expected]
    assert len(types.seen) > 2
    assert (logits - model(x)).abs().max() < 0.05 * model(x).std()


@pytest.mark.parametrize("make", [ReadsPixelsTwice, FirstLayerTwice])
def test_a_model_without_a_single_first_layer_has_a_view_in_fp32_only(make):
    model, x = make().eval(), images(dtype=torch.float32)
    assert search_view(model, dtype=torch.bfloat16) is None
    assert torch.allclose(search_view(model)(x), model(x), atol=1e-6)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=["nchw", "nhwc"])
def test_hopper_kernels_are_used_for_weights_of_either_layout(layout, monkeypatch):
    convs = [nn.Conv2d(64, 64, 3, padding=1, stride=stride) for stride in (1, 2)]
    model = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), *convs[:1], nn.ReLU(), *convs[1:], nn.ReLU(), nn.Flatten())
    model.to(memory_format=layout)
    emulated = Emulated(monkeypatch)
    monkeypatch.setattr(cuda, "is_hopper", lambda device: True)
    search_view(model, dtype=torch.bfloat16, fuse=True)(torch.rand(2, 3, 16, 16))
    assert len(emulated.launched) == 2
    assert all(conv.weight.is_contiguous(memory_format=layout) for conv in convs)
