"""D, its variances and its verdict, against numpy's regression, plain loops and resampling."""

import math
from dataclasses import astuple, replace
from statistics import fmean

import numpy as np
import pytest
from scipy import stats

from pixelpart.comparison import frontier
from pixelpart.comparison.frontier import (
    Arm,
    Distance,
    distance,
    distance_within_seeds,
    fit_curve,
    negative_control,
    secant_distance,
)
from pixelpart.comparison.frontier_study import (
    SimulatedArm,
    StudyDesign,
    pooled_deviation,
    seed_correlation,
    simulate_studies,
    smallest_effect,
    tetrachoric,
    verdict,
)
from pixelpart.errors import UserError
from pixelpart.evaluation.statistics import Variances, wilson

UNIFORM = ((0.74, 0.52, 3), (0.78, 0.50, 4), (0.80, 0.485, 5), (0.85, 0.44, 2))  # natural, robust, runs


def on_curve(natural, runs, effect=0.0):
    """An arm `effect` above a concave curve."""
    return SimulatedArm(natural, 0.477 - 0.2 * (natural - 0.789) - 3 * (natural - 0.789) ** 2 + effect, runs)


def study(policies, uniform, *, seed=0, **settings):
    settings = {"images": 400, "natural_deviation": 0.02, "robust_deviation": 0.02, "correlation": 0.9} | settings
    design = StudyDesign(tuple(policies), tuple(SimulatedArm(*arm) for arm in uniform), **settings)
    return design.draw(np.random.default_rng(seed))


@pytest.fixture
def arms():
    """A policy and uniform arms whose accuracies differ from the expected ones by the noise of few images."""
    (policy,), uniform = study([SimulatedArm(0.79, 0.51, 4)], UNIFORM)
    return policy, uniform


def truth(policy, uniform):
    """Estimate, hat row, slopes and variances by numpy.polyfit and plain loops over runs and images."""
    natural, robust = [float(u.natural.mean()) for u in uniform], [float(u.robust.mean()) for u in uniform]
    roots = [math.sqrt(len(u.natural)) for u in uniform]
    fit = np.polyfit(natural, robust, 2, w=roots)
    x = float(policy.natural.mean())
    unit = np.eye(len(uniform))
    weights = [1.0, *(-np.polyval(np.polyfit(natural, unit[k], 2, w=roots), x) for k in range(len(uniform)))]
    n = policy.natural.shape[1]
    v_seeds = v_interaction = satterthwaite = 0.0
    z = [0.0] * n
    for weight, arm in zip(weights, [policy, *uniform], strict=True):
        s = len(arm.natural)
        b = float(np.polyval(np.polyder(fit), arm.natural.mean()))
        y = [[float(arm.robust[r, i]) - b * float(arm.natural[r, i]) for i in range(n)] for r in range(s)]
        by_run = [sum(row) / n for row in y]
        by_image = [sum(y[r][i] for r in range(s)) / s for i in range(n)]
        mean = sum(by_run) / s
        term = weight**2 * sum((m - mean) ** 2 for m in by_run) / (s - 1) / s
        v_seeds += term
        satterthwaite += term**2 / (s - 1)
        rest = sum((y[r][i] - by_run[r] - by_image[i] + mean) ** 2 for r in range(s) for i in range(n))
        v_interaction += weight**2 * rest / (s * (s - 1) * n * (n - 1))
        z = [total + weight * m for total, m in zip(z, by_image, strict=True)]
    mean = sum(z) / n
    v_images = sum((part - mean) ** 2 for part in z) / (n * (n - 1))
    estimate = policy.robust.mean() - np.polyval(fit, x)
    return estimate, v_seeds, v_images, v_interaction, v_seeds**2 / satterthwaite


# -- the curve


