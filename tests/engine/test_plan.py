"""A config's names become an attack, a mask and an objective; an unknown name is a UserError."""

import pytest
import torch

from pixelpart import recipes
from pixelpart.attacks import mma, pgd
from pixelpart.engine import plan as plan_module
from pixelpart.engine.plan import build_plan, check_plans
from pixelpart.errors import UserError
from pixelpart.objectives import at, mart, trades
from pixelpart.runs import build_model


def plan(method="part", **overrides):
    return build_plan(recipes.shapes(method, **overrides))


@pytest.mark.parametrize(
    ("method", "loss", "inner", "start", "away_from"),
    [
        ("at", at, "ce", "uniform", "targets"),
        ("part-t", trades, "kl", "normal", "clean logits"),
        ("part-m", mart, "ce", "normal", "targets"),
    ],
)
def test_a_method_sets_the_loss_and_what_its_attack_maximises(method, loss, inner, start, away_from):
    built = plan(method)
    for phase in (built.main, built.burn_in):
        assert getattr(phase.loss, "func", phase.loss) is loss
        assert phase.classes == 10
        assert phase.attack.func is pgd
        assert phase.attack.keywords == {"loss": inner, "steps": 5, "step_size": 3 / 255}
        assert (phase.start, phase.starts, phase.away_from) == (start, 1, away_from)


def test_mma_takes_no_inner_loss_and_moves_away_from_the_labels():
    phase = plan("trades", attack={"name": "mma"}).main
    assert phase.attack.func is mma
    assert phase.attack.keywords == {"steps": 5, "step_size": 3 / 255}
    assert (phase.starts, phase.away_from) == (3, "labels")


def test_beta_reaches_the_losses_that_take_it():
    assert plan("trades", objective={"beta": 2.5}).main.loss.keywords == {"beta": 2.5}


@pytest.mark.parametrize(("method", "function"), [("at", at), ("trades", trades), ("mart", mart)])
def test_only_the_loss_sees_smoothed_labels(method, function):
    def model(x):
        return x.flatten(1)

    x, x_adv = torch.randn(2, 4, 10, 1, 1, dtype=torch.float64)
    y = torch.tensor([3, 0, 0, 9])
    plain, smooth = (plan(method, objective={"smoothing": s}).main for s in (0.0, 0.2))
    assert torch.equal(plain.loss(model, x, x_adv, y), function(model, x, x_adv, y))
    targets = 0.8 * torch.eye(10, dtype=torch.float64)[y] + 0.02
    assert torch.equal(smooth.loss(model, x, x_adv, y), function(model, x, x_adv, targets))
    assert smooth.attack.keywords == plain.attack.keywords


def test_only_the_main_phase_of_part_methods_has_a_mask():
    assert (plan("at").main.mask, plan("at").main.name) == (None, "plain")
    assert plan("part").main.mask is not None
    assert plan("part").main.name == "mask"
    assert plan("part").burn_in.mask is None


def test_burn_in_has_its_own_length_eps_and_loss():
    built = plan("part-t", burn_in={"epochs": 2, "eps": "4/255", "objective": "at"})
    assert [built.phase(epoch).name for epoch in range(4)] == ["burn-in", "burn-in", "mask", "mask"]
    assert (built.burn_in.eps, built.main.eps) == (4 / 255, 8 / 255)
    assert built.burn_in.loss is at
    assert built.burn_in.start == "uniform"
    assert plan("part", eps="9/255").burn_in.eps == 9 / 255
    assert plan("part", burn_in={"epochs": 0}).phase(0).name == "mask"


def test_awp_starts_at_its_epoch_and_budgets_are_scaled_while_eps_ramps_up():
    built = plan("part", epochs=6, burn_in={"epochs": 1}, eps_ramp=4, awp={"gamma": 0.01, "after": 2})
    assert [built.phase(epoch).awp for epoch in range(6)] == [0, 0, 0.01, 0.01, 0.01, 0.01]
    assert [built.budget_scale(epoch) for epoch in range(6)] == [0.125, 0.375, 0.625, 0.875, None, None]


