"""benchmarks/calibration.py: a method differs from itself at the nominal rate."""

import runpy
from pathlib import Path

import pytest

from pixelpart.evaluation.statistics import wilson

SCRIPT = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "calibration.py"))
false_alarms = SCRIPT["false_alarms"]


@pytest.mark.parametrize(("seeds", "deviation"), [(2, 0.02), (3, 0.0), (5, 0.02), (8, 0.0)])
def test_a_method_differs_from_itself_at_the_nominal_rate(seeds, deviation):
    low, high = wilson(false_alarms(seeds, deviation, repeats=800, images=200), 800, 0.9999)
    assert low <= SCRIPT["LEVEL"] <= high


def test_mcnemar_keeps_its_level_only_if_seeds_do_not_matter():
    still, moving = (false_alarms(1, deviation, repeats=400, images=400) for deviation in (0.0, 0.05))
    assert still < 0.09 * 400
    assert moving > 0.3 * 400
