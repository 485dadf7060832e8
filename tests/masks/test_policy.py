"""Budget policies and the store of maps."""

import pytest
import torch

from pixelpart import masks, models
from pixelpart.errors import UserError

EPS, LOW = 8 / 255, 5 / 255


def policy(**settings):
    return masks.budget_policy(**{"eps": EPS, "eps_low": LOW} | settings)


def test_a_raw_map_becomes_eps_in_its_hot_half_and_eps_low_elsewhere_and_a_dead_map_eps() -> None:
    maps = torch.zeros(2, 4, 4)
    maps[0, :2] = 3
    expected = torch.full((2, 1, 4, 4), LOW)
    expected[0, :, :2] = expected[1] = EPS
    budget, dead = policy().budget(maps, (4, 4))
    assert torch.equal(budget, expected)
    assert dead.tolist() == [False, True]


@pytest.mark.parametrize("layer", ["features", "layer2"])
@pytest.mark.parametrize("target", ["predicted", "label"])
def test_a_policys_maps_are_those_of_cam(layer: str, target: str) -> None:
    model, x, y = models.build("tiny-cnn").eval(), torch.rand(3, 3, 16, 16), torch.tensor([1, 2, 3])
    acts = model.features(x).detach()
    found = policy(cam="layercam", layer=layer, target=target).maps(model, model, x, y, acts, model.head(acts).detach())
    expected = masks.cam(model, x, y if target == "label" else None, method="layercam", layer=layer)
    torch.testing.assert_close(found, expected)


def test_budgets_from_halfway_up_count_as_high_and_all_do_if_there_is_one_level() -> None:
    assert policy().high_from == pytest.approx(6.5 / 255)
    assert policy(eps_low=EPS).high_from == 0


def test_rule_none_is_no_policy_and_unknown_names_are_user_errors() -> None:
    assert policy(rule="none") is None
    for settings, message in (
        ({"rule": "median"}, "unknown mask.rule 'median'"),
        ({"cam": "grad"}, "unknown cam 'grad'"),
        ({"target": "best"}, "unknown mask.target 'best'; choose from label, predicted"),
        ({"eps": 0.0, "eps_low": 0.0}, "a mask needs eps above 0"),
    ):
        with pytest.raises(UserError, match=message):
            policy(**settings)