def test_budgets_go_linearly_from_eps_from_after_burn_in_to_eps_in_the_last_epoch():
    def scales(**settings):
        built = plan(epochs=6, **({"burn_in": {"epochs": 1}} | settings))
        return [built.budget_scale(epoch) for epoch in range(6)]

    up = scales(eps="10/255", eps_from="6/255")  # 6, 7, 8, 9, 10 of 255
    assert up == [None, *(pytest.approx(level / 10) for level in (6, 7, 8, 9, 10))]
    down = scales(method="at", eps="6/255", eps_from="10/255", burn_in={"epochs": 2})
    assert down == [None, None, *(pytest.approx(level / 6) for level in (10, 26 / 3, 22 / 3, 6))]
    assert (up[-1], down[-1]) == (1.0, 1.0)
    assert scales(eps_from="4/255", eps_ramp=2) == [0.25, *map(pytest.approx, (0.375, 0.625, 0.75, 0.875, 1))]


def test_maps_are_renewed_after_burn_in_and_every_few_epochs_from_there():
    built = plan("part", epochs=12, burn_in={"epochs": 3}, mask={"every": 4})
    assert [epoch for epoch in range(12) if built.renews_maps(epoch)] == [3, 7, 11]
    assert not any(plan("part").renews_maps(epoch) for epoch in range(12))
    assert not any(plan("at", mask={"every": 1}).renews_maps(epoch) for epoch in range(12))


@pytest.mark.parametrize("method", ["at", "part"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"dataset": "mnist"},
            "unknown data set 'mnist'; choose from cifar10, cifar100, folder:PATH, module:function, ",
        ),
        (
            {"model": "resnet50"},
            "unknown model 'resnet50'; did you mean resnet18. choose from deit-small, module:function, ",
        ),
        ({"augment": "mixup"}, "unknown augmentation 'mixup'; choose from crop-flip, .*idbh, none"),
        ({"precision": "fp8"}, "unknown precision 'fp8'; choose from .*fp32"),
        ({"attack": {"name": "fgsm"}}, "unknown attack 'fgsm'; choose from mma, pgd"),
        ({"objective": {"name": "awp"}}, "unknown objective 'awp'; choose from at, mart, trades"),
        ({"burn_in": {"objective": "awp"}}, "unknown objective 'awp'; choose from at, mart, trades"),
        ({"optim": {"schedule": "linear"}}, "unknown schedule 'linear'; choose from constant, cosine, cyclic, step"),
        ({"optim": {"name": "lion"}}, "unknown optimizer 'lion'; choose from adamw, sgd"),
        (
            {"mask": {"rule": "median"}},
            "unknown mask.rule 'median'; did you mean mean. choose from mean, none, official, power, quantile",
        ),
        ({"mask": {"rule": "quantile:2"}}, "'2' is not a quantile"),
        (
            {"mask": {"source": "grad"}},
            "unknown mask.source 'grad'; did you mean gradcam or .* choose from blobs, centre, ",
        ),
        ({"mask": {"control": "random"}}, "unknown mask.control 'random'; choose from blobs, flat, inverted, none"),
        ({"mask": {"source": "margin"}}, "mask.source 'margin' is one number per image; it takes mask.rule rank"),
        ({"mask": {"target": "best"}}, "unknown mask.target 'best'; choose from label, predicted"),
        ({"mask": {"layer": "linear"}}, "layer 'linear' gives"),
        ({"mask": {"layer": "layer9"}}, "unknown layer 'layer9'; choose from features, layer1, .*linear"),
    ],
)
def test_an_unknown_name_is_a_user_error_with_the_choices(method, change, message):
    """Also where the method would not use it, and in one of many configs."""
    with pytest.raises(UserError, match=message):
        plan(method, **change)
    with pytest.raises(UserError, match=message):
        check_plans([recipes.shapes("part"), recipes.shapes(method, **change), recipes.shapes("at")])


@pytest.mark.parametrize("model", ["tiny-cnn", "resnet18", "preactresnet18", "wrn-10-1", "vit-tiny"])
def test_many_configs_of_one_network_build_it_once(model, monkeypatch):
    maps = ["gradcam", "layercam", "rollout"] if model == "vit-tiny" else ["gradcam", "layercam", "xgradcam"]
    masks = [{"source": source, "control": control} for source in maps for control in ("none", "flat")]
    built = []
    monkeypatch.setattr(plan_module, "build_model", lambda config: built.append(config) or build_model(config))
    check_plans([recipes.shapes("part", model=model, mask=mask, seed=seed) for mask in masks for seed in range(3)])
    assert len(built) == 1
