"""The learning rate at epochs where it is known by hand."""

import pytest

from pixelpart.config import OptimConfig
from pixelpart.engine.schedule import SCHEDULES
from pixelpart.recipes import RECIPES


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
