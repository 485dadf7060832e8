"""The attack's view of a model against the model itself in eval mode, in float64: what is folded changes no number."""

import copy
import threading

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pixelpart import models
from pixelpart.frozen import Folding, freeze, frozen, searched
from pixelpart.models import Classifier


class Net(Classifier):
    """Convolution, batch norm, ReLU, pooling and one linear layer: the base of the odd networks below."""

    def __init__(self, *, bias: bool = True, **norm) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6, **norm)
        self.linear = nn.Linear(6, 4, bias=bias)

    @property
    def pooled_linear(self) -> nn.Linear:
        return self.linear

    def trunk(self, x: Tensor) -> Tensor:
        return F.relu(self.bn(self.conv(x)))


class WithoutNorm(Net):
    def trunk(self, x):
        return F.relu(self.conv(x))


class WithDropout(Net):
    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.5)

    def trunk(self, x):
        return F.dropout(self.drop(super().trunk(x)), 0.5, training=self.training)


class NormOfTheInput(Net):
    """Batch norm in front of everything: no convolution before it."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.BatchNorm2d(3)

    def trunk(self, x):
        return super().trunk(self.first(x))


class ConvUsedTwice(Net):
    """One convolution behind two norms: folding one of them would spoil the other."""

    def __init__(self) -> None:
        super().__init__()
        self.same, self.bn2, self.bn3 = nn.Conv2d(6, 6, 1), nn.BatchNorm2d(6), nn.BatchNorm2d(6)

    def trunk(self, x):
        return F.relu(self.bn3(self.same(F.relu(self.bn2(self.same(super().trunk(x)))))))


class NormUsedTwice(Net):
    def trunk(self, x):
        return F.relu(self.bn(self.bn(self.conv(x))))


class ConvReadTwice(Net):
    """The convolution's own output is used beside its normalised one."""

    def trunk(self, x):
        out = self.conv(x)
        return F.relu(self.bn(out) + out)


class OwnHead(Net):
    """A head with a batch norm in it, which is not pooling and one linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.last_bn = nn.Conv2d(6, 5, 1, bias=False), nn.BatchNorm2d(5)

    @property
    def pooled_linear(self):
        return None

    def head(self, acts):
        return self.last_bn(self.last(acts)).amax((2, 3))


class TiedWeights(Net):
    """Two convolutions with one weight, each with a norm of its own behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.bn2, self.bn3 = nn.Conv2d(6, 6, 1), nn.Conv2d(6, 6, 1), *map(nn.BatchNorm2d, (6, 6))
        self.b.weight = self.a.weight

    def trunk(self, x):
        return F.relu(self.bn3(self.b(F.relu(self.bn2(self.a(super().trunk(x)))))))


class TwoNames(ConvUsedTwice):
    """One module that goes by two names."""

    def __init__(self) -> None:
        super().__init__()
        self.alias = self.same


class WeightReadByName(Net):
    """The forward pass looks at the convolution's weight itself, which folding would change under its eyes."""

    def trunk(self, x):
        return F.relu(self.bn(self.conv(x)) + self.conv.weight.mean())


class NormReadByName(Net):
    def trunk(self, x):
        return F.relu(self.bn(F.relu(self.conv(x))) + self.bn.bias.mean())


class NormByKeyword(Net):
    def trunk(self, x):
        return F.relu(self.bn(input=self.conv(x)))


class Branching(Net):
    """What it does depends on its input, so no graph can hold it."""

    def trunk(self, x):
        acts = super().trunk(x)
        return acts if x.mean() > 0.5 else 2 * acts


class OverRows(Net):
    def trunk(self, x):
        return torch.cat([super(OverRows, self).trunk(x[i : i + 1]) for i in range(x.shape[0])])


class BranchingTwoNames(TwoNames):
    def trunk(self, x):
        return super().trunk(x) * (1 if x.mean() > 0.5 else 2)


class AsksForLength(Net):
    def trunk(self, x):
        assert isinstance(x, Tensor)
        return super().trunk(x) / len(x)


