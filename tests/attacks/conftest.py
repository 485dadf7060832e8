import math

import pytest
import torch
from torch import nn

from pixelpart.attacks import VERSIONS
from planes import short


class Net(nn.Module):
    """A small smooth network with batch norm, whose statistics are not the initial ones."""

    def __init__(self, classes, size, dtype):
        super().__init__()
        self.conv, self.norm, self.act = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Tanh()
        self.linear = nn.Linear(4 * size * size, classes)
        g = torch.Generator().manual_seed(classes)
        with torch.no_grad():
            for tensor in (*self.parameters(), self.norm.running_mean):
                tensor.copy_(0.5 * torch.randn(tensor.shape, generator=g))
            self.linear.weight.mul_(0.3)  # classes close enough that an attack changes their order
            self.norm.running_var.copy_(0.5 + torch.rand(4, generator=g))
        self.to(dtype)

    def forward(self, x):
        return self.linear(self.act(self.norm(self.conv(x))).flatten(1))


@pytest.fixture
def make_net():
    def make(classes=5, *, size=4, dtype=torch.float32):
        kept = torch.get_rng_state()
        net = Net(classes, size, dtype)
        torch.set_rng_state(kept)
        return net

    return make


@pytest.fixture
def make_batch():
    def make(b=4, *, classes=5, size=4, dtype=torch.float32, seed=0):
        """Images with pixels at 0 and 1 among them, labels, and a budget for every pixel."""
        g = torch.Generator().manual_seed(seed)
        x = (1.2 * torch.rand(b, 3, size, size, generator=g, dtype=dtype) - 0.1).clamp(0, 1)
        y = torch.randint(classes, (b,), generator=g)
        return x, y, 0.1 * torch.rand(b, 1, size, size, generator=g, dtype=dtype)

    return make


@pytest.fixture
def short_versions(monkeypatch):
    monkeypatch.setitem(VERSIONS, "standard", short())
    monkeypatch.setitem(VERSIONS, "plus", short(restarts=2))


@pytest.fixture
def authors_apgd(monkeypatch):
    """The authors' Auto-PGD in float64, from the start of a state or from its own.

    In l1 it counts the pixels that a point changes. Here, as in ours, changes by rounding do not count.
    """
    autopgd = pytest.importorskip("pyautoattack.autopgd_base")
    default = torch.get_default_dtype()

    def run(net, x, y, budget, state, *, norm, kind, steps, start=True):
        made = autopgd.APGDAttack_targeted if kind == "dlr-targeted" else autopgd.APGDAttack
        attack = made(net, n_iter=steps, norm=norm.capitalize(), eps=budget, device=x.device)
        attack.loss, attack.y_target = kind, state["target"]
        attack.init_hyperparam(x)
        with monkeypatch.context() as patch:
            patch.setattr(torch.Tensor, "float", torch.Tensor.double)
            patch.setattr(autopgd, "L0_norm", lambda change: (change.abs() > 1e-6).flatten(1).sum(1))
            torch.set_default_dtype(torch.float64)  # of its history
            if norm != "l1" or steps < 3:
                return attack.attack_single_run(x, y, x_init=state["point"] if start else None)
            patch.setattr(torch, "randn_like", lambda _: state["point"] - x)
            early = math.ceil(0.3 * steps)
            return attack.decr_eps_pgd(x, y, [3 * budget, 2 * budget, budget], [early, early, steps - 2 * early])

    yield run
    torch.set_default_dtype(default)
