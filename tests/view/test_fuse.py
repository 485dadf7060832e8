"""Fused networks against the same networks unfused: logits and the images' gradient."""

import copy
from collections import Counter

import pytest
import torch
import torch.nn.functional as F

from pixelpart import models
from pixelpart.view.views import Folding
from small_nets import Convolutions, UserNet, images, logits_and_gradient, randomised, with_trunk

BF16 = torch.bfloat16


def net(trunk, **b):
    return with_trunk(Convolutions, trunk, **b)


def fused(folding):
    """The number of nodes in the features for each operation of pixelpart.kernels."""
    names = [str(node.target) for node in folding._features.structure.graph.nodes if node.op == "call_function"]
    return dict(Counter(name.split(".")[1] for name in names if name.startswith("pixelpart.")))


def compare(model, dtype=None):
    """Asserts that fused equals unfused; returns what was fused."""
    model = randomised(model)
    if dtype is None:
        model.double()
    model.to(memory_format=torch.channels_last)  # as in training, and so that both round in the same order
    x = images(dtype=next(model.parameters()).dtype).contiguous(memory_format=torch.channels_last)
    folding, reference = Folding(model, dtype=dtype, fuse=True), Folding(model, dtype=dtype)
    assert folding.folded
    assert fused(reference) == {}
    exact = logits_and_gradient(Folding(copy.deepcopy(model).double())(), x.double())
    for ours, unfused, right in zip(
        logits_and_gradient(folding(), x), logits_and_gradient(reference(), x), exact, strict=True
    ):
        assert ours.dtype == unfused.dtype
        gap, peak = (ours - unfused).abs().max().item(), unfused.abs().max().item()
        assert peak > 1e-6
        if dtype is not None and "residual" in fused(folding):  # adds biases first, which rounds differently
            assert (ours - right).norm() <= 2.5 * (unfused - right).norm()
        else:
            assert gap <= peak * (1e-12 if dtype is None else 1e-4)
    if dtype is None:
        torch.testing.assert_close(folding()(x), copy.deepcopy(model).eval()(x))
    return fused(folding)


@pytest.mark.parametrize(
    ("make", "in_fp32", "in_bf16"),
    [
        (lambda: models.build("resnet18"), {"conv_relu": 1, "residual": 8}, {"stem": 1, "residual": 8}),
        (lambda: models.build("wrn-10-1"), {"conv_relu": 3}, {"conv_relu": 3}),
        (lambda: models.build("tiny-cnn"), {"conv_relu": 4}, {"conv_relu": 3}),
        (
            lambda: models.wrap(UserNet(), features="down", head="fc"),
            {"conv_relu": 2, "conv_add_relu": 1},
            {"stem": 1, "conv_relu": 1, "conv_add_relu": 1},
        ),
    ],
    ids=["resnet18", "wrn", "tiny-cnn", "wrapped"],
)
def test_real_networks_compute_the_same_fused(make, in_fp32, in_bf16):
    assert compare(make()) == in_fp32
    assert compare(make(), BF16) == in_bf16


RELUS = {
    "F.relu": lambda self, t: F.relu(t),
    "torch.relu_": lambda self, t: torch.relu_(t),
    "method": lambda self, t: t.relu(),
    "in-place method": lambda self, t: t.relu_(),
    "in-place F.relu": lambda self, t: F.relu(t, inplace=True),
    "module": lambda self, t: self.relu(t),
    "in-place module": lambda self, t: self.inplace(t),
}
SUMS = {
    "conv + other": lambda s, t: s + t,
    "other + conv": lambda s, t: t + s,
    "torch.add": torch.add,
    "method": lambda s, t: s.add(t),
    "in-place method": lambda s, t: s.add_(t),
}


@pytest.mark.parametrize("name", RELUS)
def test_every_form_of_a_relu_is_fused(name):
    assert compare(net(lambda self, x: RELUS[name](self, self.b(self.a(x))))) == {"conv_relu": 1}


@pytest.mark.parametrize("name", SUMS)
def test_every_form_of_a_sum_is_fused(name):
    def trunk(self, x):
        out = self.a(x)
        return F.relu(SUMS[name](self.b(out), out))

    assert compare(net(trunk)) == {"conv_add_relu": 1}


@pytest.mark.parametrize(
    "b", [{"stride": 2}, {"kernel_size": 5, "padding": 2}, {"kernel_size": 1, "padding": 0}, {"padding": 3}], ids=str
)
def test_stride_padding_and_kernel_are_kept(b):
    assert compare(net(lambda self, x: F.relu(self.b(self.a(x))), **b)) == {"conv_relu": 1}
    assert compare(net(lambda self, x: F.relu(self.b(F.relu(self.a(x)))), **b), BF16) == {"stem": 1, "conv_relu": 1}


