import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from pixelpart.errors import UserError
from pixelpart.evaluation import wilson


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [
        (8, 10, 0.4902, 0.9433),
        (81, 263, 0.2553, 0.3662),  # Newcombe 1998, table I, method 3
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilson_gives_the_published_intervals(successes, n, low, high):
    assert wilson(successes, n) == pytest.approx((low, high), abs=6e-5)


@given(st.data(), st.integers(1, 10_000), st.sampled_from([0.5, 0.9, 0.95, 0.99]))
def test_wilson_agrees_with_scipy_and_holds_the_share(data, n, confidence):
    k = data.draw(st.integers(0, n))
    low, high = wilson(k, n, confidence)
    there = binomtest(k, n).proportion_ci(confidence, method="wilson")
    assert (low, high) == pytest.approx((there.low, there.high), abs=1e-12)
    assert 0 <= low <= k / n <= high <= 1


@given(st.integers(1, 10**6))
def test_wilson_ends_exactly_at_zero_and_one(n):
    z2 = 1.959963984540054**2
    assert wilson(0, n) == (0.0, pytest.approx(z2 / (n + z2)))
    assert wilson(n, n) == (pytest.approx(n / (n + z2)), 1.0)


@pytest.mark.parametrize(("successes", "n"), [(-1, 10), (11, 10), (0, 0)])
def test_wilson_refuses_what_is_no_share(successes, n):
    with pytest.raises(UserError, match="not a share"):
        wilson(successes, n)


@pytest.mark.parametrize("confidence", [0.0, 1.0, 95, math.nan])
def test_wilson_refuses_a_confidence_outside_0_and_1(confidence):
    with pytest.raises(UserError, match="confidence"):
        wilson(1, 2, confidence)
