"""The attack's view of a model against the model itself in eval mode, in float64: what is folded changes no number."""

import copy

import pytest
import torch
import torch.nn.functional as F

from odd_networks import (
    NETS,
    UNREADABLE,
    Branching,
    Net,
    OwnHead,
    WithDropout,
    close,
    images,
    logits_and_gradient,
    stir,
)
from pixelpart import models
from pixelpart.view.views import Folding


@pytest.mark.parametrize("name", [*NETS, *UNREADABLE])
def test_the_view_equals_the_model_in_eval_mode_and_so_does_its_input_gradient(name):
    model = stir((NETS | UNREADABLE)[name]()).train()
    view, x = Folding(model)(), images()
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
    view = Folding(model)()
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
    Folding(model)()(x).sum().backward()
    assert x.grad is not None
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not Folding(model)()(images()).requires_grad


def test_making_and_using_a_view_leaves_the_model_as_it_was():
    model = stir(models.build("tiny-cnn")).train()
    model.layer2.bn.eval()
    model.linear.requires_grad_(False)
    before = copy.deepcopy(model.state_dict())
    names = [name for name, _ in model.named_modules()]
    Folding(model)()(images())
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
    view = Folding(model)()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(F, "batch_norm", lambda *a, **k: (calls.append(1), original(*a, **k))[1])
        view(images())
        assert not calls
        model(images())
    assert len(calls) == 20


def test_the_view_shows_the_linear_layer_behind_the_pooling():
    model = stir(models.build("tiny-cnn"))
    linear = Folding(model)().pooled_linear
    assert torch.equal(linear.weight, model.linear.weight)
    assert torch.equal(linear.bias, model.linear.bias)
    assert not linear.weight.requires_grad
    assert Folding(stir(Net(bias=False)))().pooled_linear.bias is None
    assert Folding(stir(OwnHead()))().pooled_linear is None


def test_dropout_does_nothing_in_the_view_though_the_model_trains():
    model = stir(WithDropout()).train()
    view, x = Folding(model)(), images()
    assert torch.equal(view(x), view(x))
