"""A network that cannot be computed in bf16 is trained in its own precision, and that is said."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pixelpart import data, draws, recipes
from pixelpart.bench.train import our_step, step_config
from pixelpart.data import augment
from pixelpart.engine import train as train_module
from pixelpart.engine.plan import build
from pixelpart.engine.state import Learner
from pixelpart.engine.step import StepInputs, train_step
from pixelpart.engine.views import views_in
from pixelpart.models import Classifier

CPU, BF16 = torch.device("cpu"), torch.bfloat16


class Odd(Classifier):
    """Layers that a bf16 view may stumble over; every network below goes another way through them."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)
        self.wide, self.same = nn.Conv2d(3, 16, 7, padding=3), nn.Conv2d(3, 3, 3, padding=1)
        self.up, self.prelu = nn.ConvTranspose2d(16, 16, 3, padding=1), nn.PReLU()
        self.scale = nn.Parameter(torch.full((1, 16, 1, 1), 0.3))
        self.linear = nn.Linear(16, 10)

    @property
    def pooled_linear(self):
        return self.linear


class Ways:
    def weight_beside_the_layers(self, x):
        return F.relu(self.b(F.relu(self.b(F.relu(self.a(x))) + self.scale)))

    def weight_in_a_function(self, x):
        return F.relu(F.conv2d(F.relu(self.a(x)), self.b.weight, padding=1))

    def transposed(self, x):
        return F.relu(self.up(F.relu(self.a(x))))

    def own_slope(self, x):
        return self.prelu(self.b(self.prelu(self.a(x))))

    def pixels_read_twice(self, x):
        return F.relu(self.b(F.relu(self.a(x)))) + F.relu(self.wide(x))

    def pixels_added(self, x):
        return F.relu(self.b(F.relu(self.a(x)) + F.pad(x, (0, 0, 0, 0, 0, 13))))

    def branch_in_train_mode(self, x):
        x = F.relu(self.b(F.relu(self.a(x))))
        return x / x.amax() if self.training and x.amax() > 1 else x

    def first_layer_used_again(self, x):
        return F.relu(self.a(F.relu(self.same(F.relu(self.same(x))))))


ways = pytest.mark.parametrize("name", [name for name in vars(Ways) if not name.startswith("_")])


def odd(name):
    torch.manual_seed(1)
    return type("Made", (Odd,), {"trunk": vars(Ways)[name]})()


def step_of(model, precision):
    plan = build(recipes.shapes("part-t", burn_in={"epochs": 0}, precision=precision))
    learner = Learner(copy.deepcopy(model), plan.config, CPU)
    learner.lr.fill_(0.05)
    images, labels = (tensor[:8] for tensor in data.load("shapes", split="train"))
    g = draws.generator(0, "test")
    noise = torch.randn(8, 3, 32, 32, generator=g)
    moves = augment.draw("crop-flip", 8, generator=g)
    train_step(learner, plan.main, StepInputs(images / 255, labels, moves, noise))
    return learner


@ways
def test_such_a_network_takes_the_step_of_fp32(name):
    wide, narrow = (step_of(odd(name), precision) for precision in ("fp32", "bf16"))
    assert not narrow.narrow
    assert narrow.freeze.folded
    for mine, theirs in zip(narrow.model.parameters(), wide.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)


class Flat(Classifier):
    """Its head reads all pixels of a coarse map, by `view` or by `reshape`."""

    def __init__(self, flatten: str) -> None:
        super().__init__()
        self.conv, self.linear, self.flatten = nn.Conv2d(3, 16, 3, padding=1), nn.Linear(64, 10), flatten

    def trunk(self, x):
        return F.adaptive_avg_pool2d(F.relu(self.conv(x)), 2)

    def head(self, acts):
        return self.linear(getattr(acts, self.flatten)(acts.shape[0], -1))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_network_that_takes_a_view_of_several_pixels_is_trained(precision):
    steps = []
    for flatten in ("view", "reshape"):
        torch.manual_seed(1)
        model = Flat(flatten)
        steps.append(step_of(model, precision))
        assert steps[-1].narrow == (precision == "bf16")
        assert not torch.equal(steps[-1].model.linear.weight, model.linear.weight)
    assert [step.layout for step in steps] == [torch.contiguous_format, torch.channels_last]
    for mine, theirs in zip(*(step.model.parameters() for step in steps), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0.02, atol=1e-3 if precision == "bf16" else 1e-6)


@pytest.mark.parametrize("lie", [0.0, 0.5])
def test_a_view_that_says_something_else_than_the_model_is_not_used(lie, monkeypatch):
    """The view is made to err, as if something in the network had been read wrong."""
    torch.manual_seed(1)
    model = type("Made", (Odd,), {"trunk": lambda self, x: F.relu(self.b(F.relu(self.a(x))))})()
    forward = nn.Conv2d._conv_forward

    def erring(self, x, weight, bias):
        return forward(self, x, weight, bias) + (lie if weight.dtype == BF16 else 0)

    monkeypatch.setattr(nn.Conv2d, "_conv_forward", erring)
    folding, working = views_in(BF16, model, size=8, device=CPU, layout=torch.channels_last)
    assert (working is None) == bool(lie)
    assert folding.folded
    assert model.training
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())


def test_a_run_says_so(small, quiet, tmp_path, monkeypatch):
    plan = build(small("at", precision="bf16", epochs=1))
    monkeypatch.setattr(train_module, "build", lambda config: plan)
    object.__setattr__(plan, "model", odd("own_slope"))
    run = train_module.train(plan.config, tmp_path / "run", device="cpu", screen=quiet)
    assert "it cannot be computed in bf16, and stays in its own precision" in (run.dir / "log.txt").read_text()


def test_a_bench_says_so_too():
    said = []
    config = step_config("at", model="tiny-cnn", batch_size=2, steps=1, precision="bf16")
    our_step(config, CPU, said.append, network=odd("own_slope"), size=8)
    assert said == ["tiny-cnn cannot be computed in bf16: this is fp32"]
