"""The toy against a grid search, finite differences and numbers computed by hand."""

import numpy as np
import pytest

from pixelpart.experiments.common.toy import (
    Toy,
    grid_search,
    kkt_points,
    loss,
    maximisers,
    point,
    random_toys,
    theorem_points,
)

TOYS = random_toys(200, seed=1)


def test_maximiser_and_multipliers_of_a_toy_by_hand():
    # r = .5, w = (2, 1), eps = (1, 1): the loss (.5 - 2 d1 - d2)^2 is largest at (-1, -1), (.5 + 3)^2; there
    # d loss / d d1 = -2 * 2 * 3.5 = -14 pushes d1 down against its lower bound, d loss / d d2 = -7
    (best,) = maximisers(Toy(0.5, (2.0, 1.0), (1.0, 1.0)))
    assert (best.delta, best.loss, best.multipliers, best.case) == ((-1.0, -1.0), 12.25, (0.0, 14.0, 0.0, 7.0), "ii")


def test_theorem_1_points_by_hand():
    toy = Toy(0.5, (2.0, 1.0), (1.0, 1.0))
    assert [one.delta for one in theorem_points(toy)] == [(1.0, -1.5), (-1.0, 2.5), (-0.25, 1.0), (0.75, -1.0)]
    assert [one.inside for one in theorem_points(toy)] == [False, False, True, True]


@pytest.mark.parametrize("toy", TOYS[:50], ids=str)
def test_grid_search_finds_the_maximiser_at_a_corner_and_no_maximum_elsewhere(toy):
    grid, best = grid_search(toy, n=51), maximisers(toy)[0]
    assert grid.largest == pytest.approx(best.loss, rel=1e-12)
    assert grid.argmax == pytest.approx(best.delta)
    assert grid.corners in (1, 2)
    assert (grid.edges, grid.interior) == (0, 0)


def test_theorem_1_points_minimise_the_loss_and_belong_to_case_i_where_they_are_in_the_box():
    inside = 0
    for toy in TOYS:
        smallest = grid_search(toy, n=101).smallest
        for one in theorem_points(toy):
            assert one.loss < 1e-20 <= smallest + 1e-20
            assert max(one.multipliers) == 0
            assert one.case == ("i" if one.inside else "")
            inside += one.inside
    assert inside > 50


def test_case_iii_is_empty_and_corners_are_the_only_other_kkt_points():
    cases = [one.case for toy in TOYS for one in kkt_points(toy)]
    assert set(cases) == {"i", "ii"}
    for toy in TOYS:
        corners = [one.delta for one in kkt_points(toy) if one.case == "ii"]
        assert all(abs(d) == pytest.approx(e) for delta in corners for d, e in zip(delta, toy.eps, strict=True))
        assert len(corners) == (2 if abs(toy.residual) < toy.reach else 1)


def test_case_iii_needs_a_weight_of_zero():
    edge = point(Toy(1.0, (2.0, 0.0), (1.0, 1.0)), (-1.0, 0.3))  # pixel 2 has no effect: any value of it will do
    assert (edge.kkt, edge.case) == (True, "iii")


def test_multipliers_are_the_derivatives_of_the_largest_loss_with_respect_to_the_budgets():
    h = 1e-6
    for toy in TOYS[:50]:
        up1, down1, up2, down2 = maximisers(toy)[0].multipliers
        grown = [
            maximisers(Toy(toy.residual, toy.weights, (toy.eps[0] + a, toy.eps[1] + b)))[0].loss
            for a, b in ((h, 0), (0, h))
        ]
        base = maximisers(toy)[0].loss
        assert [(value - base) / h for value in grown] == pytest.approx([up1 + down1, up2 + down2], rel=1e-4)


def test_every_point_of_the_box_has_a_smaller_loss_than_the_maximiser():
    draw = np.random.default_rng(0)
    for toy in TOYS:
        anywhere = draw.uniform(-1, 1, (100, 2)) * np.array(toy.eps)
        assert loss(toy, anywhere).max() <= maximisers(toy)[0].loss
