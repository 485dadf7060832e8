"""Rules by hand and against numpy and matplotlib; what every rule has in common."""

import matplotlib
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pixelpart import masks
from pixelpart.errors import UserError
from pixelpart.masks import rules

EPS, LOW = 8 / 255, 7 / 255
PER_IMAGE = ["mean", "zscore", "quantile", "quantile:0.8", "soft", "official", "power:0.5", "power:-2"]
ALL = [*PER_IMAGE, "rank"]


def high(heat: Tensor, rule: str) -> list[list[int]]:
    """Where the first image keeps eps; elsewhere it must have eps_low."""
    budget = masks.budget(heat, eps=EPS, eps_low=LOW, rule=rule)
    keeps = budget == torch.tensor(EPS)
    assert ((budget == torch.tensor(LOW)) | keeps).all()
    assert budget.shape == (len(heat), 1, *heat.shape[1:])
    return keeps[0, 0].int().tolist()


HEAT = torch.tensor([[[0.0, 0.2, 0.4], [0.5, 1.0, 0.3]]])  # mean 0.4, deviation sqrt(0.58/6) = 0.311


def test_mean_keeps_eps_above_the_mean() -> None:
    assert high(HEAT, "mean") == [[0, 0, 0], [1, 1, 0]]
    assert torch.equal(masks.budget(HEAT, eps=EPS, eps_low=LOW), masks.budget(HEAT, eps=EPS, eps_low=LOW, rule="mean"))


def test_zscore_keeps_eps_a_deviation_above_the_mean() -> None:
    assert high(HEAT, "zscore") == [[0, 0, 0], [0, 1, 0]]  # 0.4 + 0.311 = 0.711
    # mean 0.5; the population's deviation is 0.320, the sample's 0.370: 0.85 lies between the two limits
    assert high(torch.tensor([[[0.05, 0.35], [0.75, 0.85]]]), "zscore") == [[0, 0], [0, 1]]


def test_quantile_keeps_eps_strictly_above_it() -> None:
    assert high(HEAT, "quantile") == [[0, 0, 1], [1, 1, 0]]  # median 0.35
    assert high(HEAT, "quantile:0.8") == [[0, 0, 0], [0, 1, 0]]  # 0.5, the fifth of six, is not above itself
    assert high(HEAT, "quantile:0") == [[0, 1, 1], [1, 1, 1]]
    assert high(torch.tensor([[[0.0, 0, 0], [0, 0, 0.1]]]), "quantile") == [[0, 0, 0], [0, 0, 1]]


def test_soft_grows_with_heat_and_is_halfway_at_the_mean() -> None:
    budget = masks.budget(HEAT, eps=0.8, eps_low=0.2, rule="soft")
    w = [[0, 0.5, 1], [1.25, 2.5, 0.75]]
    expected = [[0.2 + 0.6 * value / (1 + value) for value in row] for row in w]
    torch.testing.assert_close(budget, torch.tensor([[expected]]))
    assert budget[0, 0, 0, 2].item() == pytest.approx(0.5)


def test_jet_equals_matplotlibs() -> None:
    steps = torch.arange(257) / 256
    values = torch.cat([steps, steps - 1e-6, steps + 1e-6, torch.rand(1000)]).clamp(0, 1)[None, None]
    expected = matplotlib.colormaps["jet"](values.numpy())[..., :3].transpose(0, 3, 1, 2)
    np.testing.assert_allclose(rules.jet(values).numpy(), expected, atol=1e-6)


def test_official_is_jet_of_the_square_standardised_over_all_channels() -> None:
    heat = torch.rand(4, 8, 8, generator=torch.Generator().manual_seed(2))
    budget = masks.budget(heat, eps=EPS, eps_low=LOW, rule="official")
    assert budget.shape == (4, 3, 8, 8)
    for image, ours in zip(heat.numpy(), budget, strict=True):
        colours = matplotlib.colormaps["jet"](image**2)[..., :3]
        expected = (colours - colours.mean()) / colours.std() > 1
        assert np.array_equal(ours.numpy().transpose(1, 2, 0) == np.float32(EPS), expected)
        assert 0.05 < expected.mean() < 0.5


