"""Residual blocks as one operation, against the same networks unfused; and what only looks like one."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fused import check, net, stir
from pixelpart.view.views import Folding

BF16 = torch.bfloat16


class Blocks:
    """Ways to a residual block of 3x3 convolutions, and what becomes of them."""

    def plain(self, x):
        out = F.relu(self.a(x))
        return F.relu(self.b(F.relu(self.b(out))) + out)

    def two(self, x):
        return Blocks.again(self, Blocks.plain(self, x))

    def again(self, out):
        return F.relu(self.b(F.relu(self.b(out))) + out)

    def with_shortcut(self, x):
        out = F.relu(self.a(x))
        return F.relu(self.b(F.relu(self.b(out))) + self.c(out))

    def not_rectified(self, x):
        out = self.a(x)
        return F.relu(self.b(F.relu(self.b(out))) + out)

    def wide(self, x):
        out = F.relu(self.a(x))
        return F.relu(self.c(F.relu(self.b(out))) + out)

    def read_behind_it_too(self, x):
        out = Blocks.plain(self, x)
        return Blocks.again(self, out) + self.c(out.clone())


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("plain", [(True, False)]),
        ("two", [(True, True), (True, False)]),
        ("with_shortcut", [(True, False)]),
        ("not_rectified", [(False, False)]),
        ("read_behind_it_too", [(True, False)]),
    ],
)
def test_a_residual_block_is_one_operation(name, flags):
    """Whether what it reads came out of a ReLU, and whether all who read it apply its ReLU's gradient."""
    trunk = vars(Blocks)[name]
    assert check(net(trunk))["residual"] == len(flags)
    assert check(net(trunk), BF16)["residual"] == len(flags)
    nodes = Folding(stir(net(trunk)), fuse=True)._features.structure.graph.nodes
    assert [node.args[8:] for node in nodes if str(node.target) == "pixelpart.residual.default"] == flags


def test_kernels_of_any_size_make_a_block_if_they_are_padded_by_one():
    """A 5x5 that takes two lines away, and a 1x1 that brings them back."""
    model = net(lambda self, x: Blocks.wide(self, x), kernel_size=5, padding=1)
    model.c = nn.Conv2d(16, 16, 1, padding=1)
    assert check(model)["residual"] == 1


class NoBlocks:
    """Networks that look like a residual block but are none that the operation stands for."""

    def padded_otherwise(self, x):
        out = F.relu(self.a(x))
        return F.relu(self.b(F.relu(self.c(out))) + out)

    def inner_read_twice(self, x):
        out = F.relu(self.a(x))
        inner = F.relu(self.b(out))
        return F.relu(self.b(inner) + out) + inner

    def shortcut_of_something_else(self, x):
        out = F.relu(self.a(x))
        return F.relu(self.b(F.relu(self.b(out))) + self.c(2 * out))

    def shortcut_of_other_kernel(self, x):
        out = F.relu(self.a(x))
        return F.relu(self.b(F.relu(self.b(out))) + self.b(out))

    def read_elsewhere(self, x):
        out = F.relu(self.a(x))
        inner = F.relu(self.b(out))
        more = out * 2
        return F.relu(self.b(inner) + out) + more


@pytest.mark.parametrize("name", [name for name in vars(NoBlocks) if not name.startswith("_")])
def test_what_is_not_such_a_block_is_left(name):
    for dtype in (None, BF16):
        found = check(net(vars(NoBlocks)[name]), dtype)
        assert "residual" not in found
        assert found["conv_add_relu"] == 1


@pytest.mark.parametrize(
    ("channels", "others"), [((1, 16, 16), None), ((16, 16, 1), None), ((16, 16, 16), 1), ((16, 16, 1), 16)], ids=str
)
def test_a_sum_that_spreads_one_channel_over_many_is_no_block(channels, others):
    """Its gradient is summed over these on one way and not on the other."""
    entry, between, end = channels

    def trunk(self, x):
        out = F.relu(self.a(x))
        return F.relu(self.d(F.relu(self.b(out))) + (self.c(out) if others else out))

    model = net(trunk)
    model.a = nn.Conv2d(3, entry, 3, padding=1)
    model.b, model.d = nn.Conv2d(entry, between, 3, padding=1), nn.Conv2d(between, end, 3, padding=1)
    if others:
        model.c = nn.Conv2d(entry, others, 1)
    assert check(model) == {"conv_relu": 2, "conv_add_relu": 1}
