"""Compiled and captured steps against plain steps.

test_fast.py runs this file with PIXELPART_TYPES=0, since the wrappers that check shapes cannot be compiled; by hand:
`PIXELPART_TYPES=0 pytest tests/engine/compiled_steps.py`. On a CPU, torch's compiler is stopped after reading the code
("eager") or after making the backward pass ("aot_eager"), which takes a second where inductor takes ten; inductor
itself is in the slow tests. In float64, so that no sign of a gradient flips by rounding.
"""

import copy
import dataclasses
import functools
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._dynamo.utils import counters

from pixelpart import models, recipes
from pixelpart.attacks.pgd import move, signed_step, total_loss
from pixelpart.engine.fast import CapturedStep, compile_phase
from pixelpart.engine.plan import build_plan
from pixelpart.engine.step import train_step
from pixelpart.models import Classifier
from pixelpart.runtime.precision import fast_arithmetic
from pixelpart.view import capture
from pixelpart.view.views import Folding
from steps import METHODS, assert_close_state, assert_same_state, batch_for, decay_at, plan_for, state_for


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    counters.clear()


@pytest.fixture
def backend(monkeypatch, request):
    """Everything that is compiled goes to this backend."""
    name = getattr(request, "param", "aot_eager")
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=name))
    return name


def compiled_ascend():
    compiled = capture.compiled
    return functools.partial(signed_step, total_loss=compiled(total_loss), move=compiled(move))


MMA = {"attack": {"name": "mma", "steps": 2, "step_size": "3/255"}}
AWP = {"awp": {"gamma": 0.01}, "optim": {"name": "adamw", "lr": 0.001, "clip": 1.0}}
MIXED = {"augment": "crop-flip-cutmix", "objective": {"smoothing": 0.1}}
STRONG = {"augment": "idbh", "objective": {"smoothing": 0.1}, "awp": {"gamma": 0.005}}
QUICK = [("part", MMA), ("part-t", AWP | MIXED)]
CASES = [(method, {}) for method in METHODS] + [*QUICK, ("part-t", AWP), ("part-m", MIXED), ("part", STRONG)]
SLOW = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.mark.parametrize(
    ("method", "overrides", "backend"),
    [(*case, "aot_eager" if case[0] == "part-t" else "eager") for case in QUICK]
    + [pytest.param(*case, "inductor", marks=SLOW) for case in CASES],
    indirect=["backend"],
    ids=str,
)
def test_two_compiled_steps_equal_two_plain_steps_and_the_second_compiles_nothing(method, overrides, backend):
    plan = plan_for(method, **overrides)
    fast, plain = state_for(plan), state_for(plan)
    fast.attack_view.compile()
    phase = compile_phase(plan.phase(0), compiled_ascend())
    for i in range(2):
        batch = batch_for(plan.main, seed=i, kind=overrides.get("augment", "crop-flip"))
        train_step(fast, phase, batch)
        train_step(plain, plan.phase(0), batch)
        if i == 0:
            graphs = counters["stats"]["unique_graphs"]
            # folding, the attack's loss and its move, objective, share, budget: each once, for all targets of mma too
            assert graphs == 4 + 2 * (phase.mask is not None)
    assert counters["stats"]["unique_graphs"] == graphs
    assert not counters["graph_break"]
    assert_close_state(fast, plain)


@pytest.mark.parametrize("backend", ["eager"], indirect=True)
def test_a_ramp_of_eps_compiles_once(backend):
    plan = plan_for("at", epochs=12, eps_ramp=12)
    fast, plain = state_for(plan), state_for(plan)
    fast.attack_view.compile()
    phase = compile_phase(plan.phase(0), compiled_ascend())
    for epoch in range(12):  # more than the eight versions of a function that torch keeps
        scale = torch.full((6, 1, 1, 1), plan.budget_scale(epoch), dtype=torch.float64)
        batch = dataclasses.replace(batch_for(plan.main, seed=epoch), budget_scale=scale)
        train_step(fast, phase, batch)
        train_step(plain, plan.phase(epoch), batch)
        assert counters["stats"]["unique_graphs"] == 4
    assert_close_state(fast, plain)


def test_a_compiled_view_has_the_current_weights_or_those_of_another_model(backend):
    model = models.build("wrn-10-1").double()
    folding, x = Folding(model), torch.rand(2, 3, 16, 16, dtype=torch.float64)
    folding.compile()
    for _ in range(2):
        torch.testing.assert_close(folding()(x), Folding(model)()(x))
        with torch.no_grad():
            for tensor in (*model.parameters(), model.bn1.running_mean):
                tensor.mul_(1.2)
    other = copy.deepcopy(model).requires_grad_(False).eval()
    torch.testing.assert_close(folding(other)(x), Folding(other)()(x))
    assert counters["stats"]["unique_graphs"] <= 2
    folding.interpret()
    counters.clear()
    torch.testing.assert_close(folding()(x), Folding(model)()(x))
    assert not counters


