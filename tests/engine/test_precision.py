"""bf16 after the first convolution: what stays fp32, how far the rest differs, and networks that do not run in it."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from pixelpart import models
from pixelpart.engine import plan as plan_module
from pixelpart.engine import train as train_module
from pixelpart.engine.step import train_step
from pixelpart.engine.train import train
from pixelpart.engine.views import make_views
from pixelpart.models import Classifier
from pixelpart.view.views import Folding, TrainingView
from small_nets import LayerTypes
from steps import batch_for, plan_for, state_for

CPU, BF16 = torch.device("cpu"), torch.bfloat16
MMA = {"attack": {"name": "mma", "steps": 2}}
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
VIEWS = {
    "attack": lambda model: Folding(model, dtype=BF16)(),
    "attack, fused": lambda model: Folding(model, dtype=BF16, fuse=True)(),
    "training": lambda model: TrainingView(model, dtype=BF16),
}


# -- a budget is the same up and down


class Differences(Classifier):
    """Each red pixel minus its right neighbour; the logits are those differences at one place.

    Two pixels near white cancel except for what was done to one of them, so a rounding of pixels shows and a rounding
    of the result does not.
    """

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3, padding=1)
        with torch.no_grad():
            self.conv.weight.zero_()
            self.conv.bias.zero_()
            self.conv.weight[:, 0, 1, 1], self.conv.weight[:, 0, 1, 2] = 1, -1

    def trunk(self, x):
        return self.conv(x)

    def head(self, acts):
        return acts[:, :, 4, 4]


def change_seen(view, x, change):
    moved = x.clone()
    moved[:, :, 4, 4] += change
    with torch.no_grad():
        return (view(moved) - view(x))[0, 0].item()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", VIEWS)
def test_a_budget_of_7_5_is_the_same_up_and_down_near_white(name, device):
    view = VIEWS[name](Differences().to(device))
    x, eps = torch.full((1, 3, 9, 9), 243 / 255, device=device), 7.5 / 255
    # on a GPU pixels are TF32: 11 bits, steps of 1/2048 near white; the result is bf16 everywhere
    room = 2**-9 * eps + (2**-11 if device == "cuda" else 1e-6)
    assert abs(change_seen(view, x, eps) - eps) <= room
    assert abs(change_seen(view, x, -eps) + eps) <= room

    def rounded(pixels):
        return view(pixels.to(BF16).float())

    if device == "cpu":  # pixels in bf16 would have made it +7 and -8
        assert change_seen(rounded, x, eps) * 256 == pytest.approx(7, rel=1e-6)
        assert change_seen(rounded, x, -eps) * 256 == pytest.approx(-8, rel=1e-6)


# -- what is computed in which type


@pytest.mark.parametrize("view", ["attack", "training"])
@pytest.mark.parametrize("name", ["wrn-10-1", "tiny-cnn"])
def test_the_first_convolution_and_the_head_are_fp32_and_all_between_is_bf16(name, view):
    model = models.build(name, mean=(0.4, 0.5, 0.6), std=(0.2, 0.25, 0.3))
    made = VIEWS[view](model)
    with torch.no_grad(), LayerTypes() as types:
        logits = made(torch.rand(2, 3, 8, 8))
    first, *between, last = types.seen
    assert logits.dtype == torch.float32
    assert first == last == (torch.float32, torch.float32)
    assert len(between) >= 3
    assert set(between) == {(BF16, BF16)}


class NormTypes(TorchDispatchMode):
    """Lists the types of input and weight of every group and layer norm, which must be equal on a GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket.__name__ in ("native_group_norm", "native_layer_norm"):
            self.seen.append(tuple(arg.dtype for arg in args if isinstance(arg, torch.Tensor)))
        return func(*args, **(kwargs or {}))