def test_power_needs_eps_low_below_eps() -> None:
    with pytest.raises(UserError, match="rule 'power:1' needs eps_low below eps"):
        masks.parse_rule("power:1", eps=EPS, eps_low=EPS)


def test_rank_equals_a_loop_over_the_values_of_the_batch() -> None:
    heat = (torch.rand(3, 4, 4, generator=torch.Generator().manual_seed(4)) * 20).round() / 20
    values = heat.flatten().tolist()
    expected = [(sum(u < v for u in values) + sum(u <= v for u in values) - 1) / 2 / 47 for v in values]
    assert len(set(values)) < 48
    share = rules.rank(heat)
    assert share.shape == (3, 1, 4, 4)
    torch.testing.assert_close(share.flatten(), torch.tensor(expected))
    numbers = torch.tensor([-3.0, 7.0, 2.0, 7.0]).view(4, 1, 1)  # one for each image
    assert rules.rank(numbers).flatten().tolist() == pytest.approx([0, 5 / 6, 1 / 3, 5 / 6])
    assert rules.rank(numbers[:1]).item() == 0.5


def test_power_stays_within_its_levels_however_close_they_are() -> None:
    heat = torch.rand(8, 4, 4, generator=torch.Generator().manual_seed(5)) ** 4  # some above twice the mean
    for low in (7.89, 7.95, 7.99):
        budget = masks.budget(heat, eps=8 / 255, eps_low=low / 255, rule="power:1")
        assert [float(budget.min()), float(budget.max())] == pytest.approx([low / 255, 8 / 255], rel=1e-6)


@pytest.mark.parametrize("p", [0.5, 2.0, -0.5, 0.0])
def test_power_gives_budgets_in_proportion_to_a_power_of_heat_and_clips_them(p: float) -> None:
    heat = torch.rand(3, 4, 4, generator=torch.Generator().manual_seed(5))
    heat[0, 0, 0] = 0
    eps, low = 16 / 255, 2 / 255
    budget = masks.budget(heat, eps=eps, eps_low=low, rule=f"power:{p}")
    clipped = 0
    for image, found in zip(heat.tolist(), budget[:, 0].tolist(), strict=True):
        raised = [[max(value, 1e-3) ** p for value in row] for row in image]
        mean = sum(map(sum, raised)) / 16
        for row, ours in zip(raised, found, strict=True):
            wanted = [eps / 2 * value / mean for value in row]
            clipped += sum(not low < value < eps for value in wanted)
            assert ours == pytest.approx([min(max(value, low), eps) for value in wanted], rel=1e-5)
    assert (clipped > 0) == (p != 0)


@pytest.mark.parametrize("rule", PER_IMAGE)
def test_images_do_not_interact_and_a_dead_map_gives_eps_everywhere(rule: str) -> None:
    heat = torch.rand(3, 5, 5, generator=torch.Generator().manual_seed(3))
    heat[1] *= 0.2
    heat[2] = 0
    assert masks.is_dead(heat).tolist() == [False, False, True]
    budget = masks.budget(heat, eps=EPS, eps_low=LOW, rule=rule)
    single = torch.cat([masks.budget(image[None], eps=EPS, eps_low=LOW, rule=rule) for image in heat])
    torch.testing.assert_close(budget, single)
    assert (budget[2] == torch.tensor(EPS)).all()
    assert (budget[:2] < EPS - 1e-4).flatten(1).any(1).all()
    if not rule.startswith("power"):
        assert (masks.budget(heat, eps=EPS, eps_low=EPS, rule=rule) == torch.tensor(EPS)).all()


heats = st.lists(st.floats(0, 1, width=32), min_size=9, max_size=9).map(lambda v: torch.tensor(v).view(1, 3, 3))


