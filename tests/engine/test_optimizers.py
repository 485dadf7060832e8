"""Optimisers and averaged weights against formulas written out, and the state kept between two steps."""

import math

import pytest
import torch

from pixelpart import draws, models, recipes
from pixelpart.config import OptimConfig
from pixelpart.engine.optimizers import OPTIMIZERS, state_of
from pixelpart.engine.state import TrainingState, WeightAverage


def losses_for(model, steps=3):
    """The loss of every step, each on its own images."""
    for i in range(steps):
        g = draws.generator(i, "test")
        x, y = torch.rand(6, 3, 8, 8, generator=g, dtype=torch.float64), torch.randint(10, (6,), generator=g)
        yield lambda x=x, y=y: torch.nn.functional.cross_entropy(model(x), y)


def state_for(**optim):
    config = recipes.shapes("at", ema=0.0, optim=optim)
    state = TrainingState(models.build("tiny-cnn").double(), config, torch.device("cpu"))
    state.lr.fill_(config.optim.lr)
    return state


def test_adamw_by_hand():
    """g = 2, then 1; beta 0.5, 0.999; lr 0.1, decay 0.2: w 1 -> 0.98 - 0.1, then decayed by 2 % and moved."""
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
def test_a_gradient_longer_than_the_limit_is_scaled_down_to_it(limit):
    clipped, free = state_for(clip=limit, momentum=0.0, weight_decay=0.0), state_for(momentum=0.0, weight_decay=0.0)
    before = torch.cat([p.detach().flatten() for p in free.model.parameters()])
    moved = []
    for state in (clipped, free):
        state.descend(next(losses_for(state.model)), n=1)
        moved.append(torch.cat([p.detach().flatten() for p in state.model.parameters()]) - before)
    length = moved[1].norm() / free.lr
    assert length > 0.05
    expected = moved[1] * min(1.0, limit / length.item())
    assert torch.allclose(moved[0], expected, rtol=1e-5, atol=1e-12)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_all_state_exists_from_the_start_and_keeps_its_address(name):
    state = state_for(name=name)
    before = {name: tensor.data_ptr() for name, tensor in state.tensors().items()}
    for loss in losses_for(state.model):
        state.descend(loss, n=1)
    assert {name: tensor.data_ptr() for name, tensor in state.tensors().items()} == before
    kept = state_of(state.optimizer, state.model)
    assert all(tensor.abs().sum() > 0 for tensor in kept.values())
    assert len(kept) == sum(len(slots) for slots in state.optimizer.state.values())


def test_weights_and_statistics_are_averaged_by_age_and_counters_copied():
    model = models.build("tiny-cnn").double()

    def set_all(value):
        with torch.no_grad():
            for tensor in model.state_dict().values():
                tensor.fill_(value)

    set_all(1)
    average = WeightAverage(model, 0.5)
    for value in (2, 4, 8):
        set_all(value)
        average.update()
    for name, tensor in average.model.state_dict().items():
        expected = 1 / 8 + 2 / 8 + 4 / 4 + 8 / 2 if tensor.is_floating_point() else 8
        assert torch.allclose(tensor, torch.full_like(tensor, expected), rtol=1e-12), name
