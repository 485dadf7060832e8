"""bf16 behind the first convolution: what stays fp32, and how far the rest may stray from an fp32 pass."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from pixelpart import data, draws, models, recipes
from pixelpart.data import augment
from pixelpart.engine import train as train_module
from pixelpart.engine.plan import build
from pixelpart.engine.state import Learner
from pixelpart.engine.step import StepInputs, train_step
from pixelpart.engine.train import train
from pixelpart.models import Classifier
from pixelpart.view.views import Folding, TrainingView
from stopping import files_of, whole_and_parts

BF16 = torch.bfloat16
NAMES = ["resnet18", "preactresnet18", "wrn-10-1", "tiny-cnn"]
METHODS = ["at", "trades", "mart", "part", "part-t", "part-m"]
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


# -- a budget is the same up and down


class Differences(Classifier):
    """Each pixel less its right neighbour, in red; the logits are those differences at one place.

    Two pixels near white cancel but for what was done to one of them, so that a rounding of pixels shows and the
    rounding of the result does not.
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


def seen(view, x, change):
    moved = x.clone()
    moved[:, :, 4, 4] += change
    with torch.no_grad():
        return (view(moved) - view(x))[0, 0].item()


VIEWS = {
    "attack": lambda model: Folding(model, dtype=BF16)(),
    "attack, fused": lambda model: Folding(model, dtype=BF16, fuse=True)(),
    "training": lambda model: TrainingView(model, dtype=BF16),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("white", [243 / 255, 200.4 / 255])
@pytest.mark.parametrize("name", VIEWS)
def test_a_budget_of_7_5_is_the_same_up_and_down_near_white(name, white, device):
    view = VIEWS[name](Differences().to(device))
    x, eps = torch.full((1, 3, 9, 9), white, device=device), 7.5 / 255
    up, down = seen(view, x, eps), seen(view, x, -eps)
    # on a GPU pixels are TF32: 11 bits, steps of 1/2048 near white; the result is bf16 everywhere
    room = 2**-9 * eps + (2**-11 if device == "cuda" else 1e-6)
    assert abs(up - eps) <= room
    assert abs(down + eps) <= room


@pytest.mark.parametrize("name", VIEWS)
def test_pixels_in_bf16_would_have_made_it_plus_7_and_minus_8(name):
    view, x, eps = VIEWS[name](Differences()), torch.full((1, 3, 9, 9), 243 / 255), 7.5 / 255

    def rounded(pixels):
        return view(pixels.to(BF16).float())

    assert seen(rounded, x, eps) * 256 == pytest.approx(7, rel=1e-6)
    assert seen(rounded, x, -eps) * 256 == pytest.approx(-8, rel=1e-6)


@pytest.mark.parametrize("name", ["attack", "attack, fused"])
def test_the_smallest_step_near_white_has_its_gradient(name):
    """The gradient at the pixels is fp32 too: two pixels apart by less than bf16 can tell get their own."""
    view = VIEWS[name](Differences())
    x = torch.full((1, 3, 9, 9), 243 / 255).requires_grad_()
    (grad,) = torch.autograd.grad(view(x)[0, 0], x)
    assert grad.dtype == torch.float32
    assert grad[0, 0, 4, 4:6].tolist() == [1, -1]
    assert grad.abs().sum() == 2


# -- what is computed in which type


class Types(TorchDispatchMode):
    """Notes the types that go into every convolution and matrix product."""

    def __init__(self) -> None:
        super().__init__()
        self.convolutions, self.products = [], []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        if name in ("convolution", "mkldnn_convolution"):
            self.convolutions.append((args[0].dtype, args[1].dtype))
        elif name in ("addmm", "mm"):
            self.products.append(args[-1].dtype)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("view", ["attack", "training"])
@pytest.mark.parametrize("name", NAMES)
def test_the_first_convolution_and_the_head_are_fp32_and_all_between_is_bf16(name, view):
    model = models.build(name, mean=(0.4, 0.5, 0.6), std=(0.2, 0.25, 0.3))
    made = VIEWS[view](model)
    with torch.no_grad(), Types() as types:
        logits = made(torch.rand(2, 3, 8, 8))
    assert logits.dtype == torch.float32
    assert types.convolutions[0] == (torch.float32, torch.float32)
    assert len(types.convolutions) >= 4
    assert set(types.convolutions[1:]) == {(BF16, BF16)}
    assert types.products == [torch.float32]
    if view == "attack":
        assert made.features(torch.rand(2, 3, 8, 8)).dtype == BF16
        assert made.pooled_linear.weight.dtype == torch.float32


@pytest.mark.parametrize("name", NAMES)
def test_the_attacks_view_in_bf16_gives_about_the_logits_and_the_gradient_of_fp32(name):
    model = trained_a_little(name)
    x = some_images(4, size=8)
    (logits, grad), (wide, wide_grad) = (
        logits_and_gradient(Folding(model, dtype=dtype)(), x) for dtype in (BF16, None)
    )
    assert (logits - wide).abs().max() <= 0.02 * wide.abs().max()
    assert F.cosine_similarity(grad.flatten(), wide_grad.flatten(), dim=0) > 0.98
    assert grad.dtype == torch.float32


def logits_and_gradient(view, x):
    leaf = x.clone().requires_grad_()
    logits = view(leaf)
    return logits.detach(), torch.autograd.grad(F.cross_entropy(logits, torch.arange(len(x)), reduction="sum"), leaf)[0]


def some_images(n, size=32):
    images, _ = data.load("shapes", split="train")
    return images[:n, :, :size, :size].float() / 255


def trained_a_little(name):
    """A model whose batch norm has seen something."""
    model = models.build(name).train()
    with torch.no_grad():
        for _ in range(3):
            model(some_images(16, size=8))
    return model


# -- the training pass


@pytest.fixture
def passes():
    """Gradients and batch-norm statistics of one training pass: fp32, in the working view, and under autocast."""
    x, y = some_images(64), data.load("shapes", split="train")[1][:64]
    made = {}
    for kind in ("fp32", "working", "autocast"):
        model = models.build("tiny-cnn").train()
        network = TrainingView(model, dtype=BF16) if kind == "working" else model
        with torch.autocast("cpu", dtype=BF16, enabled=kind == "autocast"):
            logits = network(x)
        F.cross_entropy(logits.float(), y).backward()
        made[kind] = model
    return made


def gap(model, reference):
    """Relative distance between all gradients of two models, as one vector."""
    mine, theirs = (torch.cat([p.grad.flatten() for p in m.parameters()]) for m in (model, reference))
    return ((mine - theirs).norm() / theirs.norm()).item()


def test_gradients_reach_the_fp32_weights_no_further_off_than_under_autocast(passes):
    for parameter in passes["working"].parameters():
        assert parameter.dtype == parameter.grad.dtype == torch.float32
        assert parameter.grad.abs().max() > 0
    assert gap(passes["working"], passes["fp32"]) < min(0.1, 1.5 * gap(passes["autocast"], passes["fp32"]))


def test_batch_norms_own_statistics_move_as_in_an_fp32_pass(passes):
    start = models.build("tiny-cnn").state_dict()
    for (name, mine), theirs in zip(passes["working"].named_buffers(), passes["fp32"].buffers(), strict=True):
        if name.endswith("num_batches_tracked"):
            assert mine == theirs == 1
        elif "running" in name:
            assert not torch.equal(mine, start[name])
            assert mine.dtype == torch.float32
            assert (mine - theirs).abs().max() <= 0.01 * (theirs - start[name]).abs().max()


def test_the_working_view_follows_the_weights_and_trains_also_where_the_model_is_in_eval_mode():
    model = models.build("tiny-cnn")
    working, x = TrainingView(model, dtype=BF16), some_images(8)
    before = working(x)
    with torch.no_grad():
        model.linear.weight.mul_(2)
        model.linear.bias.mul_(2)
    torch.testing.assert_close(working(x), 2 * before)
    model.eval()
    torch.testing.assert_close(working(x), 2 * before)
    assert not model.training


def test_dropout_works_in_the_working_view():
    class WithDropout(Differences):
        def trunk(self, x):
            return F.dropout(super().trunk(x), 0.5, training=self.training)

    working = TrainingView(WithDropout(), dtype=BF16)
    x = some_images(2)
    assert not torch.equal(working(x), working(x))


# -- a step and a run


def step_of(method, precision, *, seed=0, **overrides):
    """The learner after one step, and what the step changed in its model."""
    overrides = {"burn_in": {"epochs": 0}, "precision": precision} | overrides
    plan = build(recipes.shapes(method, **overrides))
    learner = Learner(plan.model, plan.config, torch.device("cpu"))
    learner.lr.fill_(0.05)
    with torch.no_grad():
        for _ in range(3):
            learner.model(some_images(64))
    before = copy.deepcopy(learner.model.state_dict())
    g = draws.generator(seed, "test")
    images, labels = some_images(64), data.load("shapes", split="train")[1][:64]
    several = () if plan.main.starts == 1 else (plan.main.starts,)
    noise = torch.rand(*several, *images.shape, generator=g) * 2 - 1
    train_step(learner, plan.main, StepInputs(images, labels, augment.draw("crop-flip", 64, generator=g), noise))
    return learner, {name: tensor - before[name] for name, tensor in learner.model.state_dict().items()}


@pytest.mark.parametrize(
    ("method", "overrides"),
    [(method, {}) for method in METHODS]
    + [("part", {"attack": {"name": "mma"}}), ("part", {"mask": {"layer": "layer2"}})],
    ids=str,
)
def test_a_bf16_step_is_an_fp32_step_but_for_rounding(method, overrides):
    (wide, theirs), (narrow, mine) = (step_of(method, precision, **overrides) for precision in ("fp32", "bf16"))
    assert narrow.narrow
    assert not wide.narrow
    a, b = narrow.tally.read(), wide.tally.read()
    assert a["loss"] == pytest.approx(b["loss"], rel=5e-3)
    assert a["budget"] == pytest.approx(b["budget"], rel=5e-3)
    assert a["broken_steps"] == 0
    for name, tensor in narrow.model.named_parameters():
        assert tensor.dtype == torch.float32
        assert F.cosine_similarity(mine[name].flatten(), theirs[name].flatten(), dim=0) > 0.8, name
    for name in mine:
        if "running" in name:
            assert (mine[name] - theirs[name]).norm() <= 0.05 * theirs[name].norm(), name


def test_fp32_is_fp32_throughout():
    plan = build(recipes.shapes("at"))
    learner = Learner(plan.model, plan.config, torch.device("cpu"))
    assert learner.network is learner.model
    with torch.no_grad(), Types() as types:
        learner.freeze()(some_images(2))
    assert set(types.convolutions) == {(torch.float32, torch.float32)}


@pytest.mark.parametrize(("precision", "products"), [("fp32", "highest"), ("bf16", "high")])
def test_a_run_in_fp32_is_ieee_whatever_the_caller_has_set(precision, products, small, quiet, tmp_path, monkeypatch):
    """And in bf16 what stays fp32 may be TF32."""
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


def test_a_bf16_run_follows_the_fp32_run(small, quiet, tmp_path):
    rows = {}
    for precision in ("fp32", "bf16"):
        config = small("part", precision=precision, epochs=2)
        rows[precision] = train(config, tmp_path / precision, device="cpu", screen=quiet).metrics
    for mine, theirs in zip(rows["bf16"], rows["fp32"], strict=True):
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=0.02)
        assert mine["budget_mean"] == pytest.approx(theirs["budget_mean"], rel=0.02)
        assert mine["robust_ce"] == pytest.approx(theirs["robust_ce"], rel=0.05)
        assert mine.keys() == theirs.keys()


def test_a_bf16_run_that_was_stopped_ends_in_the_same_bytes(small, quiet, tmp_path, monkeypatch):
    config = small("part", precision="bf16", mask={"every": 1}, epochs=2)
    whole, parts = whole_and_parts(config, tmp_path, monkeypatch, at=5, device="cpu", screen=quiet)
    assert files_of(parts) == files_of(whole)