def test_the_curve_is_numpys_weighted_quadratic_regression(arms):
    _, uniform = arms
    curve = fit_curve(uniform)
    natural, robust = [u.natural.mean() for u in uniform], [u.robust.mean() for u in uniform]
    expected = np.polyfit(natural, robust, 2, w=[math.sqrt(len(u.natural)) for u in uniform])
    for x in (0.7, 0.79, 0.83):
        assert curve.at(x) == pytest.approx(np.polyval(expected, x), abs=1e-10)
        assert curve.slope(x) == pytest.approx(np.polyval(np.polyder(expected), x), abs=1e-8)
        assert curve.at(x) == pytest.approx(float(curve.hat(x) @ robust), abs=1e-12)
        design = np.vander(natural, 3)
        weighted = design.T * [len(u.natural) for u in uniform]
        assert curve.hat(x) == pytest.approx(
            np.vander([x], 3)[0] @ np.linalg.solve(weighted @ design, weighted), abs=1e-6
        )
        assert curve.hat(x).sum() == pytest.approx(1)


def test_three_arms_are_interpolated_and_fewer_are_refused(arms):
    _, uniform = arms
    curve = fit_curve(uniform[:3])
    for k, arm in enumerate(uniform[:3]):
        assert curve.hat(arm.mean_natural) == pytest.approx(np.eye(3)[k], abs=1e-9)
    for few in (uniform[:2], [uniform[0], uniform[1], uniform[1]]):
        with pytest.raises(UserError, match="three arms of different natural accuracy, not 2"):
            fit_curve(few)


def test_a_point_on_a_quadratic_has_distance_zero():
    """Flags without noise: the first k of 10,000 images are correct in every run."""

    def exact(natural, robust, runs):
        order = np.arange(10_000)
        return Arm(
            np.tile(order < round(10_000 * natural), (runs, 1)), np.tile(order < round(10_000 * robust), (runs, 1))
        )

    uniform = [exact(x, 0.5 - (x - 0.7) ** 2, runs) for x, runs in ((0.7, 2), (0.74, 9), (0.8, 3), (0.9, 4))]
    assert distance(exact(0.85, 0.4775, 2), uniform).estimate == pytest.approx(0, abs=1e-10)
    assert distance(exact(0.85, 0.4805, 2), uniform).estimate == pytest.approx(0.003, abs=1e-10)


# -- the distance


def test_distance_and_variances_are_those_of_plain_loops(arms):
    policy, uniform = arms
    found = distance(policy, uniform)
    assert (found.estimate, *astuple(found.variances)) == pytest.approx(truth(policy, uniform), rel=1e-8)
    assert found.variances.rest == max(found.variances.images - found.variances.interaction, 0)


@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.975])
def test_the_interval_adds_the_half_widths_of_seeds_and_images_in_quadrature(arms, confidence):
    found = distance(*arms)
    v = found.variances
    t, z = stats.t.ppf((1 + confidence) / 2, v.df), stats.norm.ppf((1 + confidence) / 2)
    half = math.sqrt(t**2 * v.seeds + z**2 * v.rest)
    assert found.interval(confidence) == pytest.approx((found.estimate - half, found.estimate + half))
    assert Variances(4e-6, 2e-6, 3e-6, 5.0).half_width(0.95) == pytest.approx(2.5706 * 0.002, rel=1e-4)


def test_the_p_value_is_that_of_the_interval_that_ends_at_zero(arms):
    found = distance(*arms)
    low, high = found.interval(1 - found.p)
    assert min(abs(low), abs(high)) == pytest.approx(0, abs=1e-9)


def test_the_variances_are_those_of_resampled_seeds_and_images():
    """The whole estimator, refitted on every resample: a check of y = a - b n as well, which is D to first order."""
    settings = {"images": 300, "natural_deviation": 0.02, "robust_deviation": 0.02, "correlation": 0.8}
    uniform = tuple((natural, robust, 6) for natural, robust, _ in UNIFORM)
    (policy,), uniform = study([SimulatedArm(0.79, 0.51, 6)], uniform, seed=2, **settings)
    for arm in (policy, *uniform):  # on a third of the images, arms are good at different ones
        columns = [*np.random.default_rng(arm.robust.sum()).permutation(100), *range(100, 300)]
        arm.natural[:], arm.robust[:] = arm.natural[:, columns], arm.robust[:, columns]
    found, generator, terms = distance(policy, uniform), np.random.default_rng(0), []

    def refitted(rows, columns):
        natural, robust = (
            [flags[r][:, columns].mean() for flags, r in zip(kind, rows, strict=True)]
            for kind in ([a.natural for a in (policy, *uniform)], [a.robust for a in (policy, *uniform)])
        )
        return robust[0] - np.polyval(np.polyfit(natural[1:], robust[1:], 2), natural[0])  # equal numbers of runs

    all_rows, everything = [np.arange(6)] * 5, np.arange(300)
    assert refitted(all_rows, everything) == pytest.approx(found.estimate)
    for _ in range(1500):
        rows, columns = [generator.integers(6, size=6) for _ in range(5)], generator.integers(300, size=300)
        terms.append((refitted(rows, everything), refitted(all_rows, columns)))
    seeds, images = np.var(terms, axis=0) * [6 / 5, 300 / 299]
    assert (seeds, images) == pytest.approx((found.variances.seeds, found.variances.images), rel=0.15)