class WithNorms(Classifier):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.linear = nn.Conv2d(3, 16, 3), nn.Conv2d(16, 16, 3), nn.Linear(16, 10)
        self.group, self.layer = nn.GroupNorm(4, 16), nn.LayerNorm(16)

    def trunk(self, x):
        acts = self.b(F.relu(self.group(self.a(x)))).permute(0, 2, 3, 1)
        acts = F.layer_norm(self.layer(acts), (16,), self.layer.weight, self.layer.bias)
        return F.relu(acts.permute(0, 3, 1, 2))

    @property
    def pooled_linear(self):
        return self.linear


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("view", ["attack", "training"])
def test_group_and_layer_norms_are_computed_in_fp32_between_layers_in_bf16(view, device):
    model, x = WithNorms().to(device), torch.rand(4, 3, 12, 12, device=device)
    with torch.no_grad(), NormTypes() as norms, LayerTypes() as layers:
        logits = VIEWS[view](model)(x)
    assert norms.seen == [(torch.float32,) * 3] * 3
    assert layers.seen[1] == (BF16, BF16)
    torch.testing.assert_close(logits, model(x), atol=0.05, rtol=0)


def test_the_training_view_is_no_further_from_fp32_than_autocast():
    """Gradients of the fp32 weights, and batch-norm statistics."""
    x, y = torch.rand(32, 3, 16, 16, generator=torch.Generator().manual_seed(1)), torch.arange(32) % 10
    made = {}
    for kind in ("fp32", "view", "autocast"):
        model = models.build("tiny-cnn", generator=torch.Generator().manual_seed(2)).train()
        network = TrainingView(model, dtype=BF16) if kind == "view" else model
        with torch.autocast("cpu", dtype=BF16, enabled=kind == "autocast"):
            logits = network(x)
        F.cross_entropy(logits.float(), y).backward()
        made[kind] = model
    grads = {kind: torch.cat([p.grad.flatten() for p in model.parameters()]) for kind, model in made.items()}
    gap = {kind: ((grad - grads["fp32"]).norm() / grads["fp32"].norm()).item() for kind, grad in grads.items()}
    assert 0 < gap["view"] < min(0.1, 1.5 * gap["autocast"])
    for (name, mine), theirs in zip(made["view"].named_buffers(), made["fp32"].buffers(), strict=True):
        if name.endswith("num_batches_tracked"):
            assert mine == theirs == 1
        elif "running" in name:
            start = torch.zeros_like(theirs) if name.endswith("mean") else torch.ones_like(theirs)
            assert (mine - theirs).abs().max() <= 0.01 * (theirs - start).abs().max()


def test_the_training_view_has_the_current_weights_and_is_in_train_mode():
    class WithDropout(Differences):
        def trunk(self, x):
            return F.dropout(super().trunk(x), 0.5, training=self.training)

    model, x = models.build("tiny-cnn"), torch.rand(8, 3, 16, 16)
    view = TrainingView(model, dtype=BF16)
    before = view(x)
    with torch.no_grad():
        model.linear.weight.mul_(2)
        model.linear.bias.mul_(2)
    torch.testing.assert_close(view(x), 2 * before)
    dropping = TrainingView(WithDropout().eval(), dtype=BF16)
    assert not torch.equal(dropping(x), dropping(x))


# -- a step and a run


def step_of(method, precision, *, model=None, n=32, **overrides):
    """The state after one step, and what the step changed in its model."""
    plan = plan_for(method, precision=precision, **overrides)
    state = state_for(plan, model=model, dtype=torch.float32, size=32)
    batch = batch_for(plan.main, n, dtype=torch.float32, size=32)
    before = copy.deepcopy(state.model.state_dict())
    train_step(state, plan.main, batch)
    return state, {name: tensor - before[name] for name, tensor in state.model.state_dict().items()}


@pytest.mark.parametrize(
    ("method", "overrides"),
    [("at", {}), ("part-t", {}), ("part-m", {}), ("part", MMA), ("part", {"mask": {"layer": "layer2"}})],
    ids=str,
)
def test_a_bf16_step_is_an_fp32_step_up_to_rounding(method, overrides):
    (wide, theirs), (low, mine) = (step_of(method, precision, **overrides) for precision in ("fp32", "bf16"))
    assert low.low_precision
    assert wide.network is wide.model
    a, b = low.tally.read(), wide.tally.read()
    assert a["loss"] == pytest.approx(b["loss"], rel=5e-3)
    assert a["budget"] == pytest.approx(b["budget"], rel=5e-3)
    assert a["broken_steps"] == 0
    for name, tensor in low.model.named_parameters():
        assert tensor.dtype == torch.float32
        assert F.cosine_similarity(mine[name].flatten(), theirs[name].flatten(), dim=0) > 0.8, name


