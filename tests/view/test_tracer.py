"""What torch.fx by itself would not see: tensors changed in place while others hold them, and a stop at a layer."""

import copy
import random

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fronts import Straight, by_no_grad, straight
from fused import fused, logits_and_gradient, net, stir
from pixelpart import models
from pixelpart.view.trace import Untraceable
from pixelpart.view.tracer import OPERATIONS
from pixelpart.view.views import Folding, TrainingView, search_view


class Held:
    """Networks in which what is changed goes by another name too."""

    def plus(self, x):
        out = self.b(F.relu(self.a(x)))
        held = out
        out += self.c(out.relu())
        return F.relu(out) + held

    def times(self, x):
        out = self.b(F.relu(self.a(x)))
        held = out
        out *= 2
        return F.relu(out + self.c(held))

    def less(self, x):
        out = self.b(F.relu(self.a(x)))
        held = out.flatten(2)
        out -= 0.5
        return F.relu(out) + held.view(out.shape)

    def over(self, x):
        out = self.b(F.relu(self.a(x)))
        held = [out]
        out /= 3
        return F.relu(out) - held[0]

    def plus_by_a_method(self, x):
        out = F.relu(self.a(x))
        held = 1.5 * out
        return F.relu(held.add_(self.b(out))) + held

    def a_number(self, x):
        """Numbers are not changed in place: the name is given to another."""
        n = x.size(1)
        held = n
        n += 1
        return F.relu(self.b(F.relu(self.a(x)))) * n + held


@pytest.mark.parametrize("fuse", [False, True])
@pytest.mark.parametrize("name", [name for name in vars(Held) if not name.startswith("_")])
def test_a_view_sees_what_the_network_sees(name, fuse):
    model = stir(net(vars(Held)[name])).double().eval()
    x = torch.rand(3, 3, 8, 8, generator=torch.Generator().manual_seed(8), dtype=torch.float64)
    folding = Folding(model, fuse=fuse)
    assert folding.folded
    for mine, theirs in zip(
        logits_and_gradient(folding(), x), logits_and_gradient(copy.deepcopy(model), x), strict=True
    ):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("name", [name for name in vars(Held) if not name.startswith("_")])
def test_so_does_the_training_pass(name):
    model = stir(net(vars(Held)[name])).train()
    x = torch.rand(3, 3, 8, 8, generator=torch.Generator().manual_seed(8))
    expected = model(x)
    assert (TrainingView(model, dtype=torch.bfloat16)(x) - expected).abs().max() < 0.02 * expected.abs().max()


def test_a_convolution_that_is_added_to_in_place_is_still_fused():
    def trunk(self, x):
        first = F.relu(self.a(x))
        out = self.b(F.relu(self.b(first)))
        out += first
        return self.inplace(out)

    assert fused(Folding(net(trunk), fuse=True)) == {"conv_relu": 1, "residual": 1}
    assert fused(Folding(net(trunk), dtype=torch.bfloat16, fuse=True)) == {"stem": 1, "residual": 1}


@pytest.mark.parametrize(
    ("name", "right", "expected"), [("iadd", 2, 9), ("isub", 2, 5), ("ipow", 2, 49), ("imod", 2, 1)]
)
def test_each_operator_is_itself(name, right, expected):
    number = torch.tensor(7)
    assert OPERATIONS[name](number, right) is number
    assert number == expected
    assert OPERATIONS[name](7, right) == expected


class Ending(nn.Module):
    """Its last layer before the pooling is one of torch's own."""

    def __init__(self, last: nn.Module) -> None:
        super().__init__()
        self.first, self.last, self.fc = nn.Conv2d(3, 16, 3, padding=1), last, nn.Linear(16, 4)

    def forward(self, x):
        return self.fc(self.last(F.relu(self.first(x))).mean((2, 3)))


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
@pytest.mark.parametrize("last", [nn.Identity(), nn.ReLU(), nn.BatchNorm2d(16), nn.Conv2d(16, 16, 3)], ids=str)
def test_features_may_end_at_any_layer(last, dtype):
    module = stir(Ending(copy.deepcopy(last))).eval()
    folding = Folding(models.wrap(module, features="last", head="fc"), dtype=dtype)
    x = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(8))
    assert folding.folded
    close = {} if dtype is None else {"rtol": 0.02, "atol": 0.01}
    torch.testing.assert_close(folding()(x), module(x), **close)


# -- draws


@pytest.mark.parametrize("draw", [lambda: torch.rand(()).item(), random.random])
def test_a_network_that_leaves_layers_out_by_chance_goes_on_to_do_so(draw):
    """Stochastic depth, say: read once, a layer would be there in every step or in none."""

    def trunk(self, x):
        x = F.relu(self.a(x))
        return x if self.training and draw() < 0.5 else F.relu(self.b(x))

    made = net(trunk)
    assert Folding(made, dtype=torch.bfloat16).folded  # in eval mode all layers are there
    with pytest.raises(Untraceable, match="draws numbers of its own"):
        TrainingView(made.train(), dtype=torch.bfloat16)


# -- gradients that are not those of what is computed


@pytest.mark.parametrize("through", [straight, by_no_grad])
@torch.no_grad()
def test_a_network_with_gradients_of_its_own_is_searched_as_it_is(through):
    model = models.build("tiny-cnn", num_classes=10).eval()
    assert search_view(model) is not None
    assert search_view(Straight(through, model)) is None


@pytest.mark.parametrize("through", [straight, by_no_grad])
def test_it_is_trained_with_its_own_gradient(through):
    made = net(lambda self, x: F.relu(self.b(through(torch.sigmoid(self.a(x))))))
    assert not Folding(made, dtype=torch.bfloat16).folded
    with pytest.raises(Untraceable, match="gradients of its own"):
        TrainingView(made, dtype=torch.bfloat16)