def test_the_order_of_images_runs_and_arms_does_not_matter(arms):
    policy, uniform = arms
    generator = np.random.default_rng(1)
    columns = generator.permutation(policy.natural.shape[1])

    def shuffled(arm):
        rows = generator.permutation(arm.runs)
        return Arm(arm.natural[rows][:, columns], arm.robust[rows][:, columns])

    again, found = distance(shuffled(policy), [shuffled(arm) for arm in reversed(uniform)]), distance(policy, uniform)
    assert (again.estimate, *astuple(again.variances)) == pytest.approx((found.estimate, *astuple(found.variances)))


def test_a_further_arm_on_the_curve_does_not_move_it(arms):
    policy, uniform = arms
    curve = fit_curve(uniform)

    class OnCurve(Arm):  # no flags have exactly these means
        mean_natural, mean_robust = 0.77, curve.at(0.77)

    extra = OnCurve(np.ones((3, 2), bool), np.ones((3, 2), bool))
    x = policy.mean_natural
    assert fit_curve([*uniform, extra]).at(x) == pytest.approx(curve.at(x), abs=1e-12)
    assert fit_curve([*uniform, extra]).hat(x)[:-1] != pytest.approx(curve.hat(x), abs=1e-3)


def test_an_arm_outside_the_range_has_no_distance(arms):
    _, uniform = arms
    outside = study([SimulatedArm(0.9, 0.4, 3)], UNIFORM)[0][0]
    found = distance(outside, uniform)
    assert (found.estimate, found.p) == (None, None)
    assert found.as_json() == {"estimate": None}
    assert str(found) == "outside the range of the uniform arms"
    assert distance(outside, uniform, uniform[1]).estimate is None
    with pytest.raises(UserError, match="outside the range"):
        verdict(outside, uniform)


def test_an_arm_of_one_run_can_be_described_but_not_tested(arms):
    policy, uniform = arms
    single = [Arm(uniform[0].natural[:1], uniform[0].robust[:1]), *uniform[1:]]
    curve = fit_curve(single)
    assert curve.covers(policy.mean_natural)
    for test in (lambda: distance(policy, single), lambda: curve.band(0.8)):
        with pytest.raises(UserError, match="an arm of one run"):
            test()


def test_flags_of_other_shapes_are_refused(arms):
    policy, uniform = arms
    with pytest.raises(UserError, match="not evaluated on the same images"):
        distance(Arm(policy.natural[:, :300], policy.robust[:, :300]), uniform)
    with pytest.raises(UserError, match=r"are not \(runs, images\) of the same runs"):
        Arm(policy.natural, policy.robust[:2])
    with pytest.raises(UserError, match="2 seeds for 4 runs"):
        Arm(policy.natural, policy.robust, (1, 2))


# -- what else a study reports


def test_the_difference_of_two_distances_is_one_minus_the_other(arms):
    policy, uniform = arms
    other = study([SimulatedArm(0.8, 0.48, 5)], UNIFORM)[0][0]
    found = distance(policy, uniform, other)
    assert found.estimate == pytest.approx(distance(policy, uniform).estimate - distance(other, uniform).estimate)
    same = distance(policy, uniform, policy)  # of one arm with itself: the curve and all images cancel
    own = frontier._combination(0.0, [fit_curve(uniform).values(policy)] * 2, [1.0, -1.0])
    found = (same.estimate, same.variances.images, same.variances.seeds)
    assert found == pytest.approx((0, 0, own.variances.seeds))