@pytest.mark.parametrize(
    "b", [{"groups": 2}, {"dilation": 2}, {"padding": "same"}, {"padding_mode": "reflect"}, {"bias": False}], ids=str
)
def test_other_convolutions_are_not_fused(b):
    assert compare(net(lambda self, x: F.relu(self.b(self.a(x))), **b)) == {}


# -- networks in which a value between convolution and ReLU is read, changed or scaled


def sum_read_twice(self, x):
    first = self.a(x)
    total = self.b(first) + first
    return F.relu(total) + total


def sum_with_alpha(self, x):
    out = self.a(x)
    return F.relu(torch.add(self.b(out), out, alpha=2))


def keyword_input(self, x):
    return self.relu(input=self.b(input=self.a(x)))


def in_place_sum_with_unused_result(self, x):
    first = self.a(x)
    out = self.b(first)
    out.add_(first)
    return F.relu(out)


@pytest.mark.parametrize(
    "trunk",
    [sum_read_twice, sum_with_alpha, keyword_input, in_place_sum_with_unused_result],
)
def test_other_networks_are_not_fused_and_compute_the_same(trunk):
    assert compare(net(trunk)) == {}
    assert compare(net(trunk), BF16) == {"stem": 1}


def added_tensor_changed_in_place(self, x):
    """The sum must be computed before the change."""
    out = F.relu(self.a(x))
    added = 2 * out
    total = self.b(out) + added
    added.mul_(3)
    return F.relu(total) + added


def broadcast_convolution(self, x):
    out = F.relu(self.a(x))
    return F.relu(self.c(out.mean((2, 3), keepdim=True)) + out)


@pytest.mark.parametrize(
    ("trunk", "expected"),
    [
        (added_tensor_changed_in_place, {"conv_relu": 1, "conv_add_relu": 1}),
        (broadcast_convolution, {"conv_relu": 1, "conv_add_relu": 1}),
    ],
)
def test_order_and_broadcasting_are_kept(trunk, expected):
    assert compare(net(trunk)) == expected
    compare(net(trunk), BF16)


# -- residual blocks


def block(self, out):
    return F.relu(self.b(F.relu(self.b(out))) + out)


def one_block(self, x):
    return block(self, F.relu(self.a(x)))


def two_blocks(self, x):
    return block(self, one_block(self, x))


def with_shortcut(self, x):
    out = F.relu(self.a(x))
    return F.relu(self.b(F.relu(self.b(out))) + self.c(out))


def without_relu_before(self, x):
    return block(self, self.a(x))


def summed_in_place(self, x):
    first = F.relu(self.a(x))
    out = self.b(F.relu(self.b(first)))
    out += first
    return self.inplace(out)


def output_read_elsewhere(self, x):
    out = one_block(self, x)
    return block(self, out) + self.c(out.clone())


@pytest.mark.parametrize(
    ("trunk", "flags"),
    [
        (one_block, [(True, False)]),
        (two_blocks, [(True, True), (True, False)]),
        (with_shortcut, [(True, False)]),
        (without_relu_before, [(False, False)]),
        (summed_in_place, [(True, False)]),
        (output_read_elsewhere, [(True, False)]),
    ],
)
def test_a_residual_block_is_one_operation(trunk, flags):
    """The flags: whether its input is the output of a ReLU; whether all readers apply the gradient of its own ReLU."""
    assert compare(net(trunk))["residual"] == len(flags)
    assert compare(net(trunk), BF16)["residual"] == len(flags)
    nodes = Folding(net(trunk), fuse=True)._features.structure.graph.nodes
    assert [node.args[8:] for node in nodes if str(node.target) == "pixelpart.residual.default"] == flags


def other_padding(self, x):
    out = F.relu(self.a(x))
    return F.relu(self.b(F.relu(self.c(out))) + out)


def inner_read_twice(self, x):
    out = F.relu(self.a(x))
    inner = F.relu(self.b(out))
    return F.relu(self.b(inner) + out) + inner


def shortcut_of_another_tensor(self, x):
    out = F.relu(self.a(x))
    return F.relu(self.b(F.relu(self.b(out))) + self.c(2 * out))


def input_read_elsewhere(self, x):
    out = F.relu(self.a(x))
    inner = F.relu(self.b(out))
    more = out * 2
    return F.relu(self.b(inner) + out) + more


@pytest.mark.parametrize(
    "trunk",
    [other_padding, inner_read_twice, shortcut_of_another_tensor, input_read_elsewhere],
)
def test_other_blocks_are_not_fused_into_one(trunk):
    for dtype in (None, BF16):
        found = compare(net(trunk), dtype)
        assert "residual" not in found
        assert found["conv_add_relu"] == 1
