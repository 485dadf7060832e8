"""`frozen`: the caller's own model, lent, comes back as it was."""

import pytest
import torch
from torch import nn

from odd_networks import state_of
from pixelpart import models
from pixelpart.view.borrow import borrowed
from pixelpart.view.views import Folding


@pytest.fixture
def partly():
    """A model in train mode with one norm in eval mode and one layer that is not trained."""
    model = models.build("tiny-cnn").train()
    model.layer2.bn.eval()
    model.layer1.requires_grad_(False)
    return model


def test_inside_frozen_every_module_is_in_eval_mode_and_no_weight_wants_a_gradient(partly):
    with borrowed(partly) as net:
        assert net is partly
        modes, flags = state_of(net)
        assert not any(modes.values())
        assert not any(flags.values())


def test_after_frozen_every_mode_and_flag_is_what_it_was(partly):
    before = state_of(partly)
    with borrowed(partly):
        pass
    assert state_of(partly) == before
    assert before[0]["layer2.bn"] is False
    assert before[1]["layer1.conv.weight"] is False


def test_after_an_exception_too(partly):
    before = state_of(partly)
    with pytest.raises(ZeroDivisionError), borrowed(partly):
        _ = 1 / 0
    assert state_of(partly) == before


def test_frozen_within_frozen_puts_back_what_the_outer_one_set(partly):
    before = state_of(partly)
    with borrowed(partly):
        with borrowed(partly):
            pass
        assert not any(state_of(partly)[0].values())
    assert state_of(partly) == before


def test_a_module_without_weights_and_a_plain_function_are_lent_as_well():
    with borrowed(nn.ReLU()) as net:
        assert not net.training

    def double(x):
        return 2 * x

    with borrowed(double) as net:
        assert net is double


def test_a_view_is_lent_as_it_is():
    view = Folding(models.build("tiny-cnn"))()
    with borrowed(view) as net:
        assert net is view


def test_gradients_that_a_caller_has_gathered_stay(partly):
    partly.linear.weight.grad = torch.ones_like(partly.linear.weight)
    with borrowed(partly) as net:
        x = torch.rand(2, 3, 8, 8).requires_grad_()
        net(x).sum().backward()
    assert torch.equal(partly.linear.weight.grad, torch.ones_like(partly.linear.weight))
    assert partly.linear.bias.grad is None
