"""The recipes against the paper, field by field, so that a changed default is noticed."""

import pytest
from torch import nn

from pixelpart import recipes
from pixelpart.config import differing_fields
from pixelpart.engine.plan import build_plan
from pixelpart.errors import UserError
from pixelpart.recipes import RECIPES

METHODS = {  # objective, masked
    "at": ("at", False),
    "trades": ("trades", False),
    "mart": ("mart", False),
    "part": ("at", True),
    "part-t": ("trades", True),
    "part-m": ("mart", True),
}
MASK = {"source": "gradcam", "layer": "features", "target": "predicted", "every": 0}


def common(method, burn_in):
    objective, masked = METHODS[method]
    return {
        "schema_version": 1,
        "seed": 0,
        "normalize": False,
        "eps": "8/255",
        "eps_low": "7/255",
        "mask": {"rule": "mean" if masked else "none"} | MASK,
        "burn_in": {"epochs": burn_in if masked else 0, "eps": "same", "objective": "same"},
        "objective": {"name": objective, "beta": 6.0},
        "keep": [],
        "init_from": "",
    }


def listed_fields(config, expected):
    """The config's values of the fields in `expected`; fields added later have their own tests."""
    return {
        key: {k: value[k] for k in expected[key]} if isinstance(value, dict) else value
        for key, value in config.model_dump(mode="json").items()
        if key in expected
    }


PGD10 = {"name": "pgd", "steps": 10, "step_size": "2/255"}
CIFAR10 = {"dataset": "cifar10", "augment": "crop-flip", "holdout": 1024, "probe": 1024, "model": "resnet18"}
CIFAR10 |= {"batch_size": 128, "attack": PGD10, "ema": 0.999}
PAPER_SGD = {"lr": 0.01, "momentum": 0.9, "weight_decay": 2e-4, "schedule": "step", "decay_at": [60]}
STRONG_SGD = {"lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4}
CIFAR10_RECIPES = {  # epochs of burn-in, settings
    "cifar10-{}": (20, CIFAR10 | {"holdout": 0, "epochs": 80, "optim": PAPER_SGD, "ema": 0.0}),
    "cifar10-{}-fast": (8, CIFAR10 | {"epochs": 30, "optim": STRONG_SGD | {"schedule": "cyclic", "warmup": 0.4}}),
    "cifar10-{}-strong": (
        20,
        CIFAR10 | {"augment": "idbh", "epochs": 80, "optim": STRONG_SGD | {"schedule": "cosine", "warmup": 0.05}},
    ),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", CIFAR10_RECIPES)
def test_the_cifar10_recipes_have_the_settings_of_the_paper_or_of_their_description(name, method):
    burn_in, settings = CIFAR10_RECIPES[name]
    expected = common(method, burn_in) | settings | {"recipe": name.format(method)}
    if name.endswith("strong"):
        expected["objective"]["smoothing"] = 0.1
        expected["awp"] = {"gamma": 0.01 if METHODS[method][0] == "at" else 0.005, "after": 10}
    assert listed_fields(RECIPES[name.format(method)](), expected) == expected


def test_all_additions_of_a_strong_recipe_can_be_switched_off():
    """Without them and with the schedule of the fast recipe, only the length differs."""
    off = {"objective": {"smoothing": 0}, "awp": {"gamma": 0, "after": 0}, "augment": "crop-flip", "ema": 0}
    weak = recipes.cifar10_part_strong(**off, optim={"schedule": "cyclic", "warmup": 0.4})
    left = differing_fields(weak, recipes.cifar10_part_fast(ema=0))
    assert [line.split(":")[0] for line in left] == ["recipe", "epochs", "burn_in.epochs"]


def test_a_network_instead_of_a_name_is_answered_with_how_to_name_it():
    with pytest.raises(UserError, match=r"model: a Linear is given; .*: pp.models.use\('module:function'\), in a note"):
        recipes.shapes_at(model=nn.Linear(2, 2))


@pytest.mark.parametrize("method", METHODS)
def test_the_transformer_recipes_have_adamw_clipping_an_eps_ramp_and_attention_maps(method):
    adamw = {"name": "adamw", "momentum": 0.9, "weight_decay": 0.05, "schedule": "cosine", "warmup": 0.1, "clip": 1.0}
    both = {"normalize": True, "eps_ramp": 10, "awp": {"gamma": 0.0, "after": 0}}
    sets = {
        "shapes": {"model": "vit-tiny", "epochs": 20, "optim": adamw | {"lr": 2e-3}, "precision": "fp32", "ema": 0.99},
        "cifar10": {"model": "vit-small", "epochs": 60, "optim": adamw | {"lr": 5e-4}, "precision": "bf16"},
    }
    for name, settings in sets.items():
        expected = common(method, burn_in=3 if name == "shapes" else 15) | both | settings
        expected |= {"recipe": f"{name}-vit-{method}", "dataset": name}
        expected["mask"] |= {"source": "gradient-rollout"}
        assert listed_fields(RECIPES[f"{name}-vit-{method}"](), expected) == expected


PAPER = {  # the differences between the paper's data sets
    "svhn": {"augment": "none", "attack": {"step_size": "1/255", "steps": 10}, "model": "resnet18", "batch_size": 128},
    "tinyimagenet": {"augment": "crop-flip", "attack": {"step_size": "2/255"}, "model": "wrn-34-10", "batch_size": 512},
    "cifar100": {"augment": "crop-flip", "attack": {"step_size": "2/255"}, "model": "resnet18", "batch_size": 128},
}
RATES = {"svhn": (0.01, 3.5e-3), "tinyimagenet": (0.02, 5e-4), "cifar100": (0.01, 2e-4)}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dataset", PAPER)
def test_the_papers_other_sets_have_the_papers_settings(dataset, method):
    lr, decay = RATES[dataset]
    expected = common(method, burn_in=20) | PAPER[dataset]
    expected |= {"recipe": f"{dataset}-{method}", "dataset": dataset, "holdout": 0, "epochs": 80, "ema": 0.0}
    expected |= {"optim": {"lr": lr, "momentum": 0.9, "weight_decay": decay, "schedule": "step", "decay_at": [60]}}
    assert listed_fields(RECIPES[f"{dataset}-{method}"](), expected) == expected


def test_every_recipe_has_its_own_name_and_hash():
    configs = [make() for make in RECIPES.values()]
    assert [config.recipe for config in configs] == list(RECIPES)
    assert len({config.hash() for config in configs}) == len(RECIPES) == 60


def test_part_differs_from_its_baseline_only_in_mask_and_burn_in():
    for plain, masked in (("at", "part"), ("trades", "part-t"), ("mart", "part-m")):
        a, b = (RECIPES[f"cifar10-{method}"]().model_dump() for method in (plain, masked))
        assert {key for key in a if a[key] != b[key]} == {"recipe", "mask", "burn_in"}


def test_a_recipe_is_an_attribute_with_underscores():
    assert recipes.cifar10_part_t_fast(seed=2) == RECIPES["cifar10-part-t-fast"](seed=2)
    with pytest.raises(AttributeError, match=r"unknown recipe 'mnist_at'; choose from shapes-at, .*-part-m"):
        _ = recipes.mnist_at


# -- overrides


def test_a_nested_dict_changes_only_the_fields_it_names():
    config = recipes.shapes_part(mask={"every": 2}, attack={"steps": 1}, optim={"lr": 0.5}, eps_low="6/255")
    base = recipes.shapes_part()
    assert config.mask.every == 2
    assert config.eps_low == 6 / 255
    assert config.mask.rule == "mean"
    assert config.attack.step_size == base.attack.step_size == 3 / 255
    assert config.optim == base.optim.model_copy(update={"lr": 0.5})
    assert config.burn_in == base.burn_in


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"eps_from": "9/255", "epochs": 21}, "cifar10-part: eps_from needs eps above 0 and"),
        ({"epoch": 1}, r"cifar10-part: epoch: no such field; did you mean epochs\?"),
        ({"mask": {"nope": 1}}, "cifar10-part: mask.nope: no such field"),
        ({"epochs": 10}, "cifar10-part: burn_in.epochs 20 .*epochs is 10"),
    ],
)
def test_a_wrong_override_names_the_recipe_and_the_field(overrides, message):
    with pytest.raises(UserError, match=message):
        recipes.cifar10_part(**overrides)