class WithHook(Net):
    """A graph would leave the hook out."""

    def __init__(self) -> None:
        super().__init__()
        self.conv.register_forward_hook(double)


class Parametrized(Net):
    """Its convolution's weight is made anew at every pass."""

    def __init__(self) -> None:
        super().__init__()
        nn.utils.parametrizations.weight_norm(self.conv)


class PlainTensor(Net):
    """A tensor that is neither parameter nor buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.full((1, 3, 1, 1), 0.3, dtype=torch.float64)

    def trunk(self, x):
        return super().trunk(x * self.scale)


def double(module, inputs, output):
    return 2 * output


class TheirNet(nn.Module):
    """A user's own network, which knows nothing of features and head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU())
        self.layer4 = nn.Sequential(nn.Conv2d(6, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU())
        self.fc = nn.Linear(8, 5)

    def forward(self, x):
        return self.fc(self.layer4(self.stem(x)).mean((2, 3)))


def scaled(name):
    return models.build(name, mean=(0.4, 0.5, 0.6), std=(0.2, 0.25, 0.3))


NETS = {
    "resnet18": lambda: models.build("resnet18"),
    "preactresnet18": lambda: models.build("preactresnet18"),
    "wrn-10-1": lambda: models.build("wrn-10-1"),
    "tiny-cnn": lambda: models.build("tiny-cnn"),
    "tiny-cnn, normalised": lambda: scaled("tiny-cnn"),
    "wrn-10-1, normalised": lambda: scaled("wrn-10-1"),
    "wrapped": lambda: models.wrap(TheirNet(), features="layer4", head="fc"),
    "without batch norm": WithoutNorm,
    "with dropout": WithDropout,
    "norm without affine": lambda: Net(affine=False),
    "norm with another eps": lambda: Net(eps=0.3),
    "norm of the batch alone": lambda: Net(track_running_stats=False),
    "norm of the input": NormOfTheInput,
    "head without bias": lambda: Net(bias=False),
    "head of its own": OwnHead,
    "convolution used twice": ConvUsedTwice,
    "convolution read twice": ConvReadTwice,
    "norm used twice": NormUsedTwice,
    "tied weights": TiedWeights,
    "module with two names": TwoNames,
    "weight read by name": WeightReadByName,
    "norm read by name": NormReadByName,
    "norm by keyword": NormByKeyword,
}
UNREADABLE = {
    "branching": Branching,
    "over rows": OverRows,
    "branching, module with two names": BranchingTwoNames,
    "asks for its input's length": AsksForLength,
    "with a hook": WithHook,
    "parametrized": Parametrized,
    "plain tensor": PlainTensor,
}


def stir(model):
    """Weights and statistics away from where they start, so that a wrong fold shows."""
    generator = torch.Generator().manual_seed(7)
    model.double()
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                if module.affine:
                    module.weight.uniform_(0.5, 1.5, generator=generator)
                    module.bias.uniform_(-0.5, 0.5, generator=generator)
                if module.running_var is not None:
                    module.running_mean.normal_(0, 0.3, generator=generator)
                    module.running_var.uniform_(0.5, 2, generator=generator)
            elif isinstance(module, nn.Conv2d | nn.Linear) and module.bias is not None:
                module.bias.uniform_(-0.5, 0.5, generator=generator)
    return model


def images(n=3, size=8):
    return torch.rand(n, 3, size, size, generator=torch.Generator().manual_seed(8), dtype=torch.float64)


def close(a, b):
    gap, peak = (a - b).abs().max().item(), b.abs().max().item()
    return gap <= 1e-12 * max(1.0, peak) and gap <= 1e-9 * peak


def logits_and_gradient(model, x):
    leaf = x.clone().requires_grad_()
    logits = model(leaf)
    weights = torch.linspace(-1, 1, logits.numel(), dtype=logits.dtype).view_as(logits)
    (grad,) = torch.autograd.grad((logits * weights).sum(), leaf)
    return logits.detach(), grad


@pytest.mark.parametrize("name", [*NETS, *UNREADABLE])
def test_the_view_equals_the_model_in_eval_mode_and_so_does_its_input_gradient(name):
    model = stir((NETS | UNREADABLE)[name]()).train()
    view, x = freeze(model), images()
    reference = copy.deepcopy(model).eval()
    expected, expected_grad = logits_and_gradient(reference, x)
    logits, grad = logits_and_gradient(view, x)
    assert close(logits, expected)
    assert close(grad, expected_grad)
    assert expected_grad.abs().max() > 1e-6
    assert close(view.features(x), reference.features(x))
    assert close(view.head(reference.features(x)), expected)


@pytest.mark.parametrize("name", NETS)
def test_what_can_be_read_is_folded(name):
    assert Folding(NETS[name]()).folded


@pytest.mark.parametrize("name", UNREADABLE)
def test_what_cannot_be_read_is_used_as_it_is_and_says_so(name):
    assert not Folding(UNREADABLE[name]()).folded


def test_a_branch_on_the_input_is_taken_for_every_input_anew():
    model = stir(Branching()).eval()
    view = freeze(model)
    for x in (images() * 0.2, 1 - images() * 0.2):
        assert close(view(x), model(x))


@pytest.mark.parametrize("name", [*NETS, *UNREADABLE])
def test_the_view_follows_the_live_weights(name):
    model = stir((NETS | UNREADABLE)[name]())
    fold, x = Folding(model), images()
    before = fold()(x)
    with torch.no_grad():
        for tensor in model.state_dict().values():
            if tensor.is_floating_point():
                tensor.mul_(1.1).add_(0.01)
    after = fold()(x)
    assert close(after, copy.deepcopy(model).eval()(x))
    assert not close(after, before)


def test_the_view_follows_batch_norm_as_it_learns():
    model = stir(models.build("tiny-cnn")).train()
    fold, x = Folding(model), images(8)
    model(x)
    assert close(fold()(x), copy.deepcopy(model).eval()(x))


def test_no_parameter_gets_a_gradient_and_the_view_has_none_to_give():
    model = stir(models.build("wrn-10-1"))
    x = images().requires_grad_()
    freeze(model)(x).sum().backward()
    assert x.grad is not None
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not freeze(model)(images()).requires_grad


def test_making_and_using_a_view_leaves_the_model_as_it_was():
    model = stir(models.build("tiny-cnn")).train()
    model.layer2.bn.eval()
    model.linear.requires_grad_(False)
    before = copy.deepcopy(model.state_dict())
    names = [name for name, _ in model.named_modules()]
    freeze(model)(images())
    assert [name for name, _ in model.named_modules()] == names
    assert [m.training for m in model.modules()].count(False) == 1
    assert [p.requires_grad for p in model.linear.parameters()] == [False, False]
    assert model.layer1.conv.bias is None
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]), name


