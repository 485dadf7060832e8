import shlex
from pathlib import Path

import pytest

from pixelpart.cli.arguments import Parser
from pixelpart.cli.flags import add_config_flags, apply_config_flags
from pixelpart.config import Config
from pixelpart.recipes import RECIPES
from pixelpart.report.commands import evaluate_command, run_commands, shorten, train_command
from pixelpart.report.run import Measurement, read_runs
from pixelpart.report.table import result_rows

CONFIG = Config(dataset="shapes")


@pytest.mark.parametrize("changes", [
    {}, {"seed": 3}, {"eps_low": "5.5/255", "normalize": True}, {"optim": {"decay_at": [5, 9], "lr": 0.3}},
    {"mask": {"rule": "quantile:0.7", "every": 2}, "init_from": "runs/a b@3"}, {"optim": {"decay_at": []}},
])  # fmt: skip
def test_train_command_reproduces_the_config(changes):
    config = RECIPES["shapes-part"](**changes)
    words = shlex.split(train_command(config, Path("runs/x")))
    assert words[:3] == ["pixelpart", "train", "shapes-part"]
    assert words[-2:] == ["--out", "runs/x"]
    recipe, parser = RECIPES[words[2]](), Parser("train", None)
    add_config_flags(parser, recipe)
    assert apply_config_flags(recipe, parser.parse_all(words[3:-2])) == config


def test_train_command_leaves_out_what_training_fills_in():
    config = RECIPES["shapes-at"](dataset="folder:a b", size=16, num_classes=2, classes=("cat", "dog, wild"))
    assert train_command(config, Path("runs/x")) == (
        "pixelpart train shapes-at --seed 0 --data 'folder:a b' --size 16 --out runs/x"
    )


def test_unknown_recipe_is_trained_from_the_runs_config():
    assert train_command(Config(recipe="mine; rm"), Path("runs/x")) == "pixelpart train runs/x/config.json --out RUN"


STEPS = {"steps": 20, "step_size": 3 / 255}


@pytest.mark.parametrize(
    ("entries", "options"),
    [
        ([("natural", {}), ("pgd20", {})], "--attacks natural,pgd20 --checkpoint best"),
        (
            [("pgd5", {"eps": 4 / 255, "seed": 2, "n": 64, "checkpoint": "last", "settings": STEPS})],
            "--attacks pgd5 --checkpoint last --eps 4/255 --seed 2 --step-size 3/255 --images 64",
        ),
        ([("pgd20", {"dataset": "cifar10", "n": 10_000})], "--attacks pgd20 --checkpoint best --data cifar10"),
        (
            [("pgd20", {"dataset": "folder:P@64+skip-bad"})],
            "--attacks pgd20 --checkpoint best --data folder:P --size 64 --skip-bad --images 2000",
        ),
        (
            [("pgd20", {"split": "held-out", "n": 512})],
            "--attacks pgd20 --checkpoint best --split held-out --images 512",
        ),
        (
            [("autoattack", {"settings": {"engine": "reference"}})],
            "--attacks autoattack --checkpoint best --engine reference",
        ),
        ([("pgd20", {"eps": 0.0123456789012})], "--attacks pgd20 --checkpoint best --eps 0.0123456789012"),
        (
            [
                ("apgd-l1", {"eps": 12.0, "settings": {"norm": "l1"}}),
                ("pgd20@16/255", {"eps": 16 / 255, "settings": STEPS}),
            ],
            "--attacks apgd-l1,pgd20@16/255 --checkpoint best --step-size 3/255",
        ),
    ],
)
def test_evaluate_command_has_the_options_that_differ_from_the_defaults(entry, entries, options):
    found = [Measurement(**entry(attack, **{"n": 2000} | changes)) for attack, changes in entries]
    assert evaluate_command(CONFIG, Path("my run"), found) == f"pixelpart evaluate 'my run' {options}"


@pytest.mark.parametrize(
    ("dataset", "flags"),
    [("mine:load", "--model mine:net --data mine:load"), ("shapes", "--model mine:net --data shapes")],
)
def test_commands_name_the_user_code_of_a_run(entry, dataset, flags):
    config = Config(dataset="mine:load", model="mine:net")
    found = [Measurement(**entry("pgd20", dataset=dataset, n=2000))]
    command = evaluate_command(config, Path("x"), found)
    assert command.removesuffix(" --images 2000") == f"pixelpart evaluate x --attacks pgd20 --checkpoint best {flags}"
    assert train_command(config, Path("x")) == (
        "pixelpart train x/config.json --model mine:net --data mine:load --out RUN"
    )


def test_images_passed_as_tensors_have_no_command(entry):
    assert evaluate_command(CONFIG, Path("x"), [Measurement(**entry("pgd20", dataset="given"))]) == ""


def test_paths_below_the_working_folder_are_relative(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert shorten(tmp_path / "runs" / "a") == "runs/a"
    assert shorten(Path("/elsewhere/b")) == "/elsewhere/b"


def test_a_result_shown_in_two_rows_is_in_one_command(make_run, entry):
    attacks = (("natural", 200), ("pgd20", 200), ("autoattack", 50))
    (run,) = read_runs([make_run(entries=[entry(name, n=n) for name, n in attacks])])
    commands = run_commands(run, result_rows(run))["commands"][1:]
    assert [command.split()[4] for command in commands] == ["natural,pgd20", "autoattack"]
