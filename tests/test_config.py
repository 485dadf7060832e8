"""Configs are read and written without loss, have a hash, and name mistakes."""

import json
import re
import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pixelpart.config import (
    ADDED,
    Config,
    config_from,
    data_label,
    differing_fields,
    flat,
    parse_fraction,
    read_config,
    split_data_label,
    write_fraction,
)
from pixelpart.errors import UserError
from pixelpart.recipes import RECIPES

ROOT = Path(__file__).parents[1]
EPS = st.one_of(
    st.floats(0, 1),
    st.integers(0, 255).map(lambda level: level / 255),
    st.integers(0, 510).map(lambda level: level / 2 / 255),
)


@st.composite
def configs(draw):
    return Config(
        eps=draw(EPS),
        eps_low=draw(EPS),
        mask={"mean": draw(EPS)},
        seed=draw(st.integers(0, 2**63)),
        recipe=draw(st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc", "Zl", "Zp"]), max_size=8)),
        attack={"step_size": draw(EPS.filter(bool)), "steps": draw(st.integers(1, 100))},
        optim={
            "lr": draw(st.floats(1e-12, 1e12)),
            "weight_decay": draw(st.floats(0, 1)),
            "decay_at": draw(st.lists(st.integers(0, 80), max_size=3)),
        },
        normalize=draw(st.booleans()),
        keep=draw(st.lists(st.integers(0, 80), max_size=2)),
    )


@settings(max_examples=30)
@given(configs())
def test_a_config_survives_json_and_toml_with_the_same_hash(config):
    for text, parse in ((config.to_json(), json.loads), (config.to_toml(), tomllib.loads)):
        again = config_from(parse(text), source="test")
        assert again == config
        assert again.hash() == config.hash()


@given(EPS)
def test_a_written_fraction_is_read_as_the_same_float(eps):
    assert parse_fraction(write_fraction(eps)) == eps


def test_fractions_by_hand():
    texts = ("8/255", 8 / 255), ("7.5/255", 7.5 / 255), ("0.03", 0.03), (" 1 / 4 ", 0.25), ("1e-2", 0.01)
    assert [parse_fraction(text) for text, _ in texts] == [value for _, value in texts]
    assert [write_fraction(k / 255) for k in (8, 7.5, 0.5)] == ["8/255", "7.5/255", "0.5/255"]


@pytest.mark.parametrize("text", ["1/0", "8/", "/255", "8//255", "8/255/2", "eight", "", "nan", "inf", "1e999", "0x8"])
def test_other_text_is_not_a_fraction(text):
    with pytest.raises(ValueError, match="is not a") as caught:
        parse_fraction(text)
    assert repr(text) in str(caught.value)


# -- the hash


def test_the_hash_depends_on_the_values_and_not_on_the_file(tmp_path):
    plain = Config(eps=8 / 255, eps_low=7 / 255, optim={"lr": 1, "decay_at": [60]})
    (tmp_path / "a.toml").write_text('eps = "8/255"\neps_low = 0.027450980392156862\n[optim]\ndecay_at=[60]\nlr=1.0')
    (tmp_path / "a.json").write_text('{"optim": {"lr": 1}, "eps_low": "7/255"}')
    assert {plain.hash(), read_config(tmp_path / "a.toml").hash(), read_config(tmp_path / "a.json").hash()} == {
        plain.hash()
    }


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"eps_low": "6/255"},
        {"mask": {"rule": "mean"}},
        {"optim": {"decay_at": []}},
        {"burn_in": {"epochs": 1}},
        {"init_from": "runs/a@20"},
        {"ema": 0.5},
        {"holdout": 0},
        {"holdout_seed": 0},
        {"awp": {"gamma": 0.01}},
        {"optim": {"name": "adamw"}},
        {"optim": {"clip": 1.0}},
        {"objective": {"smoothing": 0.1}},
        {"eps_ramp": 1},
        {"eps_from": "6/255"},
        {"mask": {"source": "layercam"}},
        {"mask": {"control": "flat"}},
        {"mask": {"mean": "8/255"}},
        {"mask": {"mean_over": "batch"}},
    ],
)
def test_every_field_is_part_of_the_hash(change):
    assert Config(**change).hash() != Config().hash()


OLD_RUNS = [p for p in sorted((ROOT / "results").glob("**/config.json")) if not read_config(p).init_from]


@pytest.mark.parametrize("run", OLD_RUNS, ids=lambda path: path.parent.name)
def test_old_runs_still_have_the_hash_in_their_log(run):
    """Fields added later are not in these configs and do not change the hash."""
    logged = re.search(r"config ([0-9a-f]{16})$", (run.parent / "log.txt").read_text(), flags=re.M)
    assert read_config(run).hash() == logged[1]


