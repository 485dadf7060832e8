"""What makes a recipe strong, all together: every augmentation, smoothed labels, perturbed weights, averaging."""

import copy
import dataclasses

import pytest
import torch

from pixelpart import draws
from pixelpart.data import augment
from pixelpart.data.loader import Loader
from pixelpart.engine.inputs import step_inputs
from pixelpart.engine.plan import build
from pixelpart.engine.state import Learner
from pixelpart.engine.step import StepInputs, train_step
from pixelpart.runtime.world import World
from stopping import files_of, whole_and_parts

STRONG = {
    "objective": {"smoothing": 0.1},
    "awp": {"gamma": 0.005, "after": 1},
    "optim": {"schedule": "cosine", "warmup": 0.2},
}


def loader_of(n, *, batch_size, world=None):
    images = torch.randint(256, (n, 3, 32, 32), generator=draws.generator(0, "images")).byte()
    rows, cpu = torch.arange(n), torch.device("cpu")
    return Loader(images, rows % 10, rows=rows, batch_size=batch_size, seed=0, device=cpu, world=world or World())


each_kind = pytest.mark.parametrize("kind", augment.AUGMENTS)


@each_kind
@pytest.mark.parametrize(("method", "every"), [("part-m", 0), ("part", 1)])
def test_stopped_in_the_middle_a_strong_run_ends_with_the_same_bytes(
    small, quiet, tmp_path, monkeypatch, kind, method, every
):
    config = small(method, augment=kind, mask={"every": every}, epochs=2, **STRONG)
    whole, parts = whole_and_parts(config, tmp_path, monkeypatch, at=6, screen=quiet)
    assert files_of(parts) == files_of(whole)
    assert [row["loss"] for row in parts.metrics] == [row["loss"] for row in whole.metrics]


@each_kind
def test_a_model_learns_what_it_is_shown(small, kind):
    """The same batch over and over: the loss falls, the augmentation's mixed labels and holes notwithstanding."""
    plan = build(small("at", augment=kind, objective={"smoothing": 0.1}))
    learner = Learner(plan.model, plan.config, torch.device("cpu"))
    learner.lr.fill_(0.05)
    inputs = step_inputs(plan.config, plan.main, loader_of(16, batch_size=16), None, epoch=0, step=0)
    losses = []
    for _ in range(25):
        before = learner.tally.read()["loss"]
        train_step(learner, plan.main, inputs)
        losses.append((learner.tally.read()["loss"] - before) / 16)
    assert losses[-1] < 0.8 * losses[0]


@each_kind
def test_two_processes_see_what_one_sees(small, kind):
    """Their inputs, one after the other, are those of the single one."""
    plan = build(small("part", augment=kind))

    def shown(world):
        loader = loader_of(40, batch_size=24, world=world)
        for step in range(2):
            inputs = step_inputs(plan.config, plan.main, loader, None, epoch=3, step=step)
            targets = augment.mixed(inputs.augmentation, torch.eye(10)[inputs.labels], (32, 32))
            yield augment.picture(inputs.augmentation, inputs.images), targets

    for alone, first, second in zip(shown(World()), shown(World(0, 2)), shown(World(1, 2)), strict=True):
        for whole, *parts in zip(alone, first, second, strict=True):
            assert torch.equal(whole, torch.cat(parts))


def test_boxes_of_no_pixel_leave_the_step_as_it_is_without_them(small):
    """The targets are then probabilities of 1 and 0, and the two steps equal but for rounding."""
    plan = build(small("at"))
    first = Learner(copy.deepcopy(plan.model).double(), plan.config, torch.device("cpu"))
    second = Learner(copy.deepcopy(plan.model).double(), plan.config, torch.device("cpu"))
    g = draws.generator(0, "test")
    images = torch.rand(6, 3, 32, 32, generator=g, dtype=torch.float64)
    noise = 2 * torch.rand(images.shape, generator=g, dtype=torch.float64) - 1
    moves = augment.draw("crop-flip-cutmix", 6, generator=g)
    none = dataclasses.replace(moves.mix.box, height=0 * moves.mix.box.height)
    empty = dataclasses.replace(moves, mix=dataclasses.replace(moves.mix, box=none))
    labels = torch.tensor([1, 2, 3, 4, 5, 6])
    train_step(first, plan.main, StepInputs(images, labels, empty, noise))
    train_step(second, plan.main, StepInputs(images, labels, dataclasses.replace(moves, mix=None), noise))
    for mine, theirs in zip(first.state().values(), second.state().values(), strict=True):
        torch.testing.assert_close(mine, theirs)
