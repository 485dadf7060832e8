"""The learning rate at epochs where it is known by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pixelpart.config import OptimConfig
from pixelpart.engine.schedule import SCHEDULES
from pixelpart.recipes import RECIPES


def rate(epoch, epochs, **optim):
    settings = OptimConfig(**optim)
    return SCHEDULES[settings.schedule](settings, epoch, epochs)


@pytest.mark.parametrize(
    ("epoch", "expected"), [(0.01, 0.01), (59.99, 0.01), (60, 0.001), (60.01, 0.001), (79.99, 0.001)]
)
def test_the_papers_rate_is_divided_by_ten_at_epoch_60_of_the_whole_run(epoch, expected):
    optim = RECIPES["cifar10-part"]().optim
    assert SCHEDULES[optim.schedule](optim, epoch, 80) == pytest.approx(expected, rel=1e-12)


def test_every_decay_divides_once_more():
    rates = [rate(epoch, 10, lr=1.0, schedule="step", decay_at=(2, 5)) for epoch in (1.5, 2.5, 5.5)]
    assert rates == pytest.approx([1, 0.1, 0.01])


def test_a_step_schedule_without_decays_is_constant():
    for epoch in (0, 3.3, 9.9):
        assert rate(epoch, 10, lr=0.3, schedule="step", decay_at=()) == 0.3
        assert rate(epoch, 10, lr=0.3, schedule="constant") == 0.3


@pytest.mark.parametrize(
    ("epoch", "expected"), [(0, 0), (3, 0.05), (6, 0.1), (12, 0.2), (21, 0.1), (28.2, 0.02), (30, 0)]
)
def test_cyclic_goes_up_to_the_peak_and_down_to_zero_in_straight_lines(epoch, expected):
    assert rate(epoch, 30, lr=0.2, schedule="cyclic", warmup=0.4) == pytest.approx(expected, abs=1e-12)


def test_cyclic_without_warmup_starts_at_the_peak_and_with_nothing_but_warmup_ends_there():
    assert rate(0, 10, lr=0.2, schedule="cyclic", warmup=0) == 0.2
    assert rate(5, 10, lr=0.2, schedule="cyclic", warmup=0) == pytest.approx(0.1)
    assert rate(9.5, 10, lr=0.2, schedule="cyclic", warmup=1) == pytest.approx(0.19)


@pytest.mark.parametrize(
    ("epoch", "expected"),
    [(0, 0), (1, 0.1), (2, 0.2), (4, 0.2 * 0.853553390593), (6, 0.1), (7.333333333333, 0.05), (10, 0)],
)
def test_cosine_goes_up_in_a_straight_line_and_down_along_half_a_cosine(epoch, expected):
    """Behind the peak lr (1 + cos a) / 2 at a = 0, 45, 90, 120 and 180 degrees."""
    assert rate(epoch, 10, lr=0.2, schedule="cosine", warmup=0.2) == pytest.approx(expected, abs=1e-12)


def test_cosine_without_warmup_starts_at_the_peak():
    assert rate(0, 10, lr=0.2, schedule="cosine", warmup=0) == 0.2
    assert rate(2.5, 10, lr=0.2, schedule="cosine", warmup=0) == pytest.approx(0.2 * 0.853553390593)


@given(
    st.sampled_from(sorted(SCHEDULES)),
    st.floats(0, 1),
    st.integers(1, 200),
    st.floats(0, 1, exclude_max=True),
    st.floats(1e-4, 1),
)
def test_no_schedule_leaves_the_range_from_zero_to_the_peak(schedule, warmup, epochs, share, lr):
    got = rate(share * epochs, epochs, lr=lr, schedule=schedule, warmup=warmup, decay_at=(epochs // 2,))
    assert 0 <= got <= lr * (1 + 1e-12)
