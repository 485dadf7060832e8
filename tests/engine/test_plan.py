"""A config's names become functions, and a name that is not there is told before anything is written."""

import pytest
import torch

from pixelpart import recipes
from pixelpart.attacks import mma, pgd
from pixelpart.config import Config
from pixelpart.engine.plan import build
from pixelpart.errors import UserError
from pixelpart.objectives import at, mart, trades


def plan(method="part", **overrides):
    return build(recipes.shapes(method, **overrides))


@pytest.mark.parametrize(
    ("method", "loss", "inner", "start", "compares"),
    [
        ("at", at, "ce", "uniform", False),
        ("trades", trades, "kl", "normal", True),
        ("mart", mart, "ce", "normal", False),
        ("part", at, "ce", "uniform", False),
        ("part-t", trades, "kl", "normal", True),
        ("part-m", mart, "ce", "normal", False),
    ],
)
def test_a_method_is_its_loss_its_inner_loss_and_its_start(method, loss, inner, start, compares):
    for phase in (plan(method).main, plan(method).burn_in):
        function = phase.objective if loss is at else phase.objective.func
        assert function is loss
        assert phase.attack.func is pgd
        assert phase.attack.keywords == {"loss": inner, "steps": 5, "step_size": 3 / 255}
        assert (phase.start, phase.compares_logits) == (start, compares)


def test_beta_reaches_the_losses_that_have_one():
    assert plan("trades", objective={"beta": 2.5}).main.objective.keywords == {"beta": 2.5}


def test_the_loss_sees_smoothed_labels_and_the_attack_does_not():
    def loss(method, smoothing, y):
        phase = plan(method, objective={"smoothing": smoothing}).main
        assert phase.attack.keywords == plan(method).main.attack.keywords
        return phase.objective(lambda x: x.flatten(1), x, x_adv, y)

    x, x_adv = torch.randn(2, 4, 10, 1, 1, dtype=torch.float64)
    y = torch.tensor([3, 0, 0, 9])
    spread = 0.8 * torch.eye(10, dtype=torch.float64)[y] + 0.02
    for method, function in (("at", at), ("trades", trades), ("mart", mart)):
        assert torch.equal(loss(method, 0.2, y), function(lambda x: x.flatten(1), x, x_adv, spread))
        assert torch.equal(loss(method, 0.0, y), function(lambda x: x.flatten(1), x, x_adv, y))
        assert loss(method, 0.2, y) != loss(method, 0.0, y)


def test_only_a_cross_entropy_is_told_the_shares_of_a_mixed_image():
    assert [plan(method).main.compares_targets for method in ("at", "trades", "mart")] == [True, False, True]
    assert not plan("at", attack={"name": "mma"}).main.compares_targets
    assert plan("at").main.classes == 10


def test_only_the_part_methods_have_a_mask_and_no_burn_in_has_one():
    assert plan("at").main.mask is None
    assert plan("at").main.name == "plain"
    assert plan("part").main.mask is not None
    assert plan("part").main.name == "mask"
    assert plan("part").burn_in.mask is None


def test_burn_in_has_its_own_length_eps_and_loss():
    built = plan("part-t", burn_in={"epochs": 2, "eps": "4/255", "objective": "at"})
    assert [built.phase(epoch).name for epoch in range(4)] == ["burn-in", "burn-in", "mask", "mask"]
    assert built.burn_in.eps == 4 / 255
    assert built.main.eps == 8 / 255
    assert plan("part", eps="9/255").burn_in.eps == 9 / 255
    assert built.burn_in.objective is at
    assert built.burn_in.start == "uniform"
    assert built.main.objective.func is trades


def test_without_burn_in_the_first_epoch_is_the_main_phase():
    built = plan("part", burn_in={"epochs": 0})
    assert built.phase(0) is built.main


def test_maps_are_renewed_when_burn_in_ends_and_every_so_many_epochs_from_there():
    built = plan("part", epochs=12, burn_in={"epochs": 3}, mask={"every": 4})
    assert [epoch for epoch in range(12) if built.renews_maps(epoch)] == [3, 7, 11]
    assert not any(plan("part").renews_maps(epoch) for epoch in range(12))
    assert not any(plan("at", mask={"every": 1}).renews_maps(epoch) for epoch in range(12))


