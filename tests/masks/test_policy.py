"""Budget policies and the store of maps."""

import pytest
import torch

from pixelpart import masks, models
from pixelpart.errors import UserError
from pixelpart.masks import CleanPass, SourceInputs

EPS, LOW = 8 / 255, 5 / 255


def policy(**settings):
    return masks.budget_policy(**{"eps": EPS, "eps_low": LOW} | settings)


def test_a_raw_map_becomes_eps_in_its_hot_half_and_eps_low_elsewhere_and_a_dead_map_eps() -> None:
    maps = torch.zeros(2, 4, 4)
    maps[0, :2] = 3
    expected = torch.full((2, 1, 4, 4), LOW)
    expected[0, :, :2] = expected[1] = EPS
    share, dead = policy().share(maps, (4, 4))
    assert dead.tolist() == [False, True]
    assert torch.equal(policy().control_and_scale(share, dead)[0], expected)


@pytest.mark.parametrize("layer", ["features", "layer2"])
@pytest.mark.parametrize("target", ["predicted", "label"])
def test_a_policys_maps_are_those_of_cam(layer: str, target: str) -> None:
    model, x, y = models.build("tiny-cnn").eval(), torch.rand(3, 3, 16, 16), torch.tensor([1, 2, 3])
    acts = model.features(x).detach()
    inputs = SourceInputs(x, y, model=model, view=model, clean=CleanPass(acts, model.head(acts).detach()))
    found = policy(source="layercam", layer=layer, target=target).maps(inputs)
    expected = masks.cam(model, x, y if target == "label" else None, method="layercam", layer=layer)
    torch.testing.assert_close(found, expected)


def test_rule_none_is_no_policy_and_unknown_names_are_user_errors() -> None:
    assert policy(rule="none") is None
    for settings, message in (
        ({"rule": "median"}, "unknown mask.rule 'median'"),
        ({"source": "grad"}, "unknown mask.source 'grad'"),
        ({"source": "gradcam:2"}, "mask.source 'gradcam' takes no setting, but 'gradcam:2' has one"),
        ({"control": "random"}, "unknown mask.control 'random'; choose from blobs, flat, inverted, none, shuffled"),
        ({"mean_over": "epoch"}, "unknown mask.mean_over 'epoch'; choose from batch, image"),
        ({"target": "best"}, "unknown mask.target 'best'; choose from label, predicted"),
        ({"eps": 0.0, "eps_low": 0.0}, "a mask needs eps above 0"),
    ):
        with pytest.raises(UserError, match=message):
            policy(**settings)


@pytest.mark.parametrize(
    ("maps", "message"),
    [
        (
            torch.ones(2, 1, 4, 4),
            r"mask.source centre returned shape \(2, 1, 4, 4\) for 2 images; it must be \(2, h, w\)",
        ),
        (torch.ones(1, 4, 4), r"mask.source centre returned shape \(1, 4, 4\) for 2 images"),
        (torch.ones(2, 4, 3), r"mask.source centre returned maps of size \(4, 3\); it must be \(4, 4\)"),
        (torch.full((2, 4, 4), torch.inf), "mask.source centre returned NaN or infinite values"),
        (torch.full((2, 4, 4), 1.1), r"mask.source centre returned heat from 1.1 to 1.1; they must be in \[0, 1\]"),
    ],
)
def test_maps_that_are_no_heat_are_refused(maps: torch.Tensor, message: str) -> None:
    with pytest.raises(UserError, match=message):
        policy(source="centre").check(maps, torch.rand(2, 3, 4, 4), None, source="centre", rule="mean", control="none")
