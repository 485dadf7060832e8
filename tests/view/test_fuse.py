"""Fused networks against the same networks unfused: logits and the images' gradient, whatever was fused in them."""

import pytest
import torch
import torch.nn.functional as F

from fused import TheirNet, check, net, stir
from pixelpart import models
from pixelpart.view.views import Folding

BF16 = torch.bfloat16


REAL = {
    "resnet18": ({"conv_relu": 1, "residual": 8}, {"stem": 1, "residual": 8}),
    "preactresnet18": ({"conv_relu": 8}, {"conv_relu": 8}),
    "wrn-10-1": ({"conv_relu": 3}, {"conv_relu": 3}),
    "tiny-cnn": ({"conv_relu": 4}, {"conv_relu": 3}),
}


@pytest.mark.parametrize("name", REAL)
def test_the_networks_here_compute_the_same_fused(name):
    assert check(models.build(name)) == REAL[name][0]
    assert check(models.build(name), BF16) == REAL[name][1]


def test_so_does_one_with_normalisation_inside():
    assert check(models.build("tiny-cnn", mean=(0.4, 0.5, 0.6), std=(0.2, 0.25, 0.3)), BF16) == {"conv_relu": 3}


def test_so_does_a_users_own():
    assert check(models.wrap(TheirNet(), features="down", head="fc")) == {"conv_relu": 2, "conv_add_relu": 1}
    wrapped = models.wrap(TheirNet(), features="down", head="fc")
    assert check(wrapped, BF16) == {"stem": 1, "conv_relu": 1, "conv_add_relu": 1}


def test_every_way_to_write_a_relu_is_seen():
    for relu in (
        F.relu,
        F.relu_,
        torch.relu,
        torch.relu_,
        lambda t: t.relu(),
        lambda t: t.relu_(),
        lambda t: F.relu(t, inplace=True),
    ):
        assert check(net(lambda self, x, relu=relu: relu(self.b(self.a(x))))) == {"conv_relu": 1}
    for name in ("relu", "inplace"):
        assert check(net(lambda self, x, name=name: getattr(self, name)(self.b(self.a(x))))) == {"conv_relu": 1}


def test_every_way_to_write_a_sum_is_seen():
    for add in (
        lambda s, t: s + t,
        lambda s, t: t + s,
        torch.add,
        lambda s, t: s.add(t),
        lambda s, t: s.add_(t),
        lambda s, t: t.add(s),
    ):

        def trunk(self, x, add=add):
            out = self.a(x)
            return F.relu(add(self.b(out), out))

        assert check(net(trunk)) == {"conv_add_relu": 1}


def test_of_two_convolutions_in_a_sum_the_first_is_fused():
    def trunk(self, x):
        out = F.relu(self.a(x))
        return F.relu(self.b(out) + self.c(out))

    assert check(net(trunk)) == {"conv_relu": 1, "conv_add_relu": 1}


@pytest.mark.parametrize(
    "b", [{"stride": 2}, {"kernel_size": 5, "padding": 2}, {"kernel_size": 1, "padding": 0}, {"padding": 3}], ids=str
)
def test_stride_padding_and_kernel_are_kept(b):
    assert check(net(lambda self, x: F.relu(self.b(self.a(x))), **b)) == {"conv_relu": 1}
    assert check(net(lambda self, x: F.relu(self.b(F.relu(self.a(x)))), **b), BF16) == {"stem": 1, "conv_relu": 1}


def test_the_first_convolution_becomes_a_stem_with_or_without_a_relu():
    assert check(net(lambda self, x: F.relu(self.a(x))), BF16) == {"stem": 1}
    assert check(net(lambda self, x: self.b(self.a(x))), BF16) == {"stem": 1}

    def read_twice(self, x):
        out = self.a(x)
        return F.relu(out) + out

    def changed_in_place(self, x):
        return self.b(self.a(x).add_(1))

    assert check(net(read_twice), BF16) == {"stem": 1}
    assert check(net(changed_in_place), BF16) == {"stem": 1}


@pytest.mark.parametrize(
    "b",
    [
        {"groups": 2},
        {"dilation": 2},
        {"padding": "same"},
        {"padding_mode": "reflect"},
        {"padding_mode": "circular"},
        {"bias": False},
        {"kernel_size": (3, 1)},
        {"kernel_size": (3, 1), "padding": (1, 0)},
        {"stride": (1, 2)},
    ],
    ids=str,
)
def test_a_convolution_that_the_operations_do_not_stand_for_is_left(b):
    expected = {"conv_relu": 1} if b == {"kernel_size": (3, 1)} else {}  # any kernel with equal settings both ways
    assert check(net(lambda self, x: F.relu(self.b(self.a(x))), **b)) == expected