def test_distance_within_seeds_is_the_mean_of_each_seeds_own_regression():
    wide = ((0.6, 0.52, 3), (0.7, 0.5, 4), (0.8, 0.47, 5), (0.9, 0.40, 3))
    (policy, other), uniform = study([SimulatedArm(0.75, 0.49, 4), SimulatedArm(0.82, 0.45, 4)], wide, seed=3)
    policy, other = replace(policy, seeds=(1, 2, 3, 4)), replace(other, seeds=(4, 3, 2, 1))
    uniform = [replace(arm, seeds=(1, 2, 3, 4, 5)[: arm.runs]) for arm in uniform]  # of these, all have 1, 2 and 3

    def by_hand(arm, seed):
        natural, robust = zip(*(means(one, seed) for one in uniform), strict=True)
        x, y = means(arm, seed)
        return y - np.polyval(np.polyfit(natural, robust, 2), x)

    def means(arm, seed):
        k = arm.seeds.index(seed)
        return arm.natural[k].mean(), arm.robust[k].mean()

    for found, expected in (
        (distance_within_seeds(policy, uniform), [by_hand(policy, seed) for seed in (1, 2, 3)]),
        (
            distance_within_seeds(policy, uniform, other),
            [by_hand(policy, seed) - by_hand(other, seed) for seed in (1, 2, 3)],
        ),
    ):
        assert found.estimate == pytest.approx(np.mean(expected))
        assert found.variances.seeds == pytest.approx(np.var(expected, ddof=1) / 3)
        assert found.variances.df == pytest.approx(2)


def test_within_seeds_what_all_runs_of_a_seed_share_cancels():
    order = np.random.default_rng(0).permutation(10_000)

    def exact(natural, robust):  # the second seed is 3 points lower in both, the third 3 points higher
        flags = [[order < round(10_000 * (value + shift)) for shift in (0, -0.03, 0.03)] for value in (natural, robust)]
        return Arm(*map(np.array, flags))

    uniform = [exact(x, 0.5 - (x - 0.7) ** 2) for x in (0.7, 0.74, 0.8, 0.9)]
    policy = exact(0.85, 0.4805)  # .003 above
    within, between = distance_within_seeds(policy, uniform), distance(policy, uniform)
    assert within.estimate == pytest.approx(0.003, abs=1e-4)
    assert math.sqrt(within.variances.seeds) < 1e-4 < 0.005 < math.sqrt(between.variances.seeds)


def test_within_seeds_false_alarms_are_rare_where_seeds_move_all_arms():
    draw, alarms, studies = np.random.default_rng(0), 0, 300

    def arm(natural, ease):  # ease: how easy each image is for each seed
        robust = 0.477 - 0.2 * (natural - 0.789) - 3 * (natural - 0.789) ** 2
        seen = ease + draw.normal(0, 1, ease.shape)
        return Arm(*(seen > -stats.norm.ppf(p) * math.sqrt(5) for p in (natural, robust)))

    for _ in range(studies):
        ease = draw.normal(0, 2, (1, 300)) + draw.normal(0, 0.3, (4, 1))
        found = distance_within_seeds(arm(0.785, ease), [arm(x, ease) for x in (0.70, 0.76, 0.80, 0.86)])
        alarms += found.estimate is not None and abs(found.estimate) > found.variances.half_width(0.95)
    assert alarms / studies < 0.09


def test_the_secant_distance_is_its_formula(arms):
    policy, (low, middle, high, _) = arms[0], arms[1]
    b = (high.robust.mean() - low.robust.mean()) / (high.natural.mean() - low.natural.mean())
    expected = policy.robust.mean() - middle.robust.mean() - b * (policy.natural.mean() - middle.natural.mean())
    found = secant_distance(policy, middle, (low, high))
    assert found.estimate == pytest.approx(expected)
    assert secant_distance(policy, middle, (high, low)).interval(0.9) == pytest.approx(found.interval(0.9))
    assert secant_distance(middle, middle, (low, high)).estimate == 0


