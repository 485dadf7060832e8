"""Every field of a config is a flag, and a flag sets its field."""

import pytest

from pixelpart import recipes
from pixelpart.cli.arguments import Parser
from pixelpart.cli.flags import add_config_flags, apply_config_flags
from pixelpart.config import flag_of, flat
from pixelpart.errors import UserError


def read(config, *args):
    parser = Parser("test", None)
    add_config_flags(parser, config)
    return apply_config_flags(config, parser.parse_all(args))


@pytest.fixture
def part():
    return recipes.cifar10_part()


@pytest.mark.parametrize(
    ("args", "field", "value"),
    [
        (["--seed", "3"], "seed", 3),
        (["--normalize", "true"], "normalize", True),
        (["--normalize"], "normalize", True),
        (["--eps", "12/255"], "eps", "12/255"),
        (["--eps-low=6.5/255"], "eps_low", "6.5/255"),
        (["--mask.rule", "quantile:0.7"], "mask.rule", "quantile:0.7"),
        (["--burn-in.eps", "0.01"], "burn_in.eps", 0.01),
        (["--optim.weight-decay", "5e-4"], "optim.weight_decay", 5e-4),
        (["--optim.decay-at", "60,70"], "optim.decay_at", [60, 70]),
        (["--optim.decay-at", ""], "optim.decay_at", []),
        (["--data", "svhn"], "dataset", "svhn"),
        (["--init-from", "runs/a@20"], "init_from", "runs/a@20"),
        (["--channels", "3"], "channels", 3),
    ],
)
def test_flag_sets_its_field_and_no_other(part, args, field, value):
    assert flat(read(part, *args)) == flat(part) | {field: value}


def test_every_field_has_a_flag_with_help(part):
    parser = Parser("test", None)
    add_config_flags(parser, part)
    flags = {flag for action in parser._actions for flag in action.option_strings}
    fields = {flag_of(name) for name in flat(part)}
    assert fields - {"--schema-version", "--recipe", "--auto"} == flags - {"-h", "--help"}
    assert all(len(action.help) > 10 for action in parser._actions)
    assert "100%%" not in parser.format_help()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--eps", "-1/255"], "eps: '-1/255' is out of range"),
        (["--epochs", "many"], "epochs: 'many' is not a whole number"),
        (["--normalize", "maybe"], "normalize: .*'maybe'"),
        (["--optim.decay-at", "60,x"], "optim.decay_at.1: .*'x'"),
        (["--epoch", "3"], "unknown option '--epoch'; did you mean --epochs"),
        (["--mask.ruel=mean"], "unknown option '--mask.ruel=mean'; did you mean --mask.rule"),
        (["--mask.r", "mean"], r"unknown option '--mask\.r'"),  # no abbreviations: a later field might match too
        (["--lr", "0.1"], r"unknown option '--lr'; did you mean --optim\.lr\?"),
        (["--batch_size", "8"], r"unknown option '--batch_size'; did you mean --batch-size\?"),
        (["--attack", "pgd"], r"unknown option '--attack'; did you mean --attack\.name or "),
        (["shapes"], "unexpected argument 'shapes'; see --help"),
        (["--eps"], "--eps: expected one argument"),
        (["--zzzzzzzzzzzz"], "unknown option '--zzzzzzzzzzzz'; see --help"),
    ],
)
def test_wrong_flag_is_a_user_error_of_one_line(part, args, message):
    with pytest.raises(UserError, match=message) as caught:
        read(part, *args)
    assert "\n" not in str(caught.value)