FORK_HASHES = {  # of runs whose init_from was shortened after training; from when mask.source was called mask.cam
    "100-part": "6ae33d44d5f430c9",
    "100-u6": "f6f696dac515db98",
    "100-u7": "e44747a5886ac335",
    "100-u7.5": "73db54fef11e5e10",
    "100-u9": "67f134a1c960c06b",
}


@pytest.mark.parametrize("name", FORK_HASHES)
def test_a_forked_run_keeps_its_hash(name):
    assert read_config(ROOT / "results" / "study" / "runs" / name / "config.json").hash() == FORK_HASHES[name]


RECIPE_HASHES = {  # from when mask.source was called mask.cam
    "shapes-at": "23ae3e351eae442f",
    "shapes-part": "b851a4587c34af5d",
    "shapes-vit-part": "d80514046741af2d",
    "cifar10-part": "43af12358bab384d",
    "cifar10-part-fast": "fb3e511e84f90f43",
    "cifar10-vit-part-t": "6441250bfd15bce7",
    "svhn-part-m": "768cd501a591926b",
    "tinyimagenet-part": "9aeee62979590bd7",
}


@pytest.mark.parametrize("name", RECIPE_HASHES)
def test_a_recipe_keeps_its_hash(name):
    assert RECIPES[name]().hash() == RECIPE_HASHES[name]


def test_an_old_config_with_cam_is_the_same_run():
    old = {"mask": {"rule": "mean", "cam": "layercam", "layer": "layer3"}}
    assert config_from(old, source="old") == Config(mask={"rule": "mean", "source": "layercam", "layer": "layer3"})
    assert "cam" not in flat(config_from(old, source="old"))


def test_fields_added_later_are_unused_by_default():
    plain = flat(Config())
    assert {name: plain[name] for name in ADDED} == ADDED


@pytest.mark.parametrize(
    ("old", "new", "hashed"),  # hashes that runs of that time carry in their checkpoints
    [
        (
            {"dataset": "folder:photos@64", "size": 64, "num_classes": 2, "classes": ["cat", "dog"]},
            {"dataset": "folder:photos", "size": 64, "num_classes": 2, "classes": ["cat", "dog"]},
            "79bc395a99ae4514",
        ),
        (
            {"dataset": "folder:a@b/c@16+skip-bad", "size": 16, "num_classes": 3, "classes": ["a", "b", "c"]},
            {"dataset": "folder:a@b/c", "size": 16, "skip_bad": True, "num_classes": 3, "classes": ["a", "b", "c"]},
            "be441c8c6723495e",
        ),
        (
            {"dataset": "tinyimagenet+skip-bad", "size": 64, "num_classes": 200},
            {"dataset": "tinyimagenet", "skip_bad": True},
            "1349afd01cd47abc",
        ),
        ({"dataset": "mine:load", "size": 48, "num_classes": 5}, {}, "b1a8f5b0e82dac71"),
    ],
)
def test_an_old_config_with_the_size_in_the_data_sets_name_keeps_its_hash(old, new, hashed):
    config = config_from(old, source="old")
    assert config == Config(**(new or old))
    assert config.hash() == hashed
    name, options = split_data_label(config.data_label)
    assert data_label(name, **options) == config.data_label
    assert (name, options.get("size", 0)) == (config.dataset, config.data_options["size"])


@pytest.mark.parametrize(
    ("options", "label"),
    [
        ({"size": 64}, "folder:a b@64"),
        ({"size": (64, 96), "channels": 1}, "folder:a b@64x96+grey"),
        ({"size": 64, "background": "#00ff00", "skip_bad": True}, "folder:a b@64+on-#00ff00+skip-bad"),
    ],
)
def test_the_label_of_a_folder_has_its_options(options, label):
    full = {"size": 0, "skip_bad": False, "background": "white", "channels": 3} | options
    assert data_label("folder:a b", **full) == label
    assert split_data_label(label) == ("folder:a b", full)


@pytest.mark.parametrize(("given", "size", "written"), [(64, 64, 64), ("64x96", (64, 96), "64x96"), ("64x64", 64, 64)])
def test_a_size_is_a_number_or_height_x_width(given, size, written):
    config = config_from({"size": given}, source="test")
    assert config.size == size
    assert json.loads(config.to_json())["size"] == written
    assert config_from(json.loads(config.to_json()), source="test") == config


# -- mistakes

