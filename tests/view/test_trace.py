"""Where torch.fx by itself gives a graph that does not compute what the model does."""

import copy
import random

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pixelpart import models
from pixelpart.view.check import search_view
from pixelpart.view.trace import IN_PLACE, Untraceable
from pixelpart.view.views import Folding, TrainingView
from small_nets import Convolutions, images, logits_and_gradient, randomised, with_trunk

# -- in-place operations: another reference to the tensor sees the change


def plus(self, x):
    out = self.b(F.relu(self.a(x)))
    held = out
    out += self.c(out.relu())
    return F.relu(out) + held


def minus_a_view(self, x):
    out = self.b(F.relu(self.a(x)))
    held = out.flatten(2)
    out -= 0.5
    return F.relu(out) + held.view(out.shape)


def by_method(self, x):
    out = F.relu(self.a(x))
    held = 1.5 * out
    return F.relu(held.add_(self.b(out))) + held


def number(self, x):
    """Numbers are immutable: `n += 1` binds the name to another."""
    n = x.size(1)
    held = n
    n += 1
    return F.relu(self.b(F.relu(self.a(x)))) * n + held


@pytest.mark.parametrize("trunk", [plus, minus_a_view, by_method, number])
def test_in_place_operations_stay_in_place(trunk):
    model, x = randomised(with_trunk(Convolutions, trunk)), images()
    expected = logits_and_gradient(copy.deepcopy(model).double().eval(), x)
    for fuse in (False, True):
        folding = Folding(copy.deepcopy(model).double(), fuse=fuse)
        assert folding.folded
        for a, b in zip(logits_and_gradient(folding(), x), expected, strict=True):
            torch.testing.assert_close(a, b)
    trained = TrainingView(model.train(), dtype=torch.bfloat16)(x.float())
    assert (trained - expected[0]).abs().max() < 0.02 * expected[0].abs().max()


@pytest.mark.parametrize(("name", "expected"), [("iadd", 9), ("isub", 5), ("ipow", 49), ("imod", 1)])
def test_in_place_operators_change_tensors_and_return_numbers(name, expected):
    tensor = torch.tensor(7)
    assert IN_PLACE[name](tensor, 2) is tensor
    assert tensor == expected == IN_PLACE[name](7, 2)


# -- hooks that end a trace at a layer


class EndsIn(nn.Module):
    def __init__(self, last: nn.Module) -> None:
        super().__init__()
        self.first, self.last, self.fc = nn.Conv2d(3, 16, 3, padding=1), last, nn.Linear(16, 4)

    def forward(self, x):
        return self.fc(self.last(F.relu(self.first(x))).mean((2, 3)))


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
@pytest.mark.parametrize("last", [nn.ReLU(), nn.BatchNorm2d(16), nn.Conv2d(16, 16, 3)], ids=str)
def test_features_of_a_wrapped_model_may_end_at_any_layer(last, dtype):
    module, x = randomised(EndsIn(copy.deepcopy(last))).eval(), images(dtype=torch.float32)
    folding = Folding(models.wrap(module, features="last", head="fc"), dtype=dtype)
    assert folding.folded
    torch.testing.assert_close(folding()(x), module(x), **({} if dtype is None else {"rtol": 0.02, "atol": 0.01}))


# -- random draws and custom gradients


@pytest.mark.parametrize("draw", [lambda: torch.rand(()).item(), random.random])
def test_a_model_that_drops_layers_at_random_is_not_traced_in_train_mode(draw):
    def trunk(self, x):
        x = F.relu(self.a(x))
        return x if self.training and draw() < 0.5 else F.relu(self.b(x))

    model = with_trunk(Convolutions, trunk)
    assert Folding(model, dtype=torch.bfloat16).folded  # in eval mode all layers are used
    with pytest.raises(Untraceable, match="draws random numbers"):
        TrainingView(model.train(), dtype=torch.bfloat16)


class StraightThrough(torch.autograd.Function):
    """Rounds to 16 levels, with the gradient of the identity."""

    @staticmethod
    def forward(ctx, x):
        return (15 * x).round() / 15

    @staticmethod
    def backward(ctx, grad):
        return grad


def straight_through_by_no_grad(x):
    with torch.no_grad():
        rest = (15 * x).round() / 15 - x
    return x + rest


@pytest.mark.parametrize("quantise", [StraightThrough.apply, straight_through_by_no_grad])
@torch.no_grad()
def test_a_model_with_custom_gradients_is_not_traced(quantise):
    model = with_trunk(Convolutions, lambda self, x: F.relu(self.b(quantise(torch.sigmoid(self.a(x))))))
    assert search_view(model) is None
    assert not Folding(model, dtype=torch.bfloat16).folded
    with pytest.raises(Untraceable, match="custom gradients"):
        TrainingView(model, dtype=torch.bfloat16)
