"""Optimisers against formulas written out, and what they keep between two steps."""

import copy
import math

import pytest
import torch

from pixelpart import draws, models, recipes
from pixelpart.config import OptimConfig
from pixelpart.engine.optimizers import OPTIMIZERS, state_of
from pixelpart.engine.plan import build
from pixelpart.engine.state import Learner
from pixelpart.engine.train import train
from pixelpart.errors import UserError
from pixelpart.runs import load_checkpoint
from stopping import files_of, whole_and_parts

ADAMW = {"name": "adamw", "lr": 0.01, "weight_decay": 0.1, "clip": 1.0}


def losses_for(model, steps=3):
    """A loss for every step, each on other images."""
    for i in range(steps):
        g = draws.generator(i, "test")
        x, y = torch.rand(6, 3, 8, 8, generator=g, dtype=torch.float64), torch.randint(10, (6,), generator=g)
        yield lambda x=x, y=y: torch.nn.functional.cross_entropy(model(x), y)


def learner_for(**optim):
    config = recipes.shapes("at", ema=0.0, optim=optim)
    learner = Learner(models.build("tiny-cnn").double(), config, torch.device("cpu"))
    learner.lr.fill_(config.optim.lr)
    return learner


def test_adamw_is_torchs_plain_one_in_a_loop_of_its_own():
    learner = learner_for(name="adamw", lr=0.01, weight_decay=0.1, momentum=0.8)
    model = copy.deepcopy(learner.model)
    plain = torch.optim.AdamW(model.parameters(), lr=learner.lr.item(), betas=(0.8, 0.999), weight_decay=0.1)
    for mine, theirs in zip(losses_for(learner.model), losses_for(model), strict=True):
        learner.descend(mine, n=1)
        plain.zero_grad()
        theirs().backward()
        plain.step()
    for (name, a), b in zip(learner.model.named_parameters(), model.parameters(), strict=True):
        assert torch.allclose(a, b, rtol=1e-9, atol=1e-12), name


def test_adamw_by_hand():
    """g = 2, then 1; beta 0.5, 0.999; lr 0.1, decay 0.2: w 1 -> 0.98 - 0.1, then shrunk by 2 % and moved on."""
    layer = torch.nn.Linear(1, 1, bias=False).double()
    torch.nn.init.ones_(layer.weight)
    optimizer = OPTIMIZERS["adamw"](layer, torch.tensor(0.1), OptimConfig(momentum=0.5, weight_decay=0.2))
    layer.weight.grad = torch.full_like(layer.weight, 2.0)
    optimizer.step()
    assert layer.weight.item() == pytest.approx(0.88, rel=1e-7)
    layer.weight.grad = torch.full_like(layer.weight, 1.0)
    optimizer.step()
    mean = (0.5 * 1.0 + 0.5 * 1.0) / (1 - 0.25)
    square = (0.999 * 0.004 + 0.001) / (1 - 0.999**2)
    assert layer.weight.item() == pytest.approx(0.88 * 0.98 - 0.1 * mean / math.sqrt(square), rel=1e-6)


@pytest.mark.parametrize("limit", [0.05, 1e6])
def test_a_gradient_longer_than_the_limit_is_cut_to_it_over_all_weights(limit):
    clipped, free = learner_for(clip=limit, momentum=0.0, weight_decay=0.0), learner_for(momentum=0.0, weight_decay=0.0)
    before = torch.cat([p.detach().flatten() for p in free.model.parameters()])
    moved = []
    for learner in (clipped, free):
        learner.descend(next(losses_for(learner.model)), n=1)
        moved.append(torch.cat([p.detach().flatten() for p in learner.model.parameters()]) - before)
    length = moved[1].norm() / free.lr
    assert length > 0.05
    expected = moved[1] * min(1.0, limit / length.item())
    assert torch.allclose(moved[0], expected, rtol=1e-5, atol=1e-12)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_all_state_is_there_from_the_start_and_stays_where_it_is(name):
    learner = learner_for(name=name)
    before = {name: tensor.data_ptr() for name, tensor in learner.state().items()}
    for loss in losses_for(learner.model):
        learner.descend(loss, n=1)
    assert {name: tensor.data_ptr() for name, tensor in learner.state().items()} == before
    kept = state_of(learner.optimizer, learner.model)
    assert all(tensor.abs().sum() > 0 for tensor in kept.values())
    assert len(kept) == sum(len(slots) for slots in learner.optimizer.state.values())


def test_a_run_of_sgd_keeps_what_it_kept_before_there_was_another(small, quiet, tmp_path):
    run = train(small("at", epochs=1), tmp_path / "run", screen=quiet)
    names = {name.partition(".")[0] for name in load_checkpoint(run.folder.checkpoint("last"))[0]}
    assert names == {"model", "average", "momentum", "tally"}


def test_a_run_with_adamw_clipping_and_awp_goes_on_as_if_never_stopped(small, quiet, tmp_path, monkeypatch):
    config = small("part", optim=ADAMW, awp={"gamma": 0.01, "after": 1})
    whole, parts = whole_and_parts(config, tmp_path, monkeypatch, at=6, screen=quiet)
    assert files_of(parts) == files_of(whole)
    last = load_checkpoint(whole.folder.checkpoint("last"))[0]
    assert {int(tensor) for name, tensor in last.items() if name.startswith("steps.")} == {12}


def test_a_fork_cannot_change_the_optimiser(small, quiet, tmp_path):
    train(small("at", epochs=2, keep=(1,)), tmp_path / "a", screen=quiet)
    config = small("at", epochs=2, init_from=f"{tmp_path / 'a'}@1", optim={"name": "adamw"})
    with pytest.raises(UserError, match=r"cannot fork .*: optim.name: 'sgd' there, 'adamw' here"):
        train(config, tmp_path / "b", screen=quiet)


def test_an_unknown_optimiser_is_told_with_the_choices():
    with pytest.raises(UserError, match="unknown optimizer 'lion'; choose from adamw, sgd"):
        build(recipes.shapes("at", optim={"name": "lion"}))