MISTAKES = [
    ({"eps_from": "x"}, "eps_from.*'x' is not a number"),
    ({"eps_from": "6/255", "epochs": 3, "burn_in": {"epochs": 2}}, "eps_from needs .* two epochs after burn-in"),
    ({"mask": {"cam": "layercam", "source": "gradcam"}}, "mask.cam: no such field"),
    ({"eps": "-1/255"}, "eps: '-1/255' is out of range: choose a number from 0 to 1$"),
    ({"eps": 8}, "eps: 8 is out of range: choose a number from 0 to 1; 8 of 255 levels is 8/255$"),
    ({"burn_in": {"eps": "300"}}, "burn_in.eps: '300' is out of range: choose a number from 0 to 1$"),
    ({"eps": "1/0"}, "eps: '1/0' is not a number"),
    ({"eps": float("nan")}, "eps: .*nan"),
    ({"optim": {"lr": float("inf")}}, "optim.lr: .*inf"),
    ({"optim": {"lr": 0}}, "optim.lr: .*greater than 0, not 0"),
    ({"optim": {"lr": "fast"}}, "optim.lr: 'fast' is not a number$"),
    ({"normalize": "maybe"}, "normalize: 'maybe' is not true or false$"),
    ({"holdout_seed": "other"}, "holdout_seed: 'other' is not a whole number$"),
    ({"holdout_seed": -1}, "holdout_seed.*0, not -1"),
    ({"epochs": 0}, "epochs: .*1, not 0"),
    ({"epochs": 2.5}, "epochs: 2.5 is not a whole number$"),
    ({"attack": {"steps": 0}}, "attack.steps: .*1, not 0"),
    ({"epochs": 5, "burn_in": {"epochs": 6}}, "burn_in.epochs 6 .*epochs is 5"),
    ({"epochs": 5, "burn_in": {"epochs": 5}, "mask": {"rule": "mean"}}, "burn_in.epochs 5 .*epochs is 5"),
    ({"burn_in": {"eps": "x"}}, "burn_in.eps.*'x' is not a number"),
    ({"sead": 2}, r"sead: no such field; did you mean seed\?$"),
    ({"lr": 0.1}, r"lr: no such field; did you mean optim\.lr\?$"),
    ({"mask": {"rules": "mean"}}, r"mask.rules: no such field; did you mean mask\.rule\?$"),
    ({"mask.rule": "mean"}, r'mask.rule: no such field; write mask=\{"rule": ...\}, in TOML mask.rule without quotes$'),
    ({"zzz": 1}, "zzz: no such field$"),
    ({"mask": "mean"}, "mask: .*'mean'"),
    ({"schema_version": 2}, "schema_version 2 is not 1"),
    ({"dataset": "folder:x@32", "size": 64}, "dataset 'folder:x@32' has size 32, but size is 64"),
    ({"model": "a\nb"}, r"model: 'a\\nb' has control characters"),
    ({"mask": {"layer": "a\x1bb"}}, "mask.layer: .* has control characters"),
    (["eps"], "dictionary"),
]


@pytest.mark.parametrize(("values", "message"), MISTAKES, ids=[str(values) for values, _ in MISTAKES])
def test_a_mistake_is_an_error_of_one_line_with_field_and_value(values, message):
    with pytest.raises(UserError, match=message) as caught:
        config_from(values, source="my.toml")
    assert str(caught.value).startswith("my.toml: ")
    assert "\n" not in str(caught.value)
    assert "function" not in str(caught.value)


def test_all_mistakes_are_named_at_once():
    with pytest.raises(UserError, match=r"epochs: .*; batch_size: "):
        config_from({"epochs": 0, "batch_size": -3}, source="x")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.toml", b"eps = "),
        ("a.json", b"{"),
        ("a.toml", b"\xff\xfe"),
        ("a.json", b""),
        ("a.json", b"{}"),
        ("a.toml", b"# nothing"),
        ("a.json", b"[" * 10**5),
        ("a.toml", b"a = " + b"[" * 10**5),
    ],
    ids=["toml", "json", "bytes", "empty", "empty json", "empty toml", "deep json", "deep toml"],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=rf"cannot read config .*{name}"):
        read_config(tmp_path / name)


def test_the_message_about_a_nested_or_huge_value_is_short(tmp_path):
    (tmp_path / "a.toml").write_text(f"seed.{'.'.join('a' * 3000)} = 1\nepochs = 0x{'f' * 9000}\n")
    with pytest.raises(UserError, match=r"a\.toml: seed: .*; epochs: ") as caught:
        read_config(tmp_path / "a.toml")
    assert len(str(caught.value)) < 600


def test_eps_low_may_be_above_eps():
    assert Config(eps="4/255", eps_low="9/255", mask={"rule": "mean"}).eps == 4 / 255


# -- differences


def test_differing_fields_are_named_with_both_values():
    a = Config(eps_low="6/255", mask={"every": 1})
    b = Config(optim={"decay_at": [60, 70]})
    assert differing_fields(a, b) == [
        "eps_low: '6/255' != '7/255'",
        "mask.every: 1 != 0",
        "optim.decay_at: [60] != [60, 70]",
    ]
    assert differing_fields(a, a) == []