def test_no_batch_norm_is_left_where_all_stand_behind_convolutions():
    calls = []
    original = F.batch_norm
    model = stir(models.build("resnet18"))
    view = freeze(model)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(F, "batch_norm", lambda *a, **k: (calls.append(1), original(*a, **k))[1])
        view(images())
        assert not calls
        model(images())
    assert len(calls) == 20


def test_the_view_shows_the_linear_layer_behind_the_pooling():
    model = stir(models.build("tiny-cnn"))
    linear = freeze(model).pooled_linear
    assert torch.equal(linear.weight, model.linear.weight)
    assert torch.equal(linear.bias, model.linear.bias)
    assert not linear.weight.requires_grad
    assert freeze(stir(Net(bias=False))).pooled_linear.bias is None
    assert freeze(stir(OwnHead())).pooled_linear is None


def test_dropout_does_nothing_in_the_view_though_the_model_trains():
    model = stir(WithDropout()).train()
    view, x = freeze(model), images()
    assert torch.equal(view(x), view(x))


# -- frozen: the caller's own model, lent


def state_of(model):
    modes = {name: module.training for name, module in model.named_modules()}
    return modes, {name: p.requires_grad for name, p in model.named_parameters()}


@pytest.fixture
def partly():
    """A model in train mode with one norm in eval mode and one layer that is not trained."""
    model = models.build("tiny-cnn").train()
    model.layer2.bn.eval()
    model.layer1.requires_grad_(False)
    return model