class Small(Classifier):
    """One of each: a stem, a block, a convolution with a ReLU, one with a sum and a ReLU."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 1), nn.Conv2d(16, 16, 3, padding=1)
        self.linear = nn.Linear(16, 10)

    @property
    def pooled_linear(self):
        return self.linear

    def trunk(self, x):
        out = F.relu(self.a(x))
        out = F.relu(self.c(F.relu(self.c(out))) + out)
        return F.relu(self.c(F.relu(self.b(out))) + out)


def test_a_fused_view_can_be_compiled_in_one_graph_forward_and_backward(backend):
    view = Folding(Small(), dtype=torch.bfloat16, fuse=True)()
    leaf, y = torch.rand(2, 3, 8, 8).requires_grad_(), torch.tensor([1, 2])
    expected = torch.autograd.grad(total_loss(view, leaf, y, F.cross_entropy), leaf)[0]
    grad = torch.autograd.grad(capture.compiled(total_loss)(view, leaf, y, F.cross_entropy), leaf)[0]
    assert grad.dtype == torch.float32
    assert (grad - expected).abs().max() <= 0.02 * expected.abs().max()
    operations = [str(node.target) for node in view.features.structure.graph.nodes if node.op == "call_function"]
    names = [name.split(".")[1] for name in operations if name.startswith("pixelpart.")]
    assert names == ["stem", "residual", "conv_relu", "conv_add_relu"]


def test_without_a_compiler_the_run_continues_uncompiled(monkeypatch):
    """The compiler's own error, raised by the folding, the first thing that a step compiles."""

    def backend(graph, inputs):
        raise OSError("no compiler here")

    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=backend))
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    monkeypatch.setattr(CapturedStep, "_capture", lambda self, phase, batch: train_step(self.state, phase, batch))
    plan, said = plan_for("part"), []
    fast, plain = state_for(plan), state_for(plan)
    step = CapturedStep(fast, batch_size=6, say=said.append)
    for i in range(2):
        step(fast, plan.main, batch_for(plan.main, seed=i))
        train_step(plain, plan.main, batch_for(plan.main, seed=i))
    assert len(said) == 1
    assert "runs uncompiled" in said[0]
    assert "no compiler here" in said[0]
    assert_same_state(fast, plain)


@pytest.mark.parametrize("backend", ["eager"], indirect=True)
def test_any_number_of_runs_can_be_compiled_in_one_process(backend):
    """torch keeps what it compiles by code object, eight to each; each training state has code objects of its own."""
    with torch._dynamo.config.patch(recompile_limit=1):
        for classes in (10, 20):
            folding = Folding(models.build("tiny-cnn", num_classes=classes))
            folding.compile()
            capture.compiled(total_loss)(folding(), torch.rand(2, 3, 8, 8), torch.tensor([1, 2]), F.cross_entropy)


# -- on a GPU: ResNet-18 in bf16, captured, as the recipes for CIFAR-10 train it


CUDA = {"dtype": torch.float32, "device": "cuda", "size": 32}


def gpu_state(plan, rate=0.01):
    return state_for(plan, rate=rate, **CUDA)


def movement(state, before):
    """How far all weights are from where they were."""
    return torch.cat([(p - before[name]).flatten() for name, p in state.model.named_parameters()])


def gpu_batch(plan, n, seed, maps=None):
    return batch_for(plan.main, n, seed, maps=maps, kind=plan.config.augment, **CUDA)


def losses_of(step, state, phase, batches):
    """The loss of every step."""
    losses = []
    with fast_arithmetic():
        for batch in batches:
            before = state.tally.read()["loss"]
            step(state, phase, batch)
            losses.append((state.tally.read()["loss"] - before) / len(batch.labels))
    return losses


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("method", "overrides"),
    [(method, {}) for method in METHODS]
    + [("part", {"attack": {"name": "mma", "steps": 3}}), ("at", {"model": "preactresnet18"})]
    + [("part", {"model": "wrn-10-1"}), ("part", {"model": "tiny-cnn"}), ("at", AWP), ("part-t", AWP)]
    + [("part", {"model": "vit-tiny", "mask": {"source": "gradient-rollout"}} | AWP)]
    + [("part", MIXED), ("part-m", MIXED), ("part", MIXED | MMA), ("at", STRONG), ("part-t", STRONG)]
    + [("at", {"augment": "crop-flip-cutout"})],
    ids=str,
)
def test_twelve_captured_steps_have_the_losses_of_plain_ones(method, overrides):
    plan = build_plan(recipes.cifar10(method, **({"burn_in": {"epochs": 0}, "ema": 0.9} | overrides)))
    # small: two ways to round drift apart by themselves, and faster where the weights' worst is sought
    rate = 1e-5 if plan.config.optim.name == "adamw" else 5e-4 if plan.config.awp.gamma else 2e-3
    fast, plain, said = gpu_state(plan, rate), gpu_state(plan, rate), []
    before = copy.deepcopy(plain.model.state_dict())
    batches = [gpu_batch(plan, 128, seed) for seed in range(12)]
    mine = losses_of(CapturedStep(fast, batch_size=128, say=said.append), fast, plan.phase(0), batches)
    theirs = losses_of(train_step, plain, plan.phase(0), batches)
    assert said == []
    assert all(map(math.isfinite, mine))
    assert mine == pytest.approx(theirs, rel=0.01)
    assert F.cosine_similarity(movement(fast, before), movement(plain, before), dim=0) > 0.6
    a, b = fast.tally.read(), plain.tally.read()
    assert a["images"] == b["images"] == 12 * 128
    assert a["budget"] == pytest.approx(b["budget"], rel=0.01)


