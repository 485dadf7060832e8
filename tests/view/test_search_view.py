"""`searched`: any module, as a search goes through it."""

import copy
import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from accelerator import Emulated
from odd_networks import NETS, UNREADABLE, TheirNet, close, images, logits_and_gradient, state_of, stir
from pixelpart import models
from pixelpart.kernels import cuda
from pixelpart.view import views as frozen_module
from pixelpart.view.views import Folding, search_view


class Sequenced(nn.Sequential):
    """No class of its own at all."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(3, 6, 3),
            nn.BatchNorm2d(6),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(216, 8),
            nn.ReLU(),
            nn.Linear(8, 4),
        )


class ByKeyword(TheirNet):
    def forward(self, x):
        return self.fc(input=self.layer4(self.stem(x)).mean((2, 3)))


class ReadsPixelsTwice(nn.Module):
    """Two convolutions side by side, both on the images."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.fc = nn.Conv2d(3, 4, 3), nn.Conv2d(3, 4, 3), nn.Linear(4, 4)

    def forward(self, x):
        return self.fc((self.a(x).relu() + self.b(x).relu()).mean((2, 3)))


class Scaled(TheirNet):
    """Its last linear layer does not give the logits themselves."""

    def forward(self, x):
        return 3 * super().forward(x)


class OneLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(192, 4)

    def forward(self, x):
        return self.fc(x.flatten(1))


class Untraceable(TheirNet):
    def forward(self, x):
        return super().forward(x if x.mean() > 0.5 else 2 * x)


class WithLock(TheirNet):
    """It cannot be copied."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


class WithHistory(TheirNet):
    """Nor can this: it holds a tensor that remembers how it was made."""

    def __init__(self) -> None:
        super().__init__()
        self.kept = 2 * self.fc.weight


THEIRS = {
    "their net": TheirNet,
    "sequential": Sequenced,
    "by keyword": ByKeyword,
    "reads pixels twice": ReadsPixelsTwice,
    "scaled logits": Scaled,
    "one layer": OneLayer,
    "nested": lambda: nn.Sequential(nn.BatchNorm2d(3), TheirNet()),
}


@pytest.mark.parametrize("name", [*NETS, *THEIRS])
def test_any_module_that_can_be_read_is_searched_folded_and_equals_itself(name):
    model = stir((NETS | THEIRS)[name]()).train()
    view, x = search_view(model), images()
    expected, expected_grad = logits_and_gradient(copy.deepcopy(model).eval(), x)
    logits, grad = logits_and_gradient(view, x)
    assert close(logits, expected)
    assert close(grad, expected_grad)
    assert logits.dtype == torch.float64


@pytest.mark.parametrize("name", NETS)
def test_what_is_searched_is_filled_once_with_the_bits_of_a_view_that_is_filled_at_every_call(name, monkeypatch):
    model, x = stir(NETS[name]()).eval(), images()
    filled, view = Folding(model)(), search_view(model)
    assert torch.equal(view(x), filled(x))
    monkeypatch.setattr(frozen_module, "functional_call", None)
    view(x)
    with pytest.raises(TypeError):
        filled(x)


@pytest.mark.parametrize("name", THEIRS)
def test_no_batch_norm_is_left_in_what_is_searched(name, monkeypatch):
    view = search_view(stir(THEIRS[name]()))
    monkeypatch.setattr(F, "batch_norm", None)
    view(images())


@pytest.mark.parametrize("make", [*UNREADABLE.values(), Untraceable, WithLock, WithHistory])
@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_what_cannot_be_read_is_not_searched_through_a_view(make, dtype):
    assert search_view(make(), dtype=dtype) is None


@pytest.mark.parametrize("thing", [lambda x: x, None, Folding(models.build("tiny-cnn"))()])
def test_what_is_no_module_has_no_view(thing):
    assert search_view(thing) is None


def dtypes_seen(view, x):
    """The type of the weights and of what goes in, of every convolution and linear layer, in the order of use."""
    seen = []
    with pytest.MonkeyPatch.context() as patch:
        for name in ("conv2d", "linear"):
            original = getattr(F, name)

            def noted(x, weight, *rest, name=name, original=original, **more):
                seen.append((name, weight.dtype, x.dtype))
                return original(x, weight, *rest, **more)

            patch.setattr(F, name, noted)
        patch.setattr(
            nn.Conv2d, "forward", lambda self, x: F.conv2d(x, self.weight, self.bias, self.stride, self.padding)
        )
        logits = view(x)
    return seen, logits


@pytest.mark.parametrize(("make", "narrow"), [(TheirNet, 1), (ByKeyword, 1), (Sequenced, 1), (Scaled, 2)])
def test_in_bf16_the_first_convolution_and_the_linear_layer_of_the_logits_stay_fp32(make, narrow):
    model = stir(make()).float().eval()
    x = images().float()
    seen, logits = dtypes_seen(search_view(model, dtype=torch.bfloat16), x)
    wide = ("conv2d", torch.float32, torch.float32)
    assert seen[0] == wide
    assert len(seen) == 3
    kinds = [weight for _, weight, _ in seen]
    assert kinds.count(torch.bfloat16) == narrow
    assert kinds[1] == torch.bfloat16
    assert all(weight == fed for _, weight, fed in seen)
    assert logits.dtype == torch.float32
    spread = model(x).std()
    assert (logits - model(x)).abs().max() < 0.05 * spread


def test_in_bf16_a_pixelpart_classifier_keeps_its_head_in_fp32():
    model = models.build("tiny-cnn").eval()
    seen, logits = dtypes_seen(search_view(model, dtype=torch.bfloat16), images().float())
    assert [weight for _, weight, _ in seen] == [torch.float32, *[torch.bfloat16] * (len(seen) - 2), torch.float32]
    assert len(seen) > 3
    assert logits.dtype == torch.float32


class FirstLayerAgain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.same, self.fc = nn.Conv2d(3, 3, 3), nn.Linear(3, 4)

    def forward(self, x):
        return self.fc(self.same(self.same(x).relu()).relu().mean((2, 3)))


@pytest.mark.parametrize("make", [ReadsPixelsTwice, FirstLayerAgain])
def test_two_layers_that_read_the_pixels_and_a_first_one_used_again_are_folded_in_fp32_alone(make):
    model = make().eval()
    assert search_view(model, dtype=torch.bfloat16) is None
    assert torch.allclose(search_view(model)(images().float()), model(images().float()), atol=1e-6)


def test_making_a_view_for_a_search_leaves_the_model_as_it_was():
    model = stir(TheirNet()).train()
    model.stem[1].eval()
    before, state = copy.deepcopy(model.state_dict()), state_of(model)
    search_view(model)(images())
    search_view(copy.deepcopy(model).float(), dtype=torch.bfloat16)(images().float())
    assert state_of(model) == state
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=["nchw", "nhwc"])
def test_the_kernels_of_a_hopper_gpu_are_met_whatever_the_layout_of_the_weights(layout, monkeypatch):
    convs = [nn.Conv2d(64, 64, 3, padding=1, stride=stride) for stride in (1, 2)]
    model = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), *convs[:1], nn.ReLU(), *convs[1:], nn.ReLU(), nn.Flatten())
    model.to(memory_format=layout)
    there = Emulated(monkeypatch)
    monkeypatch.setattr(cuda, "hopper", lambda device: True)
    search_view(model, dtype=torch.bfloat16, fuse=True)(torch.rand(2, 3, 16, 16))
    assert len(there.launched) == 2
    assert all(conv.weight.is_contiguous(memory_format=layout) for conv in convs)
