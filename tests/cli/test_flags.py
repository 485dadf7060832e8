"""Every field of a config is a flag, and a flag says what a field says."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pixelpart import recipes
from pixelpart.cli.flags import Parser, add_config_flags, apply_config_flags, join_negatives
from pixelpart.config import Config
from pixelpart.errors import UserError


def read(config, *args):
    parser = Parser(prog="test")
    add_config_flags(parser, config)
    return apply_config_flags(config, parser.parse_all(args))


@pytest.fixture
def part():
    return recipes.cifar10_part()


def test_without_flags_the_config_is_the_recipe(part):
    assert read(part) == part


# One flag for every field, written as a person would, and what it makes of the field.
OTHERS = {
    "--seed": ("3", 3),
    "--dataset": ("shapes", "shapes"),
    "--augment": ("none", "none"),
    "--holdout": ("7", 7),
    "--probe": ("9", 9),
    "--model": ("wrn-34-10", "wrn-34-10"),
    "--normalize": ("true", True),
    "--epochs": ("30", 30),
    "--batch-size": ("64", 64),
    "--eps": ("12/255", 12 / 255),
    "--eps-low": ("6.5/255", 6.5 / 255),
    "--attack.name": ("mma", "mma"),
    "--attack.steps": ("5", 5),
    "--attack.step-size": ("1/255", 1 / 255),
    "--mask.rule": ("quantile:0.7", "quantile:0.7"),
    "--mask.cam": ("layercam", "layercam"),
    "--mask.layer": ("layer3", "layer3"),
    "--mask.target": ("label", "label"),
    "--mask.every": ("10", 10),
    "--burn-in.epochs": ("2", 2),
    "--burn-in.eps": ("0.01", 0.01),
    "--burn-in.objective": ("at", "at"),
    "--objective.name": ("mart", "mart"),
    "--objective.beta": ("3", 3.0),
    "--objective.smoothing": ("0.1", 0.1),
    "--optim.lr": ("1e-1", 0.1),
    "--optim.momentum": ("0.5", 0.5),
    "--optim.weight-decay": ("5e-4", 5e-4),
    "--optim.schedule": ("cyclic", "cyclic"),
    "--optim.decay-at": ("60,70", (60, 70)),
    "--optim.warmup": ("0.1", 0.1),
    "--ema": ("0.9", 0.9),
    "--keep": ("5", (5,)),
    "--init-from": ("runs/a@20", "runs/a@20"),
}


def leaf(config, flag):
    for name in flag.removeprefix("--").replace("-", "_").split("."):
        config = getattr(config, name)
    return config


@pytest.mark.parametrize("flag", OTHERS)
def test_a_flag_changes_its_field_and_no_other(part, flag):
    text, value = OTHERS[flag]
    changed = read(part, flag, text)
    assert leaf(changed, flag) == value
    assert leaf(changed, flag) != leaf(part, flag)
    for other in OTHERS:
        if other != flag:
            assert leaf(changed, other) == leaf(part, other)


def test_no_field_lacks_a_flag(part):
    def leaves(values, prefix=""):
        for name, value in values.items():
            if isinstance(value, dict):
                yield from leaves(value, f"{prefix}{name}.")
            else:
                yield f"--{prefix}{name}".replace("_", "-")

    parser = Parser(prog="test")
    add_config_flags(parser, part)
    there = {flag for action in parser._actions for flag in action.option_strings}
    assert set(leaves(part.model_dump())) - {"--schema-version", "--recipe"} == there - {"-h", "--help"}
    assert set(OTHERS) <= there


def test_help_tells_what_every_field_means_and_has_here(part):
    parser = Parser(prog="test")
    add_config_flags(parser, part)
    text = " ".join(parser.format_help().split())
    assert "renew stored maps every so many epochs; 0: a fresh map for every batch (here: 0)" in text
    assert "(here: 7/255)" in text
    assert "100%%" not in text
    for action in parser._actions:
        assert len(action.help) > 10, action.option_strings


def test_an_empty_list_can_be_written(part):
    assert read(part, "--optim.decay-at", "").optim.decay_at == ()
    assert read(part, "--optim.decay-at=").optim.decay_at == ()


def test_a_flag_may_carry_its_value_behind_an_equals_sign(part):
    assert read(part, "--mask.rule=zscore", "--eps-low=6/255") == read(
        part, "--mask.rule", "zscore", "--eps-low", "6/255"
    )


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--eps", "-1/255"], "eps: .*0, not '-1/255'"),
        (["--eps", "-.5"], "eps: .*0, not '-.5'"),
        (["--eps-low", "9/255"], "eps_low 9/255 is above eps 8/255"),
        (["--eps", "1/0"], "'1/0' is not a number"),
        (["--epochs", "many"], "epochs: .*'many'"),
        (["--normalize", "maybe"], "normalize: .*'maybe'"),
        (["--optim.decay-at", "60,x"], "optim.decay_at.1: .*'x'"),
        (["--epoch", "3"], "unknown option '--epoch'; did you mean --epochs"),
        (["--mask.ruel=mean"], "unknown option '--mask.ruel=mean'; did you mean --mask.rule"),
        (["--recipe", "x"], "unknown option '--recipe'"),
        (["mean"], "unexpected argument 'mean'; see --help"),
        (["--eps"], "--eps: expected one argument"),
        (["--zzzzzzzzzzzz"], "unknown option '--zzzzzzzzzzzz'; see --help"),
    ],
)
def test_a_wrong_flag_is_a_user_error_of_one_line(part, args, message):
    with pytest.raises(UserError, match=message) as caught:
        read(part, *args)
    assert "\n" not in str(caught.value)


def test_a_flags_name_may_not_be_shortened(part):
    """`--eps` would otherwise be at the mercy of the next field that begins with it."""
    with pytest.raises(UserError, match=r"unknown option '--mask\.r'"):
        read(part, "--mask.r", "mean")


def test_a_negative_value_joins_the_option_before_it_and_nothing_else():
    assert join_negatives(["a", "--eps", "-1/255", "-h", "--x=1", "-2", "--y"]) == [
        "a",
        "--eps=-1/255",
        "-h",
        "--x=1",
        "-2",
        "--y",
    ]


@given(st.integers(1, 255), st.integers(0, 255))
def test_a_flag_and_a_toml_line_mean_the_same(high, low):
    low = min(low, high)
    by_flag = read(Config(), "--eps", f"{high}/255", "--eps-low", f"{low}/255")
    assert by_flag == Config(eps=f"{high}/255", eps_low=f"{low}/255")
