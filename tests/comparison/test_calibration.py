import json
import math

import numpy as np
import pytest

from pixelpart.cli.main import main
from pixelpart.comparison.calibration import LEVEL, SimulatedMethod, calibrate, compare_splits, simulate, splits_of
from pixelpart.errors import UserError
from pixelpart.evaluation.statistics import BOOTSTRAP, MCNEMAR, difference, wilson
from run_results import write_run


def flags_of(seeds, *, n=400, skill=0.05, rho=0.9, mu=0.3):
    generator = np.random.default_rng(seeds)
    latent = math.sqrt(rho) * generator.standard_normal(n) + math.sqrt(1 - rho) * generator.standard_normal((seeds, n))
    return latent + mu + skill * generator.standard_normal((seeds, 1)) > 0


@pytest.fixture
def runs(tmp_path):
    """Six runs of one method."""
    return [
        write_run(tmp_path / f"at-{seed}", {"pgd20": flags}, config={"seed": seed})
        for seed, flags in enumerate(flags_of(6))
    ]


@pytest.mark.parametrize(("seeds", "deviation"), [(2, 0.02), (3, 0.0), (5, 0.02), (8, 0.0)])
def test_a_method_differs_from_itself_at_the_nominal_rate(seeds, deviation):
    rate = simulate(SimulatedMethod(images=200, deviation=deviation), seeds, repeats=800, seed=0)
    low, high = wilson(rate.different, rate.repeats, 0.9999)
    assert rate.test == BOOTSTRAP
    assert low <= LEVEL <= high


def test_mcnemar_keeps_its_level_only_if_seeds_do_not_matter():
    still, moving = (simulate(SimulatedMethod(images=400, deviation=d), 1, repeats=400, seed=0) for d in (0.0, 0.05))
    assert still.test == MCNEMAR
    assert still.share < 0.09
    assert moving.share > 0.3


def test_the_method_is_estimated_back_from_simulated_runs():
    method = SimulatedMethod(images=2000, accuracy=0.7, deviation=0.02, correlation=0.8)
    found = SimulatedMethod.estimate(method.draw(200, np.random.default_rng(0)))
    assert found.images == 2000
    assert found.accuracy == pytest.approx(method.accuracy, abs=0.02)
    assert found.deviation == pytest.approx(method.deviation, rel=0.15)
    assert found.correlation == pytest.approx(method.correlation, abs=0.03)
    assert SimulatedMethod.estimate(flags_of(20, skill=0.0)).deviation < 0.01
    with pytest.raises(UserError, match="the accuracy is 100% in all runs"):
        SimulatedMethod.estimate(np.ones((3, 10), dtype=bool))


def test_every_split_is_tried_once():
    for runs, size, count in ((4, 2, 3), (5, 2, 15), (8, 4, 35), (5, 1, 10)):
        found = {frozenset((frozenset(a), frozenset(b))) for a, b in splits_of(runs, size, 0)}
        assert len(found) == len(list(splits_of(runs, size, 0))) == count
        assert all(len(a) == len(b) == size and not a & b for a, b in map(tuple, found))
    assert len(list(splits_of(16, 8, 0))) == 1000  # of 6,435, at random


def test_splits_that_report_a_difference_are_counted():
    flags = flags_of(4)
    flags[:2, :100] = True  # two runs are not of the same method as the other two
    flags[2:, :100] = False
    rate = compare_splits(flags, 2)
    splits = [((0, 1), (2, 3)), ((0, 2), (1, 3)), ((0, 3), (1, 2))]
    expected = [difference(flags[list(a)], flags[list(b)]).p < LEVEL for a, b in splits]
    assert expected == [True, False, False]
    assert (rate.different, rate.repeats, rate.seeds) == (1, 3, 2)


def test_runs_are_compared_with_each_other_and_simulated(runs):
    found = calibrate(runs, seeds=[3], repeats=20)
    (case,) = found.cases
    assert (case.attack, case.runs) == ("pgd20", 6)
    assert [(rate.seeds, rate.repeats, rate.test) for rate in case.splits] == [(1, 15, MCNEMAR), (3, 10, BOOTSTRAP)]
    assert case.method == SimulatedMethod.estimate(flags_of(6))
    text = str(found)
    assert f"3 against 3 of these runs, {BOOTSTRAP}: {case.splits[1].different} of 10 splits" in text
    assert "simulated: 400 images" in text


def test_two_runs_are_enough_to_simulate_and_one_is_not(runs):
    (case,) = calibrate(runs[:2], seeds=[2], repeats=5, deviation=0.1).cases
    assert case.splits == []
    assert case.method.deviation == 0.1
    assert case.method.accuracy == SimulatedMethod.estimate(flags_of(6)[:2]).accuracy
    with pytest.raises(UserError, match="at-0 is a single run"):
        calibrate(runs[:1])
    for wrong in ({"seeds": []}, {"seeds": [0]}, {"repeats": 0}):
        with pytest.raises(UserError, match="not integers above 0"):
            calibrate(**wrong)


def test_the_command_simulates_the_given_method(capsys):
    args = ["--seeds", "1,3", "--repeats", "30", "--images", "100", "--accuracy", "0.8", "--deviation", "0.01"]
    assert main(["compare", "--calibrate", *args, "--correlation", "0.7", "--json"]) == 0
    (case,) = json.loads(capsys.readouterr().out)["cases"]
    assert case["method"] == {"images": 100, "accuracy": 0.8, "deviation": 0.01, "correlation": 0.7}
    assert [(rate["seeds"], rate["repeats"]) for rate in case["simulated"]] == [(1, 30), (3, 30)]
    for rate in case["simulated"]:
        assert rate["share"] == rate["different"] / 30
        assert rate["interval"] == list(wilson(rate["different"], 30))
    assert main(["compare", "--calibrate", *args]) == 0
    text = capsys.readouterr().out
    assert "simulated: 100 images, accuracy 80.00%, deviation between seeds 1.00%, correlation 0.950" in text
    assert main(["compare", "--calibrate", *args]) == 0
    assert capsys.readouterr().out == text