@pytest.mark.gpu
@pytest.mark.parametrize("method", ["at", "part-t"])
def test_one_captured_step_is_the_plain_step_but_for_rounding(method):
    plan = build_plan(recipes.cifar10(method, burn_in={"epochs": 0}, ema=0.9))
    fast, plain, said = gpu_state(plan), gpu_state(plan), []
    before = copy.deepcopy(plain.model.state_dict())
    batch = gpu_batch(plan, 128, 0)
    (mine,) = losses_of(CapturedStep(fast, batch_size=128, say=said.append), fast, plan.main, [batch])
    (theirs,) = losses_of(train_step, plain, plan.main, [batch])
    assert said == []
    assert mine == pytest.approx(theirs, rel=5e-3)
    assert F.cosine_similarity(movement(fast, before), movement(plain, before), dim=0) > 0.8
    for (name, a), b in zip(fast.model.named_buffers(), plain.model.buffers(), strict=True):
        if name.endswith("num_batches_tracked"):
            assert a == b
        elif "running" in name:
            assert (a - b).abs().max() <= 0.02 * (b - before[name]).abs().max(), name


@pytest.mark.gpu
def test_a_short_last_batch_is_captured_too():
    plan = build_plan(recipes.cifar10("part", burn_in={"epochs": 0}))
    fast, plain, said = gpu_state(plan), gpu_state(plan), []
    step = CapturedStep(fast, batch_size=128, say=said.append)
    batches = [gpu_batch(plan, n, seed) for seed, n in enumerate([128, 128, 80, 128, 80, 128])]
    assert losses_of(step, fast, plan.main, batches) == pytest.approx(
        losses_of(train_step, plain, plan.main, batches), rel=0.01
    )
    assert said == []
    assert sorted(n for *_, n in step._graphs) == [80, 128]
    assert fast.tally.read()["images"] == sum(len(batch.labels) for batch in batches)


@pytest.mark.gpu
def test_a_replay_reads_the_rates_the_maps_and_the_batch_of_its_own_step():
    """Stored maps alone decide the budget, so it is the same to the bit; the average follows the weights."""
    plan = build_plan(recipes.cifar10("part", burn_in={"epochs": 0}, ema=0.9, mask={"every": 1}))
    fast, plain, said = gpu_state(plan), gpu_state(plan), []
    step = CapturedStep(fast, batch_size=128, say=said.append)
    expected = {name: tensor.clone() for name, tensor in fast.average.model.state_dict().items()}
    budgets = {}
    with fast_arithmetic():
        for i in range(4):
            batch = gpu_batch(plan, 128, i, maps=(4, 4))
            for state, run in ((fast, step), (plain, train_step)):
                state.lr.fill_(0.0 if i == 3 else 0.01)
                state.average.set_step(100 * i)
                weights = [p.detach().clone() for p in state.model.parameters()]
                before = state.tally.read()["budget"]
                run(state, plan.main, batch)
                budgets.setdefault(i, []).append(state.tally.read()["budget"] - before)
                still = all(torch.equal(a, b) for a, b in zip(weights, state.model.parameters(), strict=True))
                assert still is (i == 3)
            for name, live in fast.model.state_dict().items():
                slow, rate = expected[name], 1 - decay_at(100 * i, 0.9)
                expected[name] = torch.lerp(slow, live, rate) if slow.is_floating_point() else live.clone()
                torch.testing.assert_close(fast.average.model.state_dict()[name], expected[name], rtol=1e-5, atol=1e-6)
    assert said == []
    for mine, theirs in budgets.values():
        assert mine == pytest.approx(theirs, rel=1e-6)
    assert len({round(mine, 9) for mine, _ in budgets.values()}) == 4  # other maps, other budgets


@pytest.mark.gpu
def test_a_captured_step_draws_no_random_number():
    plan = build_plan(recipes.cifar10("at"))
    state = gpu_state(plan)
    step = CapturedStep(state, batch_size=128)
    with fast_arithmetic():
        step(state, plan.main, gpu_batch(plan, 128, 0))
        before = torch.cuda.get_rng_state()
        step(state, plan.main, gpu_batch(plan, 128, 1))
    assert torch.equal(before, torch.cuda.get_rng_state())
