"""The captured step against the plain step.

CUDA is replaced by a stand-in and nothing is compiled here; compiled code is tested in compiled_steps.py and
compiled_policies.py, in processes of their own, since in this one shapes are checked at every call.
"""

import dataclasses
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from compiled import run_untyped
from pixelpart import draws
from pixelpart.attacks import ATTACKS, Attack
from pixelpart.attacks.pgd import signed_step
from pixelpart.engine import fast as fast_module
from pixelpart.engine.fast import CapturedStep, copy_of, tensors_in
from pixelpart.engine.plan import build_plan
from pixelpart.engine.step import train_step
from pixelpart.engine.train import Trainer
from pixelpart.models.tiny import TinyCNN
from pixelpart.runs import RunFolder
from pixelpart.runtime.world import World
from pixelpart.view import capture
from steps import assert_same_state, batch_for, plan_for, state_for

SINGLE = {"dtype": torch.float32}


def pair_for(plan):
    """Two equal training states: for the fast and for the plain step."""
    return state_for(plan, **SINGLE), state_for(plan, **SINGLE)


@pytest.mark.parametrize("every", [0, 1])
def test_phases_and_short_batches_give_the_bits_of_the_plain_step(cuda, every):
    """Each phase and batch size is captured once; what the warm-up steps changed is undone."""
    plan = plan_for(mask={"every": every}, burn_in={"epochs": 1})
    fast, plain = pair_for(plan)
    addresses = {name: tensor.data_ptr() for name, tensor in fast.tensors().items()}
    said = []
    step = CapturedStep(fast, batch_size=6, say=said.append)
    order = [(plan.burn_in, 6), (plan.burn_in, 4), (plan.main, 6), (plan.burn_in, 4), (plan.main, 6), (plan.main, 4)]
    for i, (phase, n) in enumerate(order):
        maps = (4, 4) if every and phase is plan.main else None
        batch = batch_for(phase, n, seed=i, maps=maps, **SINGLE)
        untouched = copy_of(batch)
        for state in (fast, plain):
            state.lr.fill_(0.05 / (i + 1))
            state.average.set_step(20 * i)
        step(fast, phase, batch)
        train_step(plain, phase, batch)
        assert_same_state(fast, plain)
        assert all(torch.equal(a, b) for a, b in zip(tensors_in(batch), tensors_in(untouched), strict=True))
    assert len(step._graphs) == 4
    assert len(cuda) == 4 * capture.WARM_UPS
    assert {name: tensor.data_ptr() for name, tensor in fast.tensors().items()} == addresses
    assert said == []


def test_dropout_draws_as_in_the_plain_step(cuda):
    class WithDropout(TinyCNN):
        def trunk(self, x):
            return F.dropout(super().trunk(x), training=self.training)

    plan = dataclasses.replace(plan_for(), model=WithDropout(10))
    fast, plain = pair_for(plan)
    for step, state in ((CapturedStep(fast, batch_size=6), fast), (train_step, plain)):
        with torch.random.fork_rng(devices=[]):
            for i in range(2):
                draws.seed_torch(0, "network", 0, i)
                step(state, plan.main, batch_for(plan.main, seed=i, **SINGLE))
    assert_same_state(fast, plain)


def test_a_ramp_of_eps_is_one_graph_and_awp_another_and_all_share_one_compiled_loss(cuda, monkeypatch):
    plan = plan_for("at", epochs=8, eps_ramp=6, awp={"gamma": 0.01, "after": 5}, optim={"name": "adamw", "clip": 1.0})
    fast, plain = pair_for(plan)
    step, losses = CapturedStep(fast, batch_size=6), set()

    def spy(state, phase, batch):
        losses.add(phase.loss)
        train_step(state, phase, batch)

    monkeypatch.setattr(fast_module, "train_step", spy)
    for epoch in range(8):
        phase = plan.phase(epoch)
        batch = batch_for(phase, seed=epoch, **SINGLE)
        if (scale := plan.budget_scale(epoch)) is not None:
            batch = dataclasses.replace(batch, budget_scale=torch.full((6, 1, 1, 1), scale))
        step(fast, phase, batch)
        train_step(plain, phase, batch)
        assert_same_state(fast, plain)
    assert len(step._graphs) == 3  # the ramp, the ramp with perturbed weights, and without a ramp
    assert len(losses) == 1


