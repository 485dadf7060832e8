"""The captured step against the plain one.

Here CUDA is played by a stand-in and nothing is compiled; compiled code is in compiled_steps.py, which runs in a
process of its own, since in this one shapes are checked at every call.
"""

import copy
import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from pixelpart import draws, recipes
from pixelpart.attacks.pgd import signed_step
from pixelpart.data import augment
from pixelpart.engine.fast import Captured, copy_of, fast_arithmetic, tensors_in
from pixelpart.engine.plan import build
from pixelpart.engine.state import Learner
from pixelpart.engine.step import StepInputs, train_step
from pixelpart.engine.train import Trainer
from pixelpart.models.tiny import TinyCNN
from pixelpart.runs import RunFolder
from pixelpart.runtime.world import World
from pixelpart.view import capture


def some_inputs(n=6, seed=0, *, maps=False, starts=1):
    g = draws.generator(seed, "test")
    images = torch.rand(n, 3, 32, 32, generator=g)
    noise = torch.rand(*((starts,) if starts > 1 else ()), *images.shape, generator=g) * 2 - 1
    labels = torch.randint(10, (n,), generator=g)
    stored = torch.rand(n, 8, 8, generator=g) if maps else None
    return StepInputs(images, labels, augment.draw("crop-flip", n, generator=g), noise, stored)


def plan_for(method="part", **overrides):
    return build(recipes.shapes(method, **({"ema": 0.9, "attack": {"steps": 2, "step_size": "3/255"}} | overrides)))


def learner_for(plan):
    learner = Learner(copy.deepcopy(plan.model), plan.config, torch.device("cpu"))
    learner.lr.fill_(0.05)
    return learner


def assert_same_state(a, b):
    for (name, mine), theirs in zip(a.state().items(), b.state().values(), strict=True):
        assert torch.equal(mine, theirs), name


# -- inputs and their buffers


@pytest.mark.parametrize("maps", [False, True])
def test_a_copy_holds_the_same_values_at_addresses_of_its_own(maps):
    inputs = some_inputs(maps=maps)
    buffers = copy_of(inputs)
    assert type(buffers) is StepInputs
    assert type(buffers.augmentation) is augment.Params
    assert (buffers.maps is None) is not maps
    pairs = list(zip(tensors_in(inputs), tensors_in(buffers), strict=True))
    assert len(pairs) == 6 + maps  # images, labels, top, left, flip, noise
    for a, b in pairs:
        assert torch.equal(a, b)
        assert a.dtype == b.dtype
        assert a.data_ptr() != b.data_ptr()


def test_the_tensors_come_in_the_order_of_the_fields():
    inputs = some_inputs(maps=True)
    moves = inputs.augmentation
    expected = [inputs.images, inputs.labels, moves.top, moves.left, moves.flip, inputs.noise, inputs.maps]
    assert all(a is b for a, b in zip(tensors_in(inputs), expected, strict=True))


def test_what_is_copied_into_the_buffers_is_another_steps_inputs():
    first, second = some_inputs(seed=1, maps=True, starts=3), some_inputs(seed=2, maps=True, starts=3)
    buffers = copy_of(first)
    for buffer, value in zip(tensors_in(buffers), tensors_in(second), strict=True):
        buffer.copy_(value)
    assert all(torch.equal(a, b) for a, b in zip(tensors_in(buffers), tensors_in(second), strict=True))
    assert not torch.equal(first.images, second.images)


def test_inputs_without_maps_do_not_fit_buffers_with_them():
    with pytest.raises(ValueError, match="shorter"):
        list(zip(tensors_in(copy_of(some_inputs(maps=True))), tensors_in(some_inputs()), strict=True))


# -- capturing, with a stand-in for CUDA: what is captured is not run, a replay runs it on the same buffers


@pytest.fixture
def cuda(monkeypatch):
    """Notes what really ran before anything was captured."""
    runs = []

    class Graph:
        def __init__(self, work, result):
            self.work, self.result = work, result

        def replay(self):
            made = self.work()
            if made is not None:
                self.result.copy_(made)

    def record(work, *, pool=None, between=lambda: None):
        for _ in range(capture.WARM_UPS):
            runs.append(work)
            result = work()
        between()
        result = None if result is None else torch.full_like(result, torch.nan)
        return Graph(work, result), result

    monkeypatch.setattr(capture, "record", record)
    monkeypatch.setattr(capture, "compiled", lambda function: function)
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    return runs