def test_the_secants_variance_is_that_of_resampled_seeds():
    (policy,), uniform = study([SimulatedArm(0.82, 0.46, 6)], [(*arm[:2], 6) for arm in UNIFORM], seed=4)
    low, middle, high, _ = uniform
    found, generator, values = secant_distance(policy, middle, (low, high)), np.random.default_rng(0), []
    for _ in range(1500):
        p, m, a, b = (
            Arm(arm.natural[rows], arm.robust[rows])
            for arm in (policy, middle, low, high)
            for rows in [generator.integers(6, size=6)]
        )
        values.append(secant_distance(p, m, (a, b)).estimate)
    assert np.var(values) * 6 / 5 == pytest.approx(found.variances.seeds, rel=0.15)


def test_the_negative_control_takes_each_uniform_arm_against_the_others(arms):
    _, uniform = arms
    found = negative_control(uniform)
    assert found[1] == distance(uniform[1], [uniform[0], uniform[2], uniform[3]])
    assert [one.estimate is None for one in found] == [True, False, False, True]


def test_the_band_is_the_interval_of_the_curve_itself(arms):
    _, uniform = arms
    curve = fit_curve(uniform)
    low, high = curve.band(0.79, 0.9)
    values = [curve.values(arm) for arm in uniform]
    expected = frontier._combination(curve.at(0.79), values, curve.hat(0.79))
    assert (low, high) == expected.interval(0.9)
    assert low < curve.at(0.79) < high


def test_the_pooled_deviation_is_over_the_runs_of_each_arm(arms):
    policy, uniform = arms
    curve, squares, freedom = fit_curve(uniform), 0.0, 0
    for arm in (policy, *uniform):
        y = [run.mean() for run in arm.robust - curve.slope(arm.natural.mean()) * arm.natural]
        squares += sum((value - np.mean(y)) ** 2 for value in y)
        freedom += len(y) - 1
    assert pooled_deviation([policy, *uniform], uniform) == pytest.approx(math.sqrt(squares / freedom))


def test_the_correlation_of_seeds_is_pearsons_on_the_seeds_that_two_arms_share(arms):
    policy, uniform = arms
    other = uniform[2]
    curve = fit_curve(uniform)
    a, b = (replace(arm, seeds=seeds) for arm, seeds in ((policy, (7, 3, 5, 4)), (other, (3, 9, 4, 5, 1))))
    y, x = curve.values(a).mean(1), curve.values(b).mean(1)
    expected = np.corrcoef(y[[1, 2, 3]], x[[0, 3, 2]])[0, 1]
    assert seed_correlation([a, b], uniform) == pytest.approx(expected)
    assert seed_correlation([policy, policy], uniform) == pytest.approx(1)
    assert math.isnan(seed_correlation([a, replace(b, seeds=(11, 12, 13, 14, 15))], uniform))


# -- verdicts


@pytest.mark.parametrize(
    ("estimate", "deviation", "side", "on_curve", "text"),
    [
        (0.005, 0.001, "above", False, "above the curve"),
        (0.0023, 0.001, "above", False, "above the curve"),  # 97.5 %: ±2.241 deviations
        (0.0022, 0.001, "", False, "undecided"),
        (0, 0.0018, "", True, "on the curve"),  # 90 %: ±1.645 deviations
        (0, 0.0019, "", False, "undecided"),
        (-0.005, 0.001, "below", False, "below the curve"),
        (0.0001, 0.0005, "", True, "on the curve within ±0.30 points"),
        (0.001, 0.001, "", True, "on the curve within ±0.30 points"),
        (0.0015, 0.0004, "above", True, "above the curve, and on the curve within ±0.30 points"),
        (
            0.002,
            0.0015,
            "",
            False,
            "undecided; the smallest effect that could have been seen is 0.46 points (80 % power)",
        ),
    ],
)
def test_the_verdict_follows_from_two_intervals(monkeypatch, arms, estimate, deviation, side, on_curve, text):
    given = Distance(estimate, Variances(deviation**2, 0.0, 0.0, 1e6))
    monkeypatch.setattr("pixelpart.comparison.frontier_study.distance", lambda *_: given)
    found = verdict(*arms)
    assert (found.side, found.on_curve) == (side, on_curve)
    assert str(found).startswith(text)