@settings(deadline=None)
@given(heats, st.sampled_from(["mean", "zscore", "quantile", "quantile:0.8", "soft", "rank", "power:0.5", "power:3"]))
def test_a_hotter_pixel_never_gets_a_smaller_budget(heat: Tensor, rule: str) -> None:
    budget = masks.budget(heat, eps=EPS, eps_low=LOW, rule=rule)
    order = heat.flatten().argsort(stable=True)
    assert (budget.flatten()[order].diff() >= 0).all()


@settings(deadline=None)
@given(heats, st.sampled_from(ALL))
def test_budgets_lie_between_eps_low_and_eps(heat: Tensor, rule: str) -> None:
    budget = masks.budget(heat, eps=EPS, eps_low=LOW, rule=rule)
    assert (budget >= torch.tensor(LOW)).all()
    assert (budget <= torch.tensor(EPS)).all()


@settings(deadline=None)
@given(st.floats(0, 1), st.floats(0, 1), st.sampled_from(["mean", "zscore", "quantile", "quantile:0.8"]))
def test_two_level_budgets_are_eps_and_eps_low_to_the_bit(eps: float, eps_low: float, rule: str) -> None:
    budget = masks.budget(HEAT, eps=eps, eps_low=eps_low, rule=rule)
    assert set(budget.flatten().tolist()) == set(torch.tensor([eps, eps_low]).tolist())


@pytest.mark.parametrize(("eps", "eps_low"), [(8 / 255, -1 / 255), (8.0, 7.0), (float("nan"), 0.0)])
def test_levels_out_of_range_are_refused(eps: float, eps_low: float) -> None:
    with pytest.raises(UserError, match="choose both from 0 to 1"):
        masks.budget(HEAT, eps=eps, eps_low=eps_low)


@pytest.mark.parametrize(
    ("heat", "message"),
    [
        (2 * HEAT, r"heat has values from 0 to 2; they must be in \[0, 1\]"),
        (HEAT / HEAT, "heat has values from nan to nan"),
    ],
)
def test_heat_of_another_range_is_refused(heat: Tensor, message: str) -> None:
    with pytest.raises(UserError, match=message):
        masks.budget(heat, eps=EPS, eps_low=LOW)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (lambda heat: -5 + heat[:, None], r"rule own returned shares from -5 to -4; they must be in \[0, 1\]"),
        (lambda heat: heat[:, None] / 0, "rule own returned shares from nan to nan"),
        (lambda heat: heat, r"rule own returned shape \(1, 2, 3\); it must be \(1, 1 or 3, 2, 3\)"),
        (lambda heat: heat[:, None].expand(-1, 2, -1, -1), r"rule own returned shape \(1, 2, 2, 3\)"),
    ],
)
def test_a_rule_that_returns_no_shares_is_named(rule, message: str, monkeypatch) -> None:
    monkeypatch.setitem(masks.RULES, "own", rule)
    with pytest.raises(UserError, match=message):
        masks.budget(HEAT, eps=EPS, eps_low=LOW, rule="own")


@pytest.mark.parametrize("rule", ALL)
def test_rules_never_wait_for_the_device(rule: str) -> None:
    """On the meta device there are no values to read."""
    heat = torch.empty(2, 8, 8, device="meta")
    assert masks.parse_rule(rule, eps=EPS, eps_low=LOW)(heat).shape[2:] == (8, 8)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("means", "unknown rule 'means'; did you mean mean. choose from mean, official, power"),
        ("mean:0.5", "rule 'mean' takes no number"),
        ("rank:3", "rule 'rank' takes no number"),
        ("power", "rule 'power' is not power:P with -10 <= P <= 10"),
        ("power:11", "rule 'power:11' is not power:P"),
        ("power:half", "rule 'power:half' is not power:P"),
        ("quantile:half", "'half' is not a quantile"),
        ("quantile:1", "'1' is not a quantile"),
        ("quantile:nan", "'nan' is not a quantile"),
    ],
)
def test_a_mistake_in_a_rule_is_a_user_error(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        masks.parse_rule(text, eps=EPS, eps_low=LOW)
