"""`borrowed`: eval mode and no weight gradients inside, the caller's model unchanged afterwards."""

import contextlib

import pytest
import torch

from pixelpart import models
from pixelpart.view.borrow import borrowed
from pixelpart.view.views import Folding
from small_nets import modes_and_flags


@pytest.fixture
def mixed():
    """A model in train mode with one norm in eval mode and one frozen layer."""
    model = models.build("tiny-cnn").train()
    model.layer2.bn.eval()
    model.layer1.requires_grad_(False)
    return model


@pytest.mark.parametrize("error", [None, ZeroDivisionError])
def test_eval_mode_without_gradients_inside_and_as_before_afterwards_also_after_an_exception(mixed, error):
    before = modes_and_flags(mixed)
    with contextlib.suppress(ZeroDivisionError), borrowed(mixed) as net:
        with borrowed(mixed):
            pass
        assert net is mixed
        assert not any(value for values in modes_and_flags(net) for value in values.values())
        if error:
            raise error
    assert modes_and_flags(mixed) == before
    assert before[0]["layer2.bn"] is False
    assert before[1]["layer1.conv.weight"] is False


def test_functions_and_views_are_borrowed_unchanged():
    for model in (lambda x: 2 * x, Folding(models.build("tiny-cnn"))()):
        with borrowed(model) as net:
            assert net is model


def test_accumulated_gradients_stay(mixed):
    mixed.linear.weight.grad = torch.ones_like(mixed.linear.weight)
    with borrowed(mixed) as net:
        net(torch.rand(2, 3, 8, 8).requires_grad_()).sum().backward()
    assert torch.equal(mixed.linear.weight.grad, torch.ones_like(mixed.linear.weight))
    assert mixed.linear.bias.grad is None