def test_the_smallest_effect_is_that_of_the_normal_distribution_for_many_seeds():
    found = Distance(0.0, Variances(1e-6, 0.0, 0.0, 1e9))
    assert smallest_effect(found) == pytest.approx(0.001 * (stats.norm.ppf(0.9875) + stats.norm.ppf(0.8)), rel=1e-6)


# -- simulated studies


def shifted(design, effect):
    """The same, with the first policy's robust accuracy higher by `effect`."""
    first, *others = design.policies
    return replace(design, policies=(replace(first, robust=first.robust + effect), *others))


H1 = StudyDesign(
    (on_curve(0.794, 8),),
    tuple(on_curve(*arm) for arm in ((0.759, 4), (0.783, 8), (0.795, 8), (0.8075, 4), (0.832, 4))),
    images=2000,
    natural_deviation=0.0067,  # on a fifth of the images all deviations are larger by sqrt(5)
    robust_deviation=0.0040,
)


def test_simulated_flags_have_the_designs_accuracies_and_deviations():
    many = replace(H1, policies=(replace(H1.policies[0], runs=400),), images=10_000)
    many = replace(many, natural_deviation=0.0030, robust_deviation=0.0025)
    (policy,), uniform = many.draw(np.random.default_rng(0))
    assert policy.mean_natural == pytest.approx(0.794, abs=0.015)  # these images are one draw
    assert policy.mean_robust == pytest.approx(H1.policies[0].robust, abs=0.015)
    assert policy.natural.mean(1).std(ddof=1) == pytest.approx(0.0030, rel=0.1)
    assert policy.robust.mean(1).std(ddof=1) == pytest.approx(0.0025, rel=0.1)
    assert not (policy.robust & ~policy.natural).any()
    assert [arm.runs for arm in uniform] == [4, 8, 8, 4, 4]


def test_a_null_study_raises_few_false_alarms_and_a_large_effect_is_seen():
    null = simulate_studies(H1, studies=300)
    low, high = wilson(null.above + null.below, null.studies)
    assert low < 0.05 < high
    assert simulate_studies(shifted(H1, 0.02), studies=40, confidence=0.975).above == 40
    assert simulate_studies(shifted(H1, -0.02), studies=40, confidence=0.975).below == 40
    pair = replace(H1, policies=(H1.policies[0], on_curve(0.8, 8)))
    assert simulate_studies(pair, studies=100).share < 0.15
    assert simulate_studies(replace(H1, policies=(on_curve(0.9, 3),)), studies=5).outside == 5


def test_a_design_like_a_study_has_its_sizes_and_deviations_and_a_policy_on_the_curve():
    (policy,), uniform = replace(H1, images=4000).draw(np.random.default_rng(3))
    design = shifted(StudyDesign.like([policy], uniform), 0.001)
    curve = fit_curve(uniform)
    assert design.images == 4000
    assert [arm.runs for arm in design.uniform] == [4, 8, 8, 4, 4]
    assert design.policies[0].robust == pytest.approx(curve.at(policy.mean_natural) + 0.001)
    assert [arm.robust for arm in design.uniform] == pytest.approx([curve.at(arm.mean_natural) for arm in uniform])
    assert design.natural_deviation == pytest.approx(0.0067, rel=0.4)
    assert design.robust_deviation == pytest.approx(0.0040, rel=0.4)
    assert design.correlation == pytest.approx(0.98, abs=0.01)


def test_the_correlation_of_runs_is_estimated_back_from_simulated_ones():
    generator = np.random.default_rng(0)
    latent = math.sqrt(0.8) * generator.standard_normal(2000) + math.sqrt(0.2) * generator.standard_normal((50, 2000))
    assert tetrachoric(latent > -0.5) == pytest.approx(0.8, abs=0.03)
    with pytest.raises(UserError, match="the accuracy is 100% in all runs"):
        tetrachoric(np.ones((3, 10), dtype=bool))


def test_the_smallest_effect_is_seen_with_its_power():
    drawn = [H1.draw(np.random.default_rng(k)) for k in range(40)]
    effect = fmean(smallest_effect(distance(policy, uniform)) for (policy,), uniform in drawn)
    assert 0.7 < simulate_studies(shifted(H1, effect), studies=200, confidence=0.975).share < 0.9
