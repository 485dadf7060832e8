import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import binomtest, norm, t

from pixelpart.errors import UserError
from pixelpart.evaluation.statistics import (
    _beyond,
    _limit,
    _student,
    crossed_bootstrap,
    difference,
    mcnemar,
    paired,
    wilson,
)


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


# -- two models


@given(st.integers(0, 3000), st.integers(0, 3000))
def test_mcnemar_is_the_exact_binomial_test_on_the_discordant_images(a_only, b_only):
    there = binomtest(a_only, a_only + b_only).pvalue if a_only + b_only else 1.0
    assert mcnemar(a_only, b_only) == pytest.approx(there, rel=1e-9, abs=1e-200)


def test_mcnemar_knows_textbook_cases():
    assert mcnemar(0, 0) == mcnemar(7, 7) == 1.0
    assert mcnemar(0, 5) == 2 / 32
    assert mcnemar(1, 9) == 2 * (1 + 10) / 1024
    with pytest.raises(UserError, match="not counts"):
        mcnemar(-1, 3)


def cells(both, a_only, b_only, neither):
    a = np.repeat([True, True, False, False], [both, a_only, b_only, neither])
    b = np.repeat([True, False, True, False], [both, a_only, b_only, neither])
    return a, b


def test_the_paired_interval_is_the_published_one():
    """The example of ci.prop.ps in the R package statpsych, whose authors are those of the interval."""
    found = paired(*cells(both=6, a_only=26, b_only=4, neither=12))
    assert (found.low, found.high) == pytest.approx((0.2548067, 0.6251933), abs=1e-7)
    assert found.estimate == 22 / 48
    assert found.p == mcnemar(26, 4)


def test_one_run_a_side_is_mcnemar_and_several_are_the_bootstrap():
    a, b = cells(6, 26, 4, 12)
    assert difference(a[None], b[None]) == paired(a, b)
    assert difference(np.stack((a, b)), np.stack((b, b))) == crossed_bootstrap(np.stack((a, b)), np.stack((b, b)))


# -- two methods


@pytest.mark.parametrize("df", [2, 4, 8, 14, 40])
def test_students_distribution_agrees_with_scipy(df):
    for x in (0.0, 0.3, 1.0, 2.5, 20.0):
        assert _beyond(x, df) == pytest.approx(2 * t.sf(x, df), rel=1e-6, abs=2e-16)
    for confidence in (0.5, 0.95, 0.999):
        assert _student(confidence, df) == pytest.approx(t.isf((1 - confidence) / 2, df), rel=1e-9)


def world(generator, seeds, n, *, mu=(0.0, 0.0), skill=0.05, rho=0.9, shared=1.0, repeats=1):
    """Flags of two methods (repeats, seeds, n) each: ease of the image, skill of the seed and chance decide.

    `shared` is the correlation of the ease between the methods. The accuracy that is meant is Φ(mu / sqrt(1 + skill²)).
    """
    ease = generator.standard_normal((repeats, 1, n), dtype=np.float32)
    other = shared * ease + math.sqrt(1 - shared**2) * generator.standard_normal(ease.shape, dtype=np.float32)
    sides = []
    for threshold, z in zip(mu, (ease, other), strict=True):
        chance = generator.standard_normal((repeats, seeds, n), dtype=np.float32)
        alpha = skill * generator.standard_normal((repeats, seeds, 1), dtype=np.float32)
        sides.append(math.sqrt(rho) * z + math.sqrt(1 - rho) * chance + alpha > -threshold)
    return sides


@pytest.fixture
def pair_of_groups():
    a, b = world(np.random.default_rng(5), 3, 40, mu=(0.5, 0.1), skill=0.3, shared=0.6)
    return a[0], b[0]


def test_the_limit_is_that_of_a_plain_loop_and_of_the_fast_draws(pair_of_groups):
    a, b = pair_of_groups
    (s, n), generator = a.shape, np.random.default_rng(0)
    d, parts = a.mean() - b.mean(), []
    for _ in range(6000):
        mine, theirs, columns = (generator.integers(k, size=k) for k in (s, s, n))
        seeds = a[mine].mean() - b[theirs].mean() - d
        images = a[:, columns].mean() - b[:, columns].mean() - d
        both = a[np.ix_(mine, columns)].mean() - b[np.ix_(theirs, columns)].mean() - d
        parts.append((seeds, images, both - seeds - images))
    seeds, images, interplay = np.var(parts, axis=0) * [s / (s - 1), n / (n - 1), s / (s - 1) * n / (n - 1)]
    expected = _limit(a, b)
    assert (seeds, images - interplay) == pytest.approx(expected, rel=0.1)
    found, limit = crossed_bootstrap(a, b, draws=20_000, seed=1), crossed_bootstrap(a, b)
    assert found.estimate == limit.estimate == pytest.approx(d)
    assert (found.low, found.high, found.p) == pytest.approx((limit.low, limit.high, limit.p), rel=0.05)
    assert found == crossed_bootstrap(a, b, draws=20_000, seed=1) != crossed_bootstrap(a, b, draws=20_000, seed=2)


def test_ten_thousand_images_and_two_thousand_draws_are_nothing_to_wait_for():
    a, b = (side[0] for side in world(np.random.default_rng(0), 8, 10_000))
    found, limit = crossed_bootstrap(a, b, draws=2000), crossed_bootstrap(a, b)
    assert found.high - found.low == pytest.approx(limit.high - limit.low, rel=0.1)