def test_inside_frozen_every_module_is_in_eval_mode_and_no_weight_wants_a_gradient(partly):
    with frozen(partly) as net:
        assert net is partly
        modes, flags = state_of(net)
        assert not any(modes.values())
        assert not any(flags.values())


def test_after_frozen_every_mode_and_flag_is_what_it_was(partly):
    before = state_of(partly)
    with frozen(partly):
        pass
    assert state_of(partly) == before
    assert before[0]["layer2.bn"] is False
    assert before[1]["layer1.conv.weight"] is False


def test_after_an_exception_too(partly):
    before = state_of(partly)
    with pytest.raises(ZeroDivisionError), frozen(partly):
        _ = 1 / 0
    assert state_of(partly) == before


def test_frozen_within_frozen_puts_back_what_the_outer_one_set(partly):
    before = state_of(partly)
    with frozen(partly):
        with frozen(partly):
            pass
        assert not any(state_of(partly)[0].values())
    assert state_of(partly) == before


def test_a_module_without_weights_and_a_plain_function_are_lent_as_well():
    with frozen(nn.ReLU()) as net:
        assert not net.training

    def double(x):
        return 2 * x

    with frozen(double) as net:
        assert net is double


def test_a_view_is_lent_as_it_is():
    view = freeze(models.build("tiny-cnn"))
    with frozen(view) as net:
        assert net is view


def test_gradients_that_a_caller_has_gathered_stay(partly):
    partly.linear.weight.grad = torch.ones_like(partly.linear.weight)
    with frozen(partly) as net:
        x = torch.rand(2, 3, 8, 8).requires_grad_()
        net(x).sum().backward()
    assert torch.equal(partly.linear.weight.grad, torch.ones_like(partly.linear.weight))
    assert partly.linear.bias.grad is None


# -- searched: any module, as a search goes through it


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


class Unreadable(TheirNet):
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
    view, x = searched(model), images()
    expected, expected_grad = logits_and_gradient(copy.deepcopy(model).eval(), x)
    logits, grad = logits_and_gradient(view, x)
    assert close(logits, expected)
    assert close(grad, expected_grad)
    assert logits.dtype == torch.float64


@pytest.mark.parametrize("name", THEIRS)
def test_no_batch_norm_is_left_in_what_is_searched(name, monkeypatch):
    view = searched(stir(THEIRS[name]()))
    monkeypatch.setattr(F, "batch_norm", None)
    view(images())


@pytest.mark.parametrize("make", [*UNREADABLE.values(), Unreadable, WithLock, WithHistory])
@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_what_cannot_be_read_is_not_searched_through_a_view(make, dtype):
    assert searched(make(), dtype=dtype) is None


@pytest.mark.parametrize("thing", [lambda x: x, None, freeze(models.build("tiny-cnn"))])
def test_what_is_no_module_has_no_view(thing):
    assert searched(thing) is None


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
    seen, logits = dtypes_seen(searched(model, dtype=torch.bfloat16), x)
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
    seen, logits = dtypes_seen(searched(model, dtype=torch.bfloat16), images().float())
    assert [weight for _, weight, _ in seen] == [torch.float32, *[torch.bfloat16] * (len(seen) - 2), torch.float32]
    assert len(seen) > 3
    assert logits.dtype == torch.float32


def test_two_layers_that_read_the_pixels_are_folded_in_fp32_alone():
    model = ReadsPixelsTwice().eval()
    assert searched(model, dtype=torch.bfloat16) is None
    assert torch.allclose(searched(model)(images().float()), model(images().float()), atol=1e-6)


def test_making_a_view_for_a_search_leaves_the_model_as_it_was():
    model = stir(TheirNet()).train()
    model.stem[1].eval()
    before, state = copy.deepcopy(model.state_dict()), state_of(model)
    searched(model)(images())
    searched(copy.deepcopy(model).float(), dtype=torch.bfloat16)(images().float())
    assert state_of(model) == state
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