def test_a_step_looks_at_the_clean_batch_only_where_something_needs_it():
    assert not plan("at").main.looks
    assert not plan("mart").main.looks
    assert plan("trades").main.looks
    assert plan("part").main.looks
    assert not plan("part", mask={"every": 1}).main.looks
    assert plan("part-t", mask={"every": 1}).main.looks


def test_the_mask_gives_eps_to_the_hot_half_and_eps_low_to_the_other():
    budget = plan("part", eps="8/255", eps_low="5/255").main.mask.budget
    cam = torch.zeros(2, 4, 4)
    cam[0, :2] = 3
    expected = torch.full((2, 1, 4, 4), 5 / 255)
    expected[0, :, :2] = expected[1] = 8 / 255  # a dead map tells nothing: eps everywhere
    found, dead = budget(cam, (4, 4))
    assert torch.equal(found, expected)
    assert dead.tolist() == [False, True]


def test_budgets_from_halfway_up_count_as_high_and_without_two_levels_all_do():
    assert plan("part").main.middle == pytest.approx(7.5 / 255)
    assert plan("part", eps_low="8/255").main.middle == 0
    assert plan("at").main.middle == 0
    assert plan("part").burn_in.middle == 0


def test_another_attack_takes_the_same_settings_but_no_inner_loss():
    phase = plan("trades", attack={"name": "mma"}).main
    assert phase.attack.func is mma
    assert phase.attack.keywords == {"steps": 5, "step_size": 3 / 255}
    assert not phase.compares_logits


@pytest.mark.parametrize("method", ["at", "part"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dataset": "mnist"}, "unknown data set 'mnist'; choose from cifar10, cifar100, shapes, svhn"),
        ({"model": "resnet50"}, "unknown model 'resnet50'; choose from deit-small, preactresnet18, resnet18, "),
        ({"augment": "mixup"}, "unknown augmentation 'mixup'; choose from crop-flip, .*idbh, none"),
        ({"precision": "fp8"}, "unknown precision 'fp8'; choose from .*fp32"),
        ({"attack": {"name": "fgsm"}}, "unknown attack 'fgsm'; choose from mma, pgd"),
        ({"objective": {"name": "awp"}}, "unknown objective 'awp'; choose from at, mart, trades"),
        ({"burn_in": {"objective": "awp"}}, "unknown objective 'awp'; choose from at, mart, trades"),
        ({"optim": {"schedule": "linear"}}, "unknown schedule 'linear'; choose from constant, cosine, cyclic, step"),
        ({"mask": {"rule": "median"}}, "unknown mask.rule 'median'; choose from mean, none, official, quantile"),
        ({"mask": {"rule": "quantile:2"}}, "'2' is not a quantile"),
        ({"mask": {"rule": "mean:2"}}, "rule 'mean' takes no number"),
        ({"mask": {"cam": "grad"}}, "unknown cam 'grad'; choose from gradcam, gradient-rollout, layercam, "),
        ({"mask": {"target": "best"}}, "unknown mask.target 'best'; choose from label, predicted"),
        ({"mask": {"layer": "layer9"}}, "unknown layer 'layer9'; choose from features, layer1, .*linear"),
    ],
)
def test_an_unknown_name_is_a_user_error_with_the_choices_also_where_it_would_not_be_used(method, change, message):
    with pytest.raises(UserError, match=message):
        plan(method, **change)


def test_a_mask_needs_something_to_share_out():
    with pytest.raises(UserError, match="a mask needs eps above 0"):
        build(Config(model="tiny-cnn", eps=0, eps_low=0, mask={"rule": "mean"}))
    assert build(Config(model="tiny-cnn", eps=0, eps_low=0)).main.eps == 0


def test_building_leaves_the_global_generator_alone():
    before = torch.get_rng_state()
    plan("part")
    assert torch.equal(before, torch.get_rng_state())
