import importlib

import pytest
import torch
from torch import Tensor, nn

from checkpoints import facts_of
from corners import SET
from pixelpart import data, models
from pixelpart.attacks import COMBINED, SEARCHES, VERSIONS
from pixelpart.config import Config
from pixelpart.evaluation.checks import behaviours, surrogate
from pixelpart.files import atomic_write
from pixelpart.runs import Run, save_checkpoint
from searches import short


class Plane(nn.Module):
    """Logits (+s, -s), s = w·x + bias: the worst change within eps is known without an attack."""

    def __init__(self, size: int = 6) -> None:
        super().__init__()
        self.linear = nn.Linear(3 * size * size, 1)
        with torch.no_grad():
            self.linear.weight.copy_(torch.randn(self.linear.weight.shape, generator=torch.Generator().manual_seed(1)))
            self.linear.bias.copy_(-0.5 * self.linear.weight.sum())

    def forward(self, x: Tensor) -> Tensor:
        score = self.linear(x.flatten(1))
        return torch.cat((score, -score), 1)


class Net(nn.Module):
    """A small network with batch norm, of five classes."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(2)
        self.conv, self.bn, self.linear = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(64, 5)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.bn(self.conv(x)).relu().flatten(1))


@pytest.fixture
def plane() -> Plane:
    return Plane().eval()


@pytest.fixture
def net() -> Net:
    return Net().eval()


@pytest.fixture
def pair() -> tuple[Tensor, Tensor]:
    """40 images far enough from 0 and 1 that only the ball binds, and labels of two classes."""
    generator = torch.Generator().manual_seed(3)
    x = 0.2 + 0.6 * torch.rand(40, 3, 6, 6, generator=generator)
    return x, torch.randint(2, (40,), generator=generator)


@pytest.fixture
def make_run(tmp_path):
    """Writes an untrained run of tiny-cnn on shapes whose best and last differ."""

    def write(**settings) -> Run:
        config = Config(dataset="shapes", model="tiny-cnn", **settings)
        folder = tmp_path / "run"
        atomic_write(folder / "config.json", config.to_json())
        for epoch, name in enumerate(("best", "last"), start=1):
            model = models.build("tiny-cnn", generator=torch.Generator().manual_seed(epoch))
            state = {f"model.{key}": value for key, value in model.state_dict().items()}
            save_checkpoint(folder / "checkpoints" / f"{name}.safetensors", state, facts_of(config, epoch))
        return Run(folder)

    return write


@pytest.fixture
def run(make_run) -> Run:
    return make_run(mask={"rule": "mean"})


@pytest.fixture
def short_searches(monkeypatch):
    monkeypatch.setitem(VERSIONS, "standard", short())
    for name, search in short().items():
        monkeypatch.setitem(SEARCHES, name, search)
    monkeypatch.setitem(COMBINED, "apgd", {name: SEARCHES[name] for name in ("apgd-ce", "apgd-t")})


@pytest.fixture
def labelled(net, pair):
    """20 images with the network's own labels, but for two: most of the work is at what is right."""
    x = pair[0][:20]
    y = net(x).argmax(1)
    y[::10] = (y[::10] + 1) % 5
    return x, y


@pytest.fixture
def driver(monkeypatch):
    """The tries that the driver of searches started and those that it settled."""
    seen = {"started": [], "settled": [], "seeds": set()}
    module = importlib.import_module("pixelpart.attacks.autoattack")
    original = module.run_tries

    def noting(search, view, samples, tries, **settings):
        seen["started"] += tries
        seen["seeds"].add(samples.seed)
        for one, broken in original(search, view, samples, tries, **settings):
            seen["settled"].append(one)
            yield one, broken

    monkeypatch.setattr(module, "run_tries", noting)
    return seen


@pytest.fixture
def corner_set(monkeypatch):
    monkeypatch.setitem(data.SETS, "corners", SET)
    monkeypatch.setattr(surrogate, "BATCH_SIZE", 16)
    monkeypatch.setattr(surrogate, "EPOCHS", 4)
    monkeypatch.setattr(behaviours, "POINTS", 20)