@pytest.mark.parametrize(("precision", "products"), [("fp32", "highest"), ("bf16", "high")])
def test_an_fp32_run_is_ieee_whatever_the_caller_has_set(precision, products, small, quiet, tmp_path, monkeypatch):
    """In a bf16 run, what stays fp32 may be TF32."""
    seen = set()

    def step(*args):
        seen.add(torch.get_float32_matmul_precision())
        train_step(*args)

    monkeypatch.setattr(train_module, "train_step", step)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        train(small("at", precision=precision, epochs=1), tmp_path / "run", device="cpu", screen=quiet)
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)
    assert seen == {products}


# -- networks that do not run in bf16


class Odd(Classifier):
    """Layers that have no bf16 version, or parameters that promote to fp32."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)
        self.up, self.prelu = nn.ConvTranspose2d(16, 16, 3, padding=1), nn.PReLU()
        self.scale = nn.Parameter(torch.full((1, 16, 1, 1), 0.3))
        self.linear = nn.Linear(16, 10)

    @property
    def pooled_linear(self):
        return self.linear


TRUNKS = {
    "parameter outside of layers": lambda net, x: F.relu(net.b(F.relu(net.b(F.relu(net.a(x))) + net.scale))),
    "transposed convolution": lambda net, x: F.relu(net.up(F.relu(net.a(x)))),
    "learned slope": lambda net, x: net.prelu(net.b(net.prelu(net.a(x)))),
    "branch in train mode": lambda net, x: x * 0 + 1 if net.training and x.amax() > 9 else F.relu(net.b(net.a(x))),
}


def odd(name):
    torch.manual_seed(1)
    return type("Made", (Odd,), {"trunk": TRUNKS[name]})()


@pytest.mark.parametrize("name", TRUNKS)
def test_a_network_that_does_not_run_in_bf16_takes_the_fp32_step(name):
    (wide, _), (low, _) = (step_of("part-t", precision, model=odd(name), n=8) for precision in ("fp32", "bf16"))
    assert not low.low_precision
    assert low.attack_view.folded
    for mine, theirs in zip(low.model.parameters(), wide.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_the_log_reports_that_a_network_does_not_run_in_bf16(small, quiet, tmp_path, monkeypatch):
    plan = plan_module.build_plan(small("at", precision="bf16", epochs=1))
    monkeypatch.setattr(plan_module, "build_plan", lambda config: plan)
    object.__setattr__(plan, "model", odd("learned slope"))
    run = train(plan.config, tmp_path / "run", device="cpu", screen=quiet)
    assert "does not run in bf16; it is trained in its own precision" in (run.dir / "log.txt").read_text()


@pytest.mark.parametrize("error", [0.0, 0.5])
def test_a_view_that_disagrees_with_the_model_is_not_used(error, monkeypatch):
    torch.manual_seed(1)
    model = type("Made", (Odd,), {"trunk": lambda self, x: F.relu(self.b(F.relu(self.a(x))))})()
    forward = nn.Conv2d._conv_forward

    def erring(self, x, weight, bias):
        return forward(self, x, weight, bias) + (error if weight.dtype == BF16 else 0)

    monkeypatch.setattr(nn.Conv2d, "_conv_forward", erring)
    attack_view, training_view = make_views(BF16, model, shape=(3, 8, 8), device=CPU, layout=torch.channels_last)
    assert (training_view is None) == bool(error)
    assert attack_view.folded
    assert model.training
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())


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
    states = []
    for flatten in ("view", "reshape"):
        torch.manual_seed(1)
        state, changes = step_of("part-t", precision, model=Flat(flatten), n=8)
        assert state.low_precision == (precision == "bf16")
        assert changes["linear.weight"].any()
        states.append(state)
    assert [state.layout for state in states] == [torch.contiguous_format, torch.channels_last]
    for mine, theirs in zip(*(state.model.parameters() for state in states), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0.02, atol=1e-3 if precision == "bf16" else 1e-6)
