import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import binomtest, norm

from pixelpart.errors import UserError
from pixelpart.evaluation.statistics import (
    accuracy_interval,
    crossed_bootstrap,
    crossed_interval,
    difference,
    mcnemar,
    paired,
    t_test,
    variances,
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


@given(st.data(), st.integers(1, 10_000), st.sampled_from([0.5, 0.95, 0.99]))
def test_wilson_agrees_with_scipy_and_contains_the_proportion(data, n, confidence):
    k = data.draw(st.integers(0, n))
    low, high = wilson(k, n, confidence)
    reference = binomtest(k, n).proportion_ci(confidence, method="wilson")
    assert (low, high) == pytest.approx((reference.low, reference.high), abs=1e-12)
    assert 0 <= low <= k / n <= high <= 1
    assert wilson(0, n)[0] == 0.0
    assert wilson(n, n)[1] == 1.0


# -- two models


@given(st.integers(0, 3000), st.integers(0, 3000))
def test_mcnemar_is_the_exact_binomial_test_on_the_discordant_images(a_only, b_only):
    n, least = a_only + b_only, min(a_only, b_only)
    exact = min(1.0, 2 * sum(math.comb(n, k) for k in range(least + 1)) / 2**n) if least < 200 else None
    expected = exact if exact is not None else binomtest(a_only, n).pvalue
    assert mcnemar(a_only, b_only) == pytest.approx(expected, rel=1e-9, abs=1e-200)


def test_mcnemar_of_textbook_cases():
    assert mcnemar(0, 0) == mcnemar(7, 7) == 1.0
    assert mcnemar(0, 5) == pytest.approx(2 / 32)
    assert mcnemar(1, 9) == pytest.approx(2 * (1 + 10) / 1024)


def cells(both, a_only, b_only, neither):
    a = np.repeat([True, True, False, False], [both, a_only, b_only, neither])
    b = np.repeat([True, False, True, False], [both, a_only, b_only, neither])
    return a, b


def test_the_paired_interval_is_the_published_one():
    """The example of ci.prop.ps in the R package statpsych, written by the authors of the interval."""
    found = paired(*cells(both=6, a_only=26, b_only=4, neither=12))
    assert (found.low, found.high) == pytest.approx((0.2548067, 0.6251933), abs=1e-7)
    assert found.estimate == 22 / 48
    assert found.p == mcnemar(26, 4)


def test_one_run_per_side_uses_mcnemar_and_several_use_the_bootstrap():
    a, b = cells(6, 26, 4, 12)
    assert difference(a[None], b[None]) == paired(a, b)
    assert difference(np.stack((a, b)), np.stack((b, b))) == crossed_bootstrap(np.stack((a, b)), np.stack((b, b)))


# -- two methods


def of_seeds_and_rest(a, b):
    found = variances((a, b), (1, -1))
    return found.seeds, found.rest


def simulated(generator, seeds, n, *, mu=(0.0, 0.0), skill=0.05, rho=0.9, shared=1.0, repeats=1):
    """Flags of two methods, (repeats, seeds, n) each: correct if image, seed and noise add up to more than -mu.

    `shared` is the correlation of the image term between the methods. Expected accuracy: Φ(mu / sqrt(1 + skill²)).
    """
    ease = generator.standard_normal((repeats, 1, n), dtype=np.float32)
    other = shared * ease + math.sqrt(1 - shared**2) * generator.standard_normal(ease.shape, dtype=np.float32)
    sides = []
    for threshold, z in zip(mu, (ease, other), strict=True):
        noise = generator.standard_normal((repeats, seeds, n), dtype=np.float32)
        alpha = skill * generator.standard_normal((repeats, seeds, 1), dtype=np.float32)
        sides.append(math.sqrt(rho) * z + math.sqrt(1 - rho) * noise + alpha > -threshold)
    return sides


@pytest.fixture
def groups():
    a, b = simulated(np.random.default_rng(5), 3, 40, mu=(0.5, 0.1), skill=0.3, shared=0.6)
    return a[0], b[0]


def test_the_closed_form_equals_resampling(groups):
    a, b = groups
    (s, n), generator = a.shape, np.random.default_rng(0)
    d, terms = a.mean() - b.mean(), []
    for _ in range(5000):
        rows_a, rows_b, columns = (generator.integers(k, size=k) for k in (s, s, n))
        seeds = a[rows_a].mean() - b[rows_b].mean() - d
        images = a[:, columns].mean() - b[:, columns].mean() - d
        both = a[np.ix_(rows_a, columns)].mean() - b[np.ix_(rows_b, columns)].mean() - d
        terms.append((seeds, images, both - seeds - images))
    seeds, images, interaction = np.var(terms, axis=0) * [s / (s - 1), n / (n - 1), s / (s - 1) * n / (n - 1)]
    assert (seeds, images - interaction) == pytest.approx(of_seeds_and_rest(a, b), rel=0.1)


def test_the_variance_is_that_of_the_difference_over_new_seeds_and_new_images():
    for seeds, skill, shared in ((2, 0.0, 1.0), (3, 0.1, 0.9), (5, 0.02, 0.99)):
        a, b = simulated(np.random.default_rng(seeds), seeds, 200, skill=skill, shared=shared, repeats=1000)
        estimates = a.mean((1, 2)) - b.mean((1, 2))
        means = np.mean([sum(of_seeds_and_rest(x, y)) for x, y in zip(a, b, strict=True)])
        # the images' term is cut off at 0, so it is slightly too large where both methods find the same images easy
        assert 0.9 < means / estimates.var() < 1.2


@pytest.mark.parametrize("seeds", [3, 8])
@pytest.mark.parametrize("skill", [0.0, 0.05, 0.3])
@pytest.mark.parametrize(("shared", "low", "high"), [(1.0, 0.92, 0.98), (0.9, 0.925, 0.99)])
def test_the_interval_contains_the_truth_in_95_percent_of_trials(seeds, skill, shared, low, high):
    """Four standard errors of 800 trials allow 0.92 to 0.98; the interval is wider where the methods' images differ."""
    mu = (0.4, 0.2)
    a, b = simulated(np.random.default_rng(seeds), seeds, 300, mu=mu, skill=skill, shared=shared, repeats=800)
    truth = np.subtract(*norm.cdf(np.array(mu) / math.sqrt(1 + skill**2)))
    found = [crossed_bootstrap(x, y) for x, y in zip(a, b, strict=True)]
    assert low <= np.mean([result.low <= truth <= result.high for result in found]) <= high


groups_of_flags = st.tuples(st.integers(2, 4), st.integers(2, 4), st.integers(2, 30)).flatmap(
    lambda s: st.tuples(arrays(bool, (s[0], s[2])), arrays(bool, (s[1], s[2])))
)


@given(groups_of_flags, st.randoms(use_true_random=False), st.sampled_from([0.5, 0.95, 0.99]))
def test_swapping_sides_flips_the_sign_and_order_does_not_matter(both, random, confidence):
    a, b = both
    found, mirrored = (crossed_bootstrap(*sides, confidence=confidence) for sides in ((a, b), (b, a)))
    assert (found.estimate, found.low, found.high, found.p) == pytest.approx(
        (-mirrored.estimate, -mirrored.high, -mirrored.low, mirrored.p), abs=1e-12
    )
    columns = random.sample(range(a.shape[1]), a.shape[1])
    rows, others = random.sample(range(len(a)), len(a)), random.sample(range(len(b)), len(b))
    assert crossed_bootstrap(a[rows][:, columns], b[others][:, columns], confidence=confidence) == found
    assert found.low < found.estimate < found.high
    if abs(found.p - (1 - confidence)) > 1e-9:  # the interval excludes 0 exactly when p is below its level
        assert (found.low > 0 or found.high < 0) == (found.p < 1 - confidence)
    same = crossed_bootstrap(a, a)
    assert (same.estimate, same.p, same.low) == (0.0, 1.0, -same.high)


def test_p_is_the_level_of_the_interval_that_ends_at_0(groups):
    a, b = groups
    found = of_seeds_and_rest(a, b)
    assert min(found) > 0.1 * max(found)  # seeds and images both matter
    found = crossed_bootstrap(a, b)
    assert 0.001 < found.p < 0.9
    assert crossed_bootstrap(a, b, confidence=1 - found.p).low == pytest.approx(0, abs=1e-9)


def test_methods_far_apart_have_a_tiny_p_and_no_overflow():
    a, b = np.ones((60, 500), bool), np.zeros((60, 500), bool)
    assert 0 < crossed_bootstrap(a, b).p < 1e-100


def test_seeds_that_tie_are_not_proof():
    """Two seeds with 50 of 100 correct against two with 52: no variation to see, and yet no certainty."""
    image = np.arange(100)
    a, b = np.stack((image < 50, image >= 50)), np.stack((image < 52, image >= 48))
    assert crossed_bootstrap(a, b).p > 0.05


def test_the_interval_of_seeds_that_tie_by_hand():
    """All three seeds of a are right at the same 110 of 200 images, those of b at the others: d = .1, no interaction.

    V_images = var(±1) / 200 = 198/199/200. As if one of three seeds had one more right, whose variance is
    (1/200)²/3: V_seeds = 2 (1/200)²/3/3. Half-width: sqrt(2.7764² V_seeds + 1.96² V_images) = .138397.
    """
    a = np.tile(np.arange(200) < 110, (3, 1))
    found = variances((a, ~a), (1, -1))
    assert (found.seeds, found.images, found.interaction) == pytest.approx((2 / 600**2, 198 / 199 / 200, 0.0))
    assert found.df == pytest.approx(4)
    tested = crossed_bootstrap(a, ~a)
    assert (tested.low, tested.high) == pytest.approx((0.1 - 0.138397, 0.1 + 0.138397), abs=1e-6)
    assert crossed_interval(a, ~a)[1:] == pytest.approx((tested.low, tested.high))
    one_more = a.copy()
    one_more[0, 150] = True
    assert variances((one_more, ~a), (1, -1)).seeds == pytest.approx(found.seeds)


@given(groups_of_flags, st.sampled_from([(1, -1), (0.7, -1.3)]))
def test_flags_summed_as_integers_have_the_variances_of_floats_and_of_plain_numpy(both, weights):
    n, z = both[0].shape[1], sum(w * x.mean(0) for w, x in zip(weights, both, strict=True))
    seeds = interaction = 0.0
    for w, x in zip(weights, both, strict=True):
        s, rows, columns = len(x), x.mean(1, keepdims=True), x.mean(0)
        seeds += w**2 * max(rows.var(ddof=1), 1 / (s * n**2)) / s
        interaction += w**2 * np.square(x - rows - columns + x.mean()).sum() / (s * (s - 1) * n * (n - 1))
    for values in (both, [x.astype(float) for x in both]):
        found = variances(values, weights)
        assert (found.seeds, found.images, found.interaction) == pytest.approx(
            (seeds, z.var(ddof=1) / n, interaction), abs=1e-12
        )


def test_crossed_interval_of_two_groups_is_that_of_the_crossed_bootstrap():
    draw = np.random.default_rng(0)
    a, b = draw.random((3, 400)) < 0.6, draw.random((3, 400)) < 0.55
    known = crossed_bootstrap(a, b)
    for sides in ((a, b), (a.astype(float), b.astype(float))):
        assert crossed_interval(*sides) == pytest.approx((known.estimate, known.low, known.high))


def test_with_one_seed_only_the_images_count():
    shares = np.array([[0.0, 0.5, 1.0, 0.5]])  # deviation sqrt(1/6), of the mean sqrt(1/24)
    half = 1.959964 * math.sqrt(1 / 24)
    assert crossed_interval(shares) == pytest.approx((0.5, 0.5 - half, 0.5 + half), abs=1e-6)
    assert crossed_interval(shares, np.zeros((1, 4))) == pytest.approx(crossed_interval(shares))


def test_accuracy_interval_covers_the_true_accuracy_of_new_seeds_and_images():
    draw, covered, studies = np.random.default_rng(0), 0, 400
    for _ in range(studies):
        difficulty = draw.normal(0, 0.2, 200)
        seeds = draw.normal(0, 0.03, 4)[:, None]
        low, high = accuracy_interval(draw.random((4, 200)) < np.clip(0.5 + difficulty + seeds, 0, 1))
        covered += low <= 0.5 <= high
    assert covered / studies > 0.92
    few = np.arange(5) < np.array([[1], [4]])  # so few images that the interval would be wider than [0, 1]
    assert crossed_interval(few)[1] < 0
    assert accuracy_interval(few) == (0.0, 1.0)


def test_t_test_by_hand():
    mean, low, high, p = t_test([1.0, 2.0, 3.0])  # t = 2 / (1 / sqrt 3) = 3.464, df 2
    assert (mean, p) == pytest.approx((2.0, 0.0742), abs=1e-4)
    assert (low, high) == pytest.approx((-0.4841, 4.4841), abs=1e-4)


FLAGS = np.ones((3, 10), dtype=bool)


ONE_RUN = "a single run does not show how much the accuracy varies with the seed"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: difference(FLAGS[:1], FLAGS), ONE_RUN),
        (lambda: difference(FLAGS, FLAGS[:1]), ONE_RUN),
        (lambda: crossed_bootstrap(FLAGS, FLAGS[:, :9]), r"are not \(seeds, images\)"),
        (lambda: crossed_bootstrap(FLAGS[0], FLAGS[0]), r"are not \(seeds, images\)"),
        (lambda: paired(FLAGS[0], FLAGS[0, :9]), "two models on the same images"),
    ],
)
def test_wrong_arguments_are_rejected(call, message):
    with pytest.raises(UserError, match=message):
        call()
