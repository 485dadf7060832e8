"""Optimisers, averaged weights and learning rates against formulas, and the state kept between two steps."""

import math

import pytest
import torch

from pixelpart import draws, models, recipes
from pixelpart.config import OptimConfig
from pixelpart.engine.optimizers import OPTIMIZERS, SCHEDULES, state_of
from pixelpart.engine.state import TrainingState, WeightAverage
from pixelpart.recipes import RECIPES
from steps import decay_at


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


def set_all(model, value):
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.fill_(value)


def test_an_average_over_many_updates_equals_a_plain_loop():
    """Weights and batch-norm statistics; counters are copied."""
    model = models.build("tiny-cnn").double()
    average, mean = WeightAverage(model, 0.98), {}
    for t in range(0, 600, 20):
        g = draws.generator(t, "test")
        with torch.no_grad():
            for name, tensor in model.state_dict().items():
                mean.setdefault(name, tensor.clone())
                value = torch.randn(tensor.shape, dtype=torch.float64, generator=g)
                tensor.copy_(value if tensor.is_floating_point() else torch.tensor(t))
                d = decay_at(t, 0.98)
                mean[name] = d * mean[name] + (1 - d) * tensor if tensor.is_floating_point() else tensor.clone()
        average.set_step(t)
        average.update()
    for name, tensor in average.model.state_dict().items():
        torch.testing.assert_close(tensor, mean[name], rtol=1e-6, atol=1e-6, msg=name)


@pytest.mark.parametrize(("taken", "decay"), [(0, 0.0), (32, 0.2), (64, 0.5), (500, 50 / 51), (1000, 0.99)])
def test_the_first_update_copies_the_weights_and_a_late_one_has_the_decay(taken, decay):
    model = models.build("tiny-cnn").double()
    set_all(model, 1)
    average = WeightAverage(model, 0.99)
    set_all(model, 2)
    average.set_step(taken)
    average.update()
    for name, tensor in average.model.state_dict().items():
        value = decay * 1 + (1 - decay) * 2 if tensor.is_floating_point() else 2
        torch.testing.assert_close(tensor, torch.full_like(tensor, value), rtol=1e-7, atol=0, msg=name)


def test_odd_tensors_are_averaged_too():
    """A slice, a transposed weight, another type, and a layer with two names, which is averaged once a step."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
    model.again = model[1]
    model.weight = torch.nn.Parameter(torch.randn(4, 3).t())
    model.register_buffer("slice", torch.zeros(4, 6)[1:, ::2])
    model.register_buffer("narrow", torch.zeros(5, dtype=torch.bfloat16))
    set_all(model, 1)
    average = WeightAverage(model, 0.99)
    for tensor in model.state_dict().values():
        tensor.copy_(torch.arange(tensor.numel()).view(tensor.shape))
    average.set_step(64)
    average.update()
    for name, tensor in average.model.state_dict().items():
        expected = 0.5 + 0.5 * model.state_dict()[name].float()
        torch.testing.assert_close(tensor.float(), expected, rtol=1e-2 if name == "narrow" else 1e-6, atol=0, msg=name)


# -- learning rates


def rate(epoch, epochs, **optim):
    settings = OptimConfig(**optim)
    return SCHEDULES[settings.schedule](settings, epoch, epochs)


@pytest.mark.parametrize(
    ("epoch", "expected"), [(0.01, 0.01), (59.99, 0.01), (60, 0.001), (60.01, 0.001), (79.99, 0.001)]
)
def test_the_papers_rate_is_divided_by_ten_at_epoch_60(epoch, expected):
    optim = RECIPES["cifar10-part"]().optim
    assert SCHEDULES[optim.schedule](optim, epoch, 80) == pytest.approx(expected, rel=1e-12)


def test_the_step_schedule_divides_by_ten_at_every_decay():
    rates = [rate(epoch, 10, lr=1.0, schedule="step", decay_at=(2, 5)) for epoch in (1.5, 2.5, 5.5)]
    assert rates == pytest.approx([1, 0.1, 0.01])
    assert rate(9.9, 10, lr=0.3, schedule="step", decay_at=()) == rate(9.9, 10, lr=0.3, schedule="constant") == 0.3


@pytest.mark.parametrize(
    ("epoch", "expected"), [(0, 0), (3, 0.05), (6, 0.1), (12, 0.2), (21, 0.1), (28.2, 0.02), (30, 0)]
)
def test_cyclic_rises_and_falls_linearly(epoch, expected):
    assert rate(epoch, 30, lr=0.2, schedule="cyclic", warmup=0.4) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("epoch", "expected"),
    [(0, 0), (1, 0.1), (2, 0.2), (4, 0.2 * 0.853553390593), (6, 0.1), (7.333333333333, 0.05), (10, 0)],
)
def test_cosine_rises_linearly_and_falls_along_half_a_cosine(epoch, expected):
    """After the peak lr (1 + cos a) / 2 at a = 0, 45, 90, 120 and 180 degrees."""
    assert rate(epoch, 10, lr=0.2, schedule="cosine", warmup=0.2) == pytest.approx(expected, abs=1e-12)