@pytest.mark.parametrize("images", [2, 48, 160, 4000, 50_000])
def test_a_folder_recipe_fits_the_number_of_images(images):
    config = recipes.fill_in(recipes.folder("part"), images)
    assert config.auto == ()
    assert config.holdout == 0 if images < 100 else 0.02 * images < config.holdout <= min(images / 5, 1024)
    steps = -(-(images - config.holdout) // config.batch_size)
    assert steps >= min(8, (images - config.holdout) / 16)
    assert 30 <= config.epochs <= 100
    assert 0 < config.burn_in.epochs < config.epochs / 2


@pytest.mark.parametrize("method", ["at", "part", "trades", "mart"])
def test_a_small_folder_starts_without_an_attack_and_ends_with_the_full_budget(method):
    plan = build_plan(recipes.fill_in(recipes.folder(method, dataset="shapes"), 2400))
    scales = [plan.budget_scale(epoch) for epoch in range(plan.config.epochs)]
    first = plan.config.burn_in.epochs
    assert (plan.config.burn_in.eps, first) == (0, plan.config.epochs // 3)
    rising = [scale for scale in scales[first:] if scale is not None]
    assert rising[0] == pytest.approx(0.5, abs=0.02)
    assert rising == sorted(rising)
    assert scales[plan.config.eps_ramp :] == [None] * (plan.config.epochs // 3)


@pytest.mark.parametrize(
    ("method", "beta"), [("at", 6), ("part", 6), ("trades", 3), ("part-t", 3), ("mart", 1), ("part-m", 1)]
)
def test_a_small_folder_has_a_smaller_beta_unless_it_is_given(method, beta):
    assert recipes.fill_in(recipes.folder(method), 2400).objective.beta == beta
    assert recipes.fill_in(recipes.folder(method), 10_000).objective.beta == 6
    assert recipes.fill_in(recipes.folder(method, objective={"beta": 2}), 2400).objective.beta == 2


def test_a_given_field_stays_and_decides_what_follows_from_it():
    config = recipes.fill_in(recipes.folder("part", epochs=8, eps=4 / 255, optim={"lr": 0.3}), 160)
    assert (config.epochs, config.burn_in.epochs, config.optim.lr) == (8, 2, 0.3)
    assert config.eps_low == 3.5 / 255