@pytest.mark.parametrize("every", [0, 1])
def test_burn_in_mask_and_short_batches_give_the_bits_of_the_plain_step(cuda, every):
    """Each phase and batch size is captured once, and what warming up has learnt is undone."""
    plan = plan_for(mask={"every": every})
    fast, plain = learner_for(plan), learner_for(plan)
    said = []
    step = Captured(fast, full=6, say=said.append)
    stops = [
        (plan.burn_in, 6),
        (plan.burn_in, 6),
        (plan.burn_in, 4),
        (plan.main, 6),
        (plan.burn_in, 4),
        (plan.main, 6),
        (plan.main, 4),
    ]
    for i, (phase, n) in enumerate(stops):
        inputs = some_inputs(n, seed=i, maps=bool(every) and phase is plan.main)
        untouched = copy_of(inputs)
        fast.lr.fill_(0.05 / (i + 1))
        plain.lr.fill_(0.05 / (i + 1))
        step(fast, phase, inputs)
        train_step(plain, phase, inputs)
        assert_same_state(fast, plain)
        assert all(torch.equal(a, b) for a, b in zip(tensors_in(inputs), tensors_in(untouched), strict=True))
    assert len(step._graphs) == 4
    assert len(cuda) == 4 * capture.WARM_UPS
    assert fast.tally.read()["images"] == sum(n for _, n in stops)
    assert said == []
    assert not step.plain


def test_what_a_network_draws_is_what_it_draws_in_the_plain_step(cuda):
    """Warming up draws as well, and that is undone."""

    class Dropping(TinyCNN):
        def trunk(self, x):
            return F.dropout(super().trunk(x), training=self.training)

    plan = dataclasses.replace(plan_for(), model=Dropping(10))
    fast, plain = learner_for(plan), learner_for(plan)
    for step, learner in ((Captured(fast, full=6), fast), (train_step, plain)):
        with torch.random.fork_rng(devices=[]):
            for i in range(2):
                draws.seed_torch(0, "network", 0, i)
                step(learner, plan.main, some_inputs(seed=i))
    assert_same_state(fast, plain)


def test_perturbed_weights_have_a_graph_of_their_own_and_end_as_in_plain_steps(cuda):
    plan = plan_for("part", epochs=12, awp={"gamma": 0.01, "after": 4}, optim={"name": "adamw", "clip": 1.0})
    fast, plain = learner_for(plan), learner_for(plan)
    step = Captured(fast, full=6)
    for epoch in (3, 4, 3, 4):
        step(fast, plan.phase(epoch), some_inputs(seed=epoch))
        train_step(plain, plan.phase(epoch), some_inputs(seed=epoch))
        assert_same_state(fast, plain)
    assert len(step._graphs) == 2


def test_one_graph_serves_a_whole_ramp_and_one_compiled_objective_what_follows_too(cuda, monkeypatch):
    made = []
    monkeypatch.setattr(capture, "compiled", lambda function: made.append(function) or function)
    plan = plan_for("at", epochs=12, eps_ramp=10, awp={"gamma": 0.01, "after": 9})
    fast, plain = learner_for(plan), learner_for(plan)
    step, used = Captured(fast, full=6), set()
    original = capture.train_step
    monkeypatch.setattr(capture, "train_step", lambda a, b, c: (used.add(b.objective), original(a, b, c))[1])
    for epoch in range(12):
        inputs, phase = some_inputs(seed=epoch), plan.phase(epoch)
        if phase.share < 1:
            inputs = dataclasses.replace(inputs, share=torch.full((6, 1, 1, 1), phase.share))
        step(fast, phase, inputs)
        train_step(plain, phase, inputs)
        assert_same_state(fast, plain)
    assert len(step._graphs) == 3  # the ramp, the ramp with perturbed weights, and without a ramp
    assert len(used) == 1


def test_only_full_batches_are_compiled(cuda, monkeypatch):
    seen = []
    monkeypatch.setattr(capture, "compile_phase", lambda phase, ascend: (seen.append(phase), phase)[1])
    plan = plan_for("at")
    step = Captured(learner_for(plan), full=6)
    for n in (6, 4, 6, 5):
        step(step.learner, plan.main, some_inputs(n))
    assert seen == [plan.main]


def test_all_that_a_step_changes_stays_at_its_address(cuda):
    plan = plan_for()
    learner = learner_for(plan)
    before = {name: tensor.data_ptr() for name, tensor in learner.state().items()}
    step = Captured(learner, full=6)
    for i in range(2):
        step(learner, plan.main, some_inputs(seed=i))
    assert {name: tensor.data_ptr() for name, tensor in learner.state().items()} == before


# -- what cannot be compiled runs plainly


def broken(*args, **kwargs):
    raise RuntimeError("no compiler here\nand a long story about it")


def breaks_at(monkeypatch, where):
    if where == "folding":
        monkeypatch.setattr(torch, "compile", lambda function, **_: broken)
    elif where == "compiling":
        monkeypatch.setattr(capture, "compiled", lambda function: broken)
    elif where == "capturing":
        monkeypatch.setattr(capture, "record", broken)


