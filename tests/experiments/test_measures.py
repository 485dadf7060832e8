"""What is measured on runs, against loops and hand-computed numbers."""

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from command_line import few
from pixelpart import data, masks, recipes
from pixelpart.engine.train import train
from pixelpart.experiments.common import measures
from pixelpart.experiments.common.measures import (
    AFTER_PGD,
    SENSITIVITY,
    concentration,
    gradient_size,
    heat_maps,
    sensitivity,
    share_on,
)
from pixelpart.experiments.common.results import Results, RunResult
from pixelpart.experiments.damage import equivalent
from pixelpart.experiments.frontier import gradient_shares
from pixelpart.runtime.progress import Screen
from pixelpart.sweeps.work import Job


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


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of one epoch on the first images of `shapes`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(data.SETS, "shapes", few())
        small = {"epochs": 1, "keep": (1,), "holdout": 10, "probe": 16, "attack": {"steps": 1}}
        yield train(recipes.shapes("at", **small), tmp_path_factory.mktemp("run"), screen=Screen(quiet=True))


def test_measured_sensitivity_is_that_of_a_loop_over_images(run):
    found = sensitivity(run, Job(run.config, checkpoint="last", images=30), "cpu")
    images, labels = data.load("shapes", split="test")
    inside, model, shares = data.SETS["shapes"].masks("test"), run.load("last")[0], []
    for k in range(30):
        x = (images[k : k + 1] / 255).requires_grad_()
        F.cross_entropy(model(x), labels[k : k + 1]).backward()
        size = x.grad[0].abs().sum(0)
        shares.append(float(size[inside[k]].sum() / size.sum() / inside[k].float().mean()))
    assert found["columns"][SENSITIVITY] == pytest.approx(np.mean(shares), rel=1e-5)
    assert found["dropped"] == {SENSITIVITY: 0, AFTER_PGD: 0}


def test_a_map_on_the_object_only_is_concentrated_by_the_inverse_of_its_area(run):
    inside = data.SETS["shapes"].masks("test")[:8]
    assert concentration(inside.float(), inside) == pytest.approx(float((1 / inside.double().mean((1, 2))).mean()))
    found = heat_maps(run, Job(run.config, checkpoint="last", images=30), "cpu")
    assert found["columns"].keys() == {"epoch 1"}
    labels = data.load("shapes", split="test")[1]
    assert len({int(labels[k]) for k in found["index"]}) == len(found["maps"][1]) == 4


def test_equivalent_eps_weights_images_by_their_gradient():
    per_image = np.array(
        [[1.0, 8.0, 7.5, 7.5], [3.0, 21.0, 22.5, 22.5]]
    )  # sum |g|; 255 sum b |g| of CAM, shuffled, flat
    found = equivalent(per_image)
    assert found["CAM"] == [29 / 4, 7.0, 8.0]  # at the ends one image is drawn twice
    assert found["CAM - flat"][0] == found["CAM - shuffled"][0] == pytest.approx(-0.25)
    assert found["shuffled - flat"] == [0.0, 0.0, 0.0]


def test_measured_damage_is_that_of_a_loop_over_images(run, monkeypatch):
    monkeypatch.setattr(measures, "DAMAGE_IMAGES", 12)
    monkeypatch.setattr(measures, "DAMAGE_BATCH", 5)
    found = measures.damage(run, Job(run.config, checkpoint="last"), "cpu")["per image"]
    images, labels = (tensor[:12] for tensor in data.load("shapes", split="test"))
    model, sizes, budgets = run.load("last")[0], [], []
    for k in range(12):
        x = (images[k : k + 1] / 255).requires_grad_()
        F.cross_entropy(model(x), labels[k : k + 1]).backward()
        sizes.append(x.grad[0].abs().sum(0).double())
        heat = masks.heatmap(model, x.detach())[0]
        budgets.append(torch.where(heat > heat.mean(), 8.0, 7.0).double())
    for k, (total, own, other, flat) in enumerate(found):
        donor = k // 5 * 5 + (k % 5 + 1) % len(images[k // 5 * 5 : k // 5 * 5 + 5])
        assert total == pytest.approx(float(sizes[k].sum()), rel=1e-5)
        assert own == pytest.approx(float((budgets[k] * sizes[k]).sum()), rel=1e-5)
        assert other == pytest.approx(float((budgets[donor] * sizes[k]).sum()), rel=1e-5)
        assert flat == pytest.approx(float(budgets[k].mean() * sizes[k].sum()), rel=1e-5)


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