def test_the_variance_is_that_of_the_difference_over_new_seeds_and_new_images():
    for seeds, skill, shared in ((2, 0.0, 1.0), (3, 0.1, 0.9), (5, 0.02, 0.99)):
        a, b = world(np.random.default_rng(seeds), seeds, 200, skill=skill, shared=shared, repeats=2000)
        estimates = a.mean((1, 2)) - b.mean((1, 2))
        means = np.mean([sum(_limit(x, y)) for x, y in zip(a, b, strict=True)])
        # cut off at 0, the images' part is a little too large where the methods find all images equally easy
        assert 0.9 < means / estimates.var() < 1.2


def coverage(seeds, *, repeats=1200, **settings):
    mu, skill = (0.4, 0.2), settings.get("skill", 0.05)
    a, b = world(np.random.default_rng(seeds), seeds, 400, mu=mu, repeats=repeats, **settings)
    truth = np.subtract(*norm.cdf(np.array(mu) / math.sqrt(1 + skill**2)))
    found = [crossed_bootstrap(x, y) for x, y in zip(a, b, strict=True)]
    return np.mean([one.low <= truth <= one.high for one in found])


@pytest.mark.parametrize("seeds", [3, 5, 8])
@pytest.mark.parametrize("skill", [0.0, 0.05, 0.3])
def test_the_interval_holds_the_truth_nineteen_times_in_twenty(seeds, skill):
    """For one method's images (four deviations of 1,200 trials allow 0.925 to 0.975), and rather more for two's."""
    assert 0.925 <= coverage(seeds, skill=skill) <= 0.975
    assert 0.93 <= coverage(seeds, skill=skill, shared=0.9) <= 0.99


def test_the_plain_bootstrap_would_not():
    """Why the corrections are there: uncorrected, equals of three seeds are told apart far too often or never."""
    shares = []
    for skill in (0.0, 0.5):
        a, b = world(np.random.default_rng(1), 3, 400, skill=skill, repeats=500)
        variances = [(plain(x) + plain(y)) / 3 + np.var(x.mean(0) - y.mean(0)) / 400 for x, y in zip(a, b, strict=True)]
        shares.append(np.mean(abs(a.mean((1, 2)) - b.mean((1, 2))) > 1.96 * np.sqrt(variances)))
    assert shares[0] < 0.02
    assert shares[1] > 0.1


def plain(flags):
    rest = flags - flags.mean(1, keepdims=True) - flags.mean(0) + flags.mean()
    return flags.mean(1).var() + (rest**2).mean() / flags.shape[1]


groups = st.tuples(st.integers(2, 4), st.integers(2, 4), st.integers(2, 30)).flatmap(
    lambda s: st.tuples(arrays(bool, (s[0], s[2])), arrays(bool, (s[1], s[2])))
)


@given(groups, st.randoms(use_true_random=False))
def test_sides_mirror_each_other_and_no_order_matters(both, random):
    a, b = both
    found, mirrored = crossed_bootstrap(a, b), crossed_bootstrap(b, a)
    assert (found.estimate, found.low, found.high, found.p) == pytest.approx(
        (-mirrored.estimate, -mirrored.high, -mirrored.low, mirrored.p), abs=1e-12
    )
    columns = random.sample(range(a.shape[1]), a.shape[1])
    rows, others = random.sample(range(len(a)), len(a)), random.sample(range(len(b)), len(b))
    assert crossed_bootstrap(a[rows][:, columns], b[others][:, columns]) == found
    assert found.low < found.estimate < found.high


@given(groups)
def test_a_method_does_not_differ_from_itself(both):
    a, _ = both
    found = crossed_bootstrap(a, a)
    assert (found.estimate, found.p) == (0.0, 1.0)
    assert found.low == -found.high


@given(groups, st.sampled_from([0.5, 0.9, 0.95, 0.99]))
def test_the_interval_leaves_0_out_just_when_p_is_below_its_level(both, confidence):
    found = crossed_bootstrap(*both, confidence=confidence)
    if abs(found.p - (1 - confidence)) > 1e-9:
        assert (found.low > 0 or found.high < 0) == (found.p < 1 - confidence)


def test_p_is_the_level_of_the_interval_that_ends_at_0(pair_of_groups):
    a, b = pair_of_groups
    assert min(_limit(a, b)) > 0.1 * max(_limit(a, b))  # both seeds and images have a say
    found = crossed_bootstrap(a, b)
    assert 0.001 < found.p < 0.9
    assert crossed_bootstrap(a, b, confidence=1 - found.p).low == pytest.approx(0, abs=1e-9)


def test_seeds_that_tie_are_no_proof():
    """Two seeds with 50 of 100 right against two with 52: no spread to be seen, and yet no certainty."""
    right = np.arange(100)
    a, b = np.stack((right < 50, right >= 50)), np.stack((right < 52, right >= 48))
    assert crossed_bootstrap(a, b).p > 0.05


def test_one_run_against_several_is_refused_with_the_reason():
    flags = np.ones((3, 10), dtype=bool)
    for a, b in ((flags[:1], flags), (flags, flags[:1])):
        with pytest.raises(UserError, match="from a single run it cannot be known how far another seed would move it"):
            difference(a, b)


def test_other_images_or_no_groups_are_refused():
    flags = np.ones((3, 10), dtype=bool)
    for a, b in ((flags, flags[:, :9]), (flags[0], flags[0]), (flags[:, :1], flags[:, :1])):
        with pytest.raises(UserError, match=r"are not \(seeds, images\)"):
            crossed_bootstrap(a, b)
    with pytest.raises(UserError, match="two models on the same images"):
        paired(flags[0], flags[0, :9])
    with pytest.raises(UserError, match="draws 1"):
        crossed_bootstrap(flags, flags, draws=1)
    with pytest.raises(UserError, match="confidence"):
        crossed_bootstrap(flags, flags, confidence=95)