@pytest.mark.parametrize("where", ["folding", "compiling", "capturing"])
def test_it_says_so_once_and_goes_on_plainly_as_if_nothing_had_been_tried(cuda, monkeypatch, where):
    breaks_at(monkeypatch, where)
    plan, said = plan_for(), []
    fast, plain = learner_for(plan), learner_for(plan)
    step = Captured(fast, full=6, say=said.append)
    for i, (phase, n) in enumerate([(plan.burn_in, 6), (plan.main, 6), (plan.main, 4)]):
        step(fast, phase, some_inputs(n, seed=i))
        train_step(plain, phase, some_inputs(n, seed=i))
        assert_same_state(fast, plain)
    assert said == ["the step cannot be compiled and captured, so it runs plainly: no compiler here"]
    assert step.plain
    assert step.ascend is signed_step  # what the measurements after an epoch climb with


def test_a_phase_that_fails_late_leaves_what_was_learnt_before(cuda, monkeypatch):
    plan, said = plan_for(), []
    fast, plain = learner_for(plan), learner_for(plan)
    step = Captured(fast, full=6, say=said.append)
    for i, phase in enumerate([plan.burn_in, plan.burn_in, plan.main, plan.main, plan.burn_in]):
        if phase is plan.main:
            breaks_at(monkeypatch, "capturing")
        step(fast, phase, some_inputs(seed=i))
        train_step(plain, phase, some_inputs(seed=i))
        assert_same_state(fast, plain)
    assert len(said) == 1


def test_another_error_is_not_swallowed(cuda, monkeypatch):
    def step(*args):
        raise ZeroDivisionError

    monkeypatch.setattr(capture, "train_step", step)
    plan = plan_for("at")
    captured = Captured(learner_for(plan), full=6)
    with pytest.raises(ZeroDivisionError):
        captured(captured.learner, plan.main, some_inputs())


@pytest.mark.parametrize("where", ["nowhere", "folding"])
def test_a_run_ends_the_same_by_either_path(cuda, monkeypatch, small, quiet, tmp_path, where):
    """With the stand-in in a GPU's place; last short batch, averaging and measurements included."""
    breaks_at(monkeypatch, where)
    config = small("part", batch_size=150, epochs=2)  # 400 images: two full batches and a short one
    trainers = []
    for fast in (False, True):
        folder = RunFolder(tmp_path / str(fast))
        trainer = Trainer(build(config), folder, torch.device("cpu"), quiet, World(), data_root=None)
        if fast:
            trainer.go_fast()
        with folder.locked():
            trainer.run(60.0)
        trainers.append(trainer)
    assert_same_state(*(trainer.learner for trainer in trainers))
    plain, captured = (trainer.folder.read_metrics() for trainer in trainers)
    for mine, theirs in zip(captured, plain, strict=True):
        for field in ("loss", "budget_mean", "robust_ce", "damage"):  # measured in other chunks, so rounded otherwise
            assert mine[field] == pytest.approx(theirs[field], rel=1e-4)
    said = (trainers[1].folder.path / "log.txt").read_text()
    assert said.count("runs plainly") == (where != "nowhere")


# -- arithmetic


def switches():
    return torch.backends.cudnn.benchmark, torch.get_float32_matmul_precision()


def test_fast_arithmetic_is_switched_back_also_after_an_exception():
    before = switches()
    with fast_arithmetic():
        assert switches() == (True, "high")
    assert switches() == before
    with pytest.raises(ZeroDivisionError), fast_arithmetic():
        _ = 1 / 0
    assert switches() == before


def test_fast_arithmetic_goes_back_to_what_a_caller_had_set():
    before = switches()
    try:
        torch.backends.cudnn.benchmark = True
        torch.set_float32_matmul_precision("medium")
        with fast_arithmetic():
            assert switches() == (True, "high")
        assert switches() == (True, "medium")
    finally:
        torch.backends.cudnn.benchmark = before[0]
        torch.set_float32_matmul_precision(before[1])


def test_fast_arithmetic_leaves_torchs_newer_switches_alone():
    """Once a caller has used them, torch refuses to read the older one."""
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    other = "ieee" if before == "tf32" else "tf32"
    try:
        matmul.fp32_precision = other
        with fast_arithmetic():
            assert torch.backends.cudnn.benchmark
        assert matmul.fp32_precision == other
    finally:
        matmul.fp32_precision = before
    assert not torch.backends.cudnn.benchmark


# -- compiled code, in a process of its own


@pytest.mark.parametrize(
    "which",
    [
        pytest.param("not slow and not gpu", marks=pytest.mark.timeout(300)),  # a dozen tests in one
        pytest.param("slow and not gpu", marks=[pytest.mark.slow, pytest.mark.timeout(900)]),
        pytest.param("gpu", marks=[pytest.mark.gpu, pytest.mark.timeout(1800)]),
    ],
)
def test_compiled_steps(which):
    file = Path(__file__).with_name("compiled_steps.py")
    command = [sys.executable, "-m", "pytest", str(file), "-m", which, "-o", "timeout=600", "-p", "no:cacheprovider"]
    done = subprocess.run(command, env=os.environ | {"PIXELPART_TYPES": "0"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
