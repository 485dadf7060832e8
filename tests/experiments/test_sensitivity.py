"""The share of |g| on an object and the equivalent eps of a budget, against hand-computed numbers."""

from pathlib import Path

import numpy as np
import pytest
import torch

from pixelpart.experiments.common.intervals import paired
from pixelpart.experiments.common.measures import SENSITIVITY, gradient_size, share_on
from pixelpart.experiments.common.results import Results, RunResult
from pixelpart.experiments.damage import equivalent
from pixelpart.experiments.frontier import gradient_shares


def test_share_on_the_object_over_its_area_and_nan_without_a_gradient():
    inside = torch.tensor([[[1, 0], [0, 0]], [[1, 1], [0, 0]], [[1, 0], [0, 0]]], dtype=torch.bool)
    grads = torch.tensor([[[3.0, 1], [0, 0]], [[1, 1], [1, 1]], [[0, 0], [0, 0]]], dtype=torch.float64)
    found = share_on(grads, inside)
    assert found[:2].tolist() == [3.0, 1.0]  # (3/4) / (1/4); (2/4) / (2/4)
    assert found[2].isnan()


def test_gradient_size_of_a_linear_model_by_hand():
    weights = torch.tensor([[1.0, -2.0], [0.0, 0.0]])  # of two classes, on two pixels of one channel
    x, y = torch.zeros(1, 1, 1, 2), torch.tensor([0])
    found = gradient_size(lambda x: x.flatten(1) @ weights.T, x, y)
    assert found.tolist() == [[[0.5, 1.0]]]  # |p_1 - 1| |w|, p_1 = 1/2


def test_paired_is_students_test():
    mean, low, high, p = paired([1.0, 2.0, 3.0])  # t = 2 / (1 / sqrt 3) = 3.464, df 2
    assert (mean, p) == pytest.approx((2.0, 0.0742), abs=1e-4)
    assert (low, high) == pytest.approx((-0.4841, 4.4841), abs=1e-4)


def test_equivalent_eps_weights_images_by_their_gradient():
    per_image = np.array(
        [[1.0, 8.0, 7.5, 7.5], [3.0, 21.0, 22.5, 22.5]]
    )  # sum |g|; 255 sum b |g| of CAM, shuffled, flat
    found = equivalent(per_image)
    assert found["CAM"]["eps"][0] == 29 / 4
    assert found["CAM"]["eps"][1:] == [7.0, 8.0]  # one image drawn twice
    assert found["CAM"]["minus flat"][0] == pytest.approx(-0.25)
    assert found["shuffled"]["minus flat"] == [0.0, 0.0, 0.0]
    assert "minus flat" not in found["flat"]


def test_gradient_shares_are_compared_with_a_uniform_budget_of_the_same_mean():
    def runs(*values):  # (budget, share) of each seed
        return [
            RunResult(k, Path(), {SENSITIVITY: share}, {}, {}, {}, budget, 1.0, 100) for k, (budget, share) in values
        ]

    uniform = {f"U{level}": runs(*((k, (level, level / 4 + k)) for k in range(2))) for level in (4, 6, 8, 10, 12)}
    arms = uniform | {"8|4 CAM": runs((0, (5.0, 1.25 - 0.1)), (1, (7.0, 1.75 + 1 - 0.3)))}  # .1 and .3 below the line
    results = Results("frontier", "", "-", "demo", "shapes", [SENSITIVITY], {}, arms, {}, [], {})
    (table,) = gradient_shares(results)
    assert [row[:2] for row in table.rows] == [["8|4 CAM", "2"]]
    found = results.analysis["gradient shares"]["8|4 CAM"]
    assert found["mean"] == pytest.approx(-0.2)
    assert found["interval"] == pytest.approx([-0.2 - 12.706 * 0.1, -0.2 + 12.706 * 0.1], abs=1e-4)
