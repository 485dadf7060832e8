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