@pytest.mark.parametrize("takes", [True, False])
def test_the_compiled_ascend_is_given_to_attacks_that_take_it(cuda, monkeypatch, takes):
    given = []

    def documented(model, x, y, budget, *, step_size, steps, start):
        return start

    def full(model, x, y, budget, *, step_size, steps, start, ascend=None):
        given.append(ascend)
        return start

    monkeypatch.setitem(ATTACKS, "own", Attack(full if takes else documented))
    plan = plan_for("at", attack={"name": "own"})
    fast, plain = pair_for(plan)
    step, batch = CapturedStep(fast, batch_size=6), batch_for(plan.main, **SINGLE)
    step(fast, plan.main, batch)
    assert given == [step.ascend] * len(given)
    assert bool(given) == takes
    train_step(plain, plan.main, batch)
    assert_same_state(fast, plain)


# -- what cannot be compiled or captured runs uncompiled


def broken(*args, **kwargs):
    raise RuntimeError("no compiler here\nand a long story about it")


def break_at(monkeypatch, where):
    if where == "compiling":
        monkeypatch.setattr(torch, "compile", lambda function, **_: broken)
    elif where == "capturing":
        monkeypatch.setattr(capture, "record", broken)


@pytest.mark.parametrize("where", ["compiling", "capturing"])
def test_a_failure_is_reported_once_and_changes_no_bit(cuda, monkeypatch, where):
    plan, said = plan_for(burn_in={"epochs": 1}), []
    fast, plain = pair_for(plan)
    if where == "compiling":
        break_at(monkeypatch, where)
    step = CapturedStep(fast, batch_size=6, say=said.append)
    for i, (phase, n) in enumerate([(plan.burn_in, 6), (plan.main, 6), (plan.main, 4)]):
        if phase is plan.main:  # the first phase was captured already
            break_at(monkeypatch, where)
        batch = batch_for(phase, n, seed=i, **SINGLE)
        step(fast, phase, batch)
        train_step(plain, phase, batch)
        assert_same_state(fast, plain)
    assert said == ["the step cannot be compiled and captured; it runs uncompiled: no compiler here"]
    assert step.plain
    assert step.ascend is signed_step  # which the probes use too


@pytest.mark.parametrize("where", ["nowhere", "compiling"])
def test_a_run_ends_the_same_by_either_path(cuda, monkeypatch, small, quiet, tmp_path, where):
    """Short last batch, averaging and probes included."""
    break_at(monkeypatch, where)
    config = small("part", batch_size=75, epochs=2)  # two full batches and a short one
    trainers = []
    for fast in (False, True):
        folder = RunFolder(tmp_path / str(fast))
        trainer = Trainer(build_plan(config), folder, torch.device("cpu"), quiet, World(), data_root=None)
        if fast:
            trainer.use_fast_path()
        with folder.locked():
            trainer.run(60.0)
        trainers.append(trainer)
    assert_same_state(*(trainer.state for trainer in trainers))
    plain, captured = (trainer.folder.read_metrics() for trainer in trainers)
    for mine, theirs in zip(captured, plain, strict=True):
        for field in ("loss", "budget_mean", "robust_ce", "damage"):  # probed in other chunks, so rounded differently
            assert mine[field] == pytest.approx(theirs[field], rel=1e-4)
    log = (trainers[1].folder.path / "log.txt").read_text()
    assert log.count("runs uncompiled") == (where != "nowhere")


# -- compiled code, in a process of its own


@pytest.mark.parametrize(
    "which",
    [
        "not slow and not gpu",
        pytest.param("slow and not gpu", marks=[pytest.mark.slow, pytest.mark.timeout(900)]),
        pytest.param("gpu", marks=[pytest.mark.gpu, pytest.mark.timeout(1800)]),
    ],
)
@pytest.mark.parametrize("what", ["steps", "policies"])
def test_compiled_code(what, which):
    run_untyped(Path(__file__).with_name(f"compiled_{what}.py"), which)
