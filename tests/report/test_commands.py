import shlex
from pathlib import Path

import pytest

from pixelpart.cli.arguments import Parser
from pixelpart.cli.flags import add_config_flags, apply_config_flags
from pixelpart.config import Config
from pixelpart.recipes import RECIPES
from pixelpart.report.commands import evaluate_command, shown, train_command
from pixelpart.report.reading import Entry

OWN = Config(dataset="shapes")


@pytest.mark.parametrize("changes", [
    {}, {"seed": 3}, {"eps_low": "5.5/255", "normalize": True}, {"optim": {"decay_at": [5, 9], "lr": 0.3}},
    {"mask": {"rule": "quantile:0.7", "every": 2}, "init_from": "runs/a b@3"}, {"optim": {"decay_at": []}},
])  # fmt: skip
def test_the_train_command_gives_back_the_config(changes):
    config = RECIPES["shapes-part"](**changes)
    words = shlex.split(train_command(config, Path("runs/x")))
    assert words[:3] == ["pixelpart", "train", "shapes-part"]
    assert words[-2:] == ["--out", "runs/x"]
    recipe, parser = RECIPES[words[2]](), Parser("train", None)
    add_config_flags(parser, recipe)
    assert apply_config_flags(recipe, parser.parse_all(words[3:-2])) == config


def test_what_training_has_filled_in_is_not_told():
    config = RECIPES["shapes-at"](dataset="folder:a b", size=16, num_classes=2, classes=("cat", "dog, wild"))
    told = "pixelpart train shapes-at --seed 0 --dataset 'folder:a b' --size 16 --out runs/x"
    assert train_command(config, Path("runs/x")) == told


def test_an_unknown_recipe_is_trained_from_the_runs_own_config():
    assert train_command(Config(recipe="mine; rm"), Path("runs/x")) == "pixelpart train runs/x/config.json --out RUN"


def test_the_evaluate_command_names_what_differs_from_the_defaults(entry):
    entries = [Entry(**entry("natural", n=2000)), Entry(**entry("pgd20", n=2000))]
    assert (
        evaluate_command(OWN, Path("runs/x"), entries)
        == "pixelpart evaluate runs/x --attacks natural,pgd20 --checkpoint best"
    )
    odd = Entry(
        **entry("pgd5", eps=4 / 255, seed=2, n=64, checkpoint="last", settings={"steps": 5, "step_size": 1 / 255})
    )
    assert evaluate_command(OWN, Path("my run"), [odd]) == (
        "pixelpart evaluate 'my run' --attacks pgd5 --checkpoint last "
        "--eps 4/255 --seed 2 --step-size 1/255 --images 64"
    )


def test_another_set_is_named_and_tensors_have_no_command(entry):
    assert evaluate_command(OWN, Path("x"), [Entry(**entry("pgd20", dataset="given"))]) == ""
    command = "pixelpart evaluate x --attacks pgd20 --checkpoint best --data cifar10"
    assert evaluate_command(OWN, Path("x"), [Entry(**entry("pgd20", dataset="cifar10", n=10_000))]) == command


def test_the_engine_is_told_where_it_is_the_authors_own(entry):
    engines = {name: entry("autoattack", n=2000, settings={"engine": name}) for name in ("own", "reference")}
    commands = {name: evaluate_command(OWN, Path("x"), [Entry(**one)]) for name, one in engines.items()}
    assert commands["reference"] == f"{commands['own']} --engine reference"


def test_a_number_that_is_no_fraction_is_written_whole(entry):
    odd = Entry(**entry("pgd20", eps=0.0123456789012, n=2000))
    assert "--eps 0.0123456789012" in evaluate_command(OWN, Path("x"), [odd])


def test_an_eps_in_an_attack_s_name_is_not_told_twice(entry):
    steps = {"steps": 20, "step_size": 1 / 255}
    entries = [
        Entry(**entry("natural", n=2000)),
        Entry(**entry("apgd-l1", n=2000, eps=12.0, settings={"norm": "l1"})),
        Entry(**entry("pgd20@16/255", n=2000, eps=16 / 255, settings=steps)),
    ]
    command = "pixelpart evaluate x --attacks natural,apgd-l1,pgd20@16/255 --checkpoint best --step-size 1/255"
    assert evaluate_command(OWN, Path("x"), entries) == command
    own = Entry(**entry("pgd20", n=2000, eps=4 / 255, settings=steps))
    assert "--eps 4/255" in evaluate_command(OWN, Path("x"), [*entries, own])


def test_paths_beneath_are_relative_and_others_as_given(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert shown(tmp_path / "runs" / "a") == "runs/a"
    assert shown(Path("/elsewhere/b")) == "/elsewhere/b"
