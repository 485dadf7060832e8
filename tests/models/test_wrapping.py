import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pixelpart.errors import UserError
from pixelpart.models import wrap
from pixelpart.view.views import Folding


class Net(nn.Module):
    """A user's network: pooling and a linear layer, nothing called features or head."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 4, 3, stride=4), nn.BatchNorm2d(4), nn.ReLU(inplace=True))
        self.body = nn.Sequential(nn.Conv2d(4, 6, 3), nn.ReLU())
        self.unused = nn.ReLU()
        self.fc = nn.Linear(6, 5)

    def embed(self, x):
        return self.body(self.stem(x))

    def classify(self, acts):
        return self.fc(F.adaptive_avg_pool2d(acts, 1).flatten(1))

    def forward(self, x):
        return self.classify(self.embed(x))


@pytest.fixture
def net():
    return Net()


@pytest.fixture
def x():
    return torch.rand(3, 3, 32, 32)


WAYS = {
    "names of modules": lambda net: {"features": "body", "head": "fc"},
    "the name of a module inside": lambda net: {"features": "body.1", "head": "fc"},
    "names of methods": lambda net: {"features": "embed", "head": "classify"},
    "methods": lambda net: {"features": net.embed, "head": net.classify},
    "functions": lambda net: {
        "features": lambda x: net.body(net.stem(x)),
        "head": lambda acts: net.fc(acts.mean((2, 3))),
    },
}


@pytest.mark.parametrize("way", WAYS)
def test_a_wrapped_module_equals_the_module(way, net, x):
    model = wrap(net, **WAYS[way](net))
    net.eval()
    torch.testing.assert_close(model.features(x), net.embed(x))
    torch.testing.assert_close(model(x), net(x))
    torch.testing.assert_close(model.head(model.features(x)), net(x))


def test_a_linear_head_is_a_pooled_linear(net):
    assert wrap(net, features="body", head="fc").pooled_linear is net.fc
    assert wrap(net, features="body", head=net.fc).pooled_linear is net.fc
    assert wrap(net, features="body", head="classify").pooled_linear is None


@pytest.mark.parametrize("way", WAYS)
def test_a_copy_uses_its_own_weights(way, net, x):
    model = wrap(net.eval(), **WAYS[way](net))
    before, twin = model(x), copy.deepcopy(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert (model.head(model.features(x)) == 0).all()
    torch.testing.assert_close(twin.head(twin.features(x)), before)
    twin.train().features(x)  # the copy's own mode and statistics, nothing of the original
    assert not net.stem[1].training
    assert net.stem[1].num_batches_tracked == 0
    assert twin.module.stem[1].num_batches_tracked == 1


@pytest.mark.parametrize("way", ["names of modules", "names of methods"])
def test_a_folded_view_equals_the_model(way, net, x):
    model = wrap(net, **WAYS[way](net))
    model.train()(x)
    torch.testing.assert_close(Folding(model)()(x), model.eval()(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("training", [True, False])
def test_wrapping_leaves_no_trace(training, net):
    net.train(training)
    net.fc.bias.requires_grad_(False)
    state, flags = copy.deepcopy(net.state_dict()), [p.requires_grad for p in net.parameters()]
    rng = torch.get_rng_state()
    model = wrap(net, features="body", head="fc")
    assert all(torch.equal(state[key], value) for key, value in net.state_dict().items())
    model.features(torch.rand(1, 3, 32, 32, generator=torch.Generator()))
    assert torch.equal(torch.get_rng_state(), rng)
    assert model.training == net.training == net.stem[1].training == training
    assert [p.requires_grad for p in net.parameters()] == flags
    with pytest.raises(RuntimeError):
        model.features(torch.rand(1, 4, 32, 32))
    assert not any(module._forward_hooks for module in net.modules())


def test_a_wrong_head_is_refused(net):
    with pytest.raises(UserError, match=r"differs from Net\(x\) by"):
        wrap(net, features="body", head=lambda acts: net.fc(acts.amax((2, 3))))
    with pytest.raises(UserError, match=r"has shape \(2, 6\) and Net\(x\) \(2, 5\)"):
        wrap(net, features="body", head=lambda acts: acts.mean((2, 3)))
    with pytest.raises(UserError, match="of Net fails"):
        wrap(net, features="stem", head="fc")


@pytest.mark.parametrize("between", [nn.Dropout(0.5), nn.BatchNorm1d(6)])
def test_dropout_or_a_norm_between_features_and_head_is_not_ignored(between):
    class Between(Net):
        def classify(self, acts):
            return self.fc(self.unused(acts.mean((2, 3))))

    net = Between()
    net.unused = between
    state, rng = copy.deepcopy(net.state_dict()), torch.get_rng_state()
    with pytest.raises(UserError, match=r"differs from Between\(x\) by .* in train mode"):
        wrap(net, features="body", head="fc")
    wrap(net, features="body", head="classify")
    wrap(net, features="body", head="classify", example=torch.zeros(1, 3, 32, 32))  # too few for batch norm to train on
    assert all(torch.equal(state[key], value) for key, value in net.state_dict().items())
    assert torch.equal(torch.get_rng_state(), rng)


@pytest.mark.parametrize("settings", [{"features": "nobody", "head": "fc"}, {"features": "body", "head": "nobody"}])
def test_an_unknown_name_is_an_error_with_the_choices(net, settings):
    with pytest.raises(UserError, match="'nobody'; choose from body, fc, stem"):
        wrap(net, **settings)


def test_a_head_or_features_that_return_a_tuple_are_refused(net):
    with pytest.raises(UserError, match=r"head\(features\(x\)\) returns a tuple, not logits"):
        wrap(net, features="embed", head=lambda acts: (net.classify(acts), None))
    with pytest.raises(UserError, match=r"of Net fails: 'tuple' object has no attribute 'mean'"):
        wrap(net, features=lambda x: (net.embed(x), None), head=net.fc)


def test_an_example_is_needed_for_other_image_sizes():
    class Strict(Net):
        def forward(self, x):
            assert x.shape[-1] == 48, "48 pixels only"
            return super().forward(x)

    net = Strict()
    with pytest.raises(UserError, match="pass an example to wrap"):
        wrap(net, features="embed", head="fc")
    x = torch.rand(1, 3, 48, 48)
    torch.testing.assert_close(wrap(net, features="embed", head="fc", example=x).eval()(x), net.eval()(x))


def test_only_modules_are_wrapped():
    with pytest.raises(UserError, match=r"wrap takes an nn\.Module, not a dict"):
        wrap({})