class Left:
    """Networks in which something between convolution and ReLU is read, changed or weighed."""

    def read_twice(self, x):
        out = self.b(self.a(x))
        return F.relu(out) + out

    def read_twice_by_a_sum(self, x):
        out = self.b(self.a(x))
        return F.relu(out + out)

    def sum_read_twice(self, x):
        first = self.a(x)
        total = self.b(first) + first
        return F.relu(total) + total

    def sum_with_a_number(self, x):
        return F.relu(self.b(self.a(x)) + 0.3)

    def sum_with_alpha(self, x):
        out = self.a(x)
        return F.relu(torch.add(self.b(out), out, alpha=2))

    def sum_with_alpha_of_a_method(self, x):
        out = self.a(x)
        return F.relu(self.b(out).add(out, alpha=-1))

    def sum_by_name(self, x):
        out = self.a(x)
        return F.relu(torch.add(input=self.b(out), other=out))

    def relu_by_name(self, x):
        return torch.relu(input=self.b(self.a(x)))

    def relu_module_by_name(self, x):
        return self.relu(input=self.b(self.a(x)))

    def input_by_name(self, x):
        return F.relu(self.b(input=self.a(x)))

    def difference(self, x):
        out = self.a(x)
        return F.relu(self.b(out) - out)

    def leaky(self, x):
        return F.leaky_relu(self.b(self.a(x)))

    def relu_in_place_unread(self, x):
        out = self.b(self.a(x))
        self.inplace(out)
        return self.c(out)

    def relu_method_in_place_unread(self, x):
        out = self.b(self.a(x))
        out.relu_()
        return self.c(out)

    def sum_in_place_unread(self, x):
        first = self.a(x)
        out = self.b(first)
        out.add_(first)
        return F.relu(out)

    def relu_of_a_sum_in_place_unread(self, x):
        first = self.a(x)
        out = self.b(first) + first
        torch.relu_(out)
        return out


@pytest.mark.parametrize("name", [name for name in vars(Left) if not name.startswith("_")])
def test_what_cannot_be_fused_is_left_and_computes_the_same(name):
    trunk = vars(Left)[name]
    assert check(net(trunk)) == {}
    assert check(net(trunk), BF16) == {"stem": 1}


def test_what_is_added_is_read_where_the_sum_stood():
    """It is changed in place between the sum and the ReLU."""

    def trunk(self, x):
        out = F.relu(self.a(x))
        added = 2 * out
        total = self.b(out) + added
        added.mul_(3)
        return F.relu(total) + added

    assert check(net(trunk)) == {"conv_relu": 1, "conv_add_relu": 1}


def test_one_module_called_twice_is_fused_twice():
    assert check(net(lambda self, x: F.relu(self.b(F.relu(self.b(self.a(x))))))) == {"conv_relu": 2}


def test_a_sum_with_an_image_of_one_pixel_computes_the_same():
    """Added to all pixels alike: the gradient of what is added is a sum over them."""

    def trunk(self, x):
        out = F.relu(self.a(x))
        return F.relu(self.b(out) + out.mean((2, 3), keepdim=True))

    check(net(trunk))
    check(net(trunk), BF16)


def test_so_does_a_convolution_of_one_pixel_added_to_an_image():
    def trunk(self, x):
        out = F.relu(self.a(x))
        return F.relu(self.c(out.mean((2, 3), keepdim=True)) + out)

    assert check(net(trunk)) == {"conv_relu": 1, "conv_add_relu": 1}
    assert check(net(trunk), BF16) == {"stem": 1, "conv_add_relu": 1}


def test_a_fused_view_follows_the_live_weights_and_shows_another_model():
    model, other = stir(models.build("tiny-cnn")), stir(models.build("tiny-cnn"))
    x = torch.rand(2, 3, 16, 16)
    folding = Folding(model, dtype=BF16, fuse=True)
    with torch.no_grad():
        for tensor in other.parameters():
            tensor.mul_(1.3)
    expected = Folding(other, dtype=BF16)()(x)
    assert not torch.equal(folding()(x), expected)
    assert torch.equal(folding(other)(x), expected)
    with torch.no_grad():
        for tensor in model.parameters():
            tensor.mul_(1.3)
    assert torch.equal(folding()(x), expected)


def test_no_weight_gets_a_gradient_through_a_fused_view():
    model = stir(models.build("resnet18"))
    x = torch.rand(1, 3, 8, 8).requires_grad_()
    Folding(model, dtype=BF16, fuse=True)()(x).sum().backward()
    assert x.grad is not None
    assert all(parameter.grad is None for parameter in model.parameters())
