import copy
import functools
import importlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from pixelpart.attacks import ATTACKS, Attack, pgd
from pixelpart.errors import UserError
from pixelpart.evaluation import accuracy
from pixelpart.evaluation.evaluate import evaluate
from pixelpart.runs import load_checkpoint, save_checkpoint


class Wrapper(nn.Module):
    """Another model with the same weights: a function of the inner one's logits that no setting shows."""

    def __init__(self, inner, after):
        super().__init__()
        self.inner, self.table = inner, {"after": after}

    def forward(self, x):
        return self.table["after"](self.inner(x))


class Scaled(nn.Module):
    def __init__(self, inner, scale):
        super().__init__()
        self.inner, self.scale = inner, scale

    def forward(self, x):
        return self.inner(x) * self.scale


@pytest.fixture
def ask(pair, tmp_path):
    """Evaluates into one folder; says for each attack whether an earlier result was reused."""

    def ask(model, *, data=pair, attacks=("natural", "pgd3"), eps=0.03, **settings):
        result = evaluate(model, data=data, attacks=attacks, eps=eps, out=tmp_path, **settings)
        return [result[name].reused for name in result]

    return ask


def test_the_same_call_twice_reuses_all_and_leaves_the_files_alone(ask, net, tmp_path, monkeypatch):
    assert ask(net) == [False, False]
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in tmp_path.rglob("*.*")}
    monkeypatch.setattr(accuracy, "natural", None)
    monkeypatch.setattr(accuracy, "under_attack", None)
    assert ask(net) == [True, True]
    assert before == {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in tmp_path.rglob("*.*")}


def test_a_reused_result_equals_the_first(pair, net, tmp_path):
    first, second = (evaluate(net, data=pair, out=tmp_path, eps=0.03) for _ in range(2))
    assert first.entries == second.entries
    assert all(np.array_equal(first.flags[name], second.flags[name]) for name in first)


def test_an_equal_copy_and_another_batch_size_are_the_same_question(ask, net):
    ask(net)
    assert ask(copy.deepcopy(net).train(), batch_size=5) == [True, True]


def test_any_changed_weight_or_buffer_is_another_model(ask, net):
    ask(net)
    for tensor in (net.linear.bias, net.bn.running_mean):
        with torch.no_grad():
            tensor[0] += 1e-6
        assert ask(net) == [False, False]


def test_changed_settings_are_another_question(ask, net):
    ask(net)
    assert ask(net, eps=0.031) == [True, False]
    assert ask(net, seed=1) == [True, False]
    assert ask(net, step_size=1 / 255) == [True, False]
    assert ask(net, attacks=("natural", "pgd4", "pgd3x2")) == [True, False, False]
    assert ask(net, images=39) == [False, False]
    assert ask(net) == [True, True]


def test_changed_pixels_or_labels_are_another_question(ask, net, pair):
    x, y = pair
    ask(net)
    other = x.clone()
    other[39, 2, 5, 5] += 1e-4
    assert ask(net, data=(other, y)) == [False, False]
    other = y.clone()
    other[39] = 1 - other[39]
    assert ask(net, data=(x, other)) == [False, False]


def test_pixels_count_not_the_type_they_come_in(ask, net, pair):
    x, y = (pair[0] * 255).byte(), pair[1]
    assert ask(net, data=(x, y)) == [False, False]
    assert ask(net, data=(x.float() / 255, y.int())) == [True, True]


def test_a_wrapper_with_the_same_weights_is_another_model(ask, net):
    changes = {
        "as it is": lambda z: z * 1.0,
        "scaled": lambda z: z * 1.001,
        "rounded": lambda z: z.detach().round(decimals=1) + z * 0.0,
        "last class": lambda z: z + torch.tensor([0, 0, 0, 0, 0.01]),
        "swapped": lambda z: z.flip(1),
    }
    for after in changes.values():
        assert ask(Wrapper(net, after)) == [False, False]
    for after in changes.values():
        assert ask(Wrapper(net, after)) == [True, True]


def test_what_rounds_pixels_to_levels_is_another_model_though_the_images_are_at_levels_already(ask, net, pair):
    """By a hook, which is not in the key: only probes off the levels see it."""
    data = (pair[0] * 255).byte(), pair[1]
    assert ask(net, data=data) == [False, False]
    net.register_forward_pre_hook(lambda module, inputs: ((inputs[0] * 255).round() / 255,))
    assert ask(net, data=data) == [False, False]


def test_a_changed_helper_in_the_file_of_a_model_is_another_model(ask, net, tmp_path, monkeypatch):
    """It may change the gradient alone, which no probe sees."""
    monkeypatch.syspath_prepend(tmp_path)
    for body, expected in (("x", False), ("x", True), ("x.detach() + 0 * x", False)):
        own = "class Own(nn.Module):\n    def forward(self, x): return self.inner(before(x))"
        (tmp_path / "helped.py").write_text(f"from torch import nn\ndef before(x): return {body}\n{own}\n")
        sys.modules.pop("helped", None)
        model = importlib.import_module("helped").Own()
        model.inner = net
        assert ask(model) == [expected] * 2


def test_a_plain_setting_of_a_module_is_part_of_the_model(ask, net):
    ask(Scaled(net, 1.0))
    assert ask(Scaled(net, 1.0 + 1e-9)) == [False, False]
    assert ask(Scaled(net, 1.0)) == [True, True]


def test_changed_source_is_another_model(ask, net):
    space = {"Scaled": Scaled}
    for text, expected in (("x * 1.0", False), ("x * 1.0", True), ("x / 1.0", False)):
        exec(f"class Typed(Scaled):\n  def forward(self, x): return Scaled.forward(self, {text})", space)
        assert ask(space["Typed"](net, 1.0)) == [expected] * 2


def test_an_attack_whose_entry_in_the_table_changed_is_another_question(ask, net, monkeypatch):
    margin, dlr = (Attack(functools.partial(pgd, loss=loss)) for loss in ("margin", "dlr"))
    for attack, expected in ((margin, False), (margin, True), (dlr, False), (margin, True)):
        monkeypatch.setitem(ATTACKS, "own", attack)
        assert ask(net, attacks=["own3"]) == [expected]


def test_results_of_other_models_are_kept_beside(ask, net, plane, tmp_path):
    ask(net)
    ask(plane)
    assert len(json.loads((tmp_path / "eval.json").read_text())["entries"]) == 4
    assert ask(net) == [True, True]


def spoil_cut(path):
    path.write_bytes(path.read_bytes()[:-5])


def spoil_flip(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    content[-2] ^= 1
    path.write_bytes(content)


def spoil_length(path):
    np.save(path, np.load(path)[:-1])


def spoil_type(path):
    np.save(path, np.load(path).astype(np.int8))


def spoil_pickle(path):
    np.save(path, np.array([print], dtype=object), allow_pickle=True)


def spoil_head(path):
    path.write_bytes(path.read_bytes().replace(b")", b"\t", 1))


def spoil_empty(path):
    path.write_bytes(b"")


@pytest.mark.parametrize(
    "spoil",
    [spoil_cut, spoil_flip, spoil_length, spoil_type, spoil_pickle, spoil_head, spoil_empty, Path.unlink],
)
def test_flags_that_are_gone_or_spoilt_are_computed_again(spoil, ask, net, tmp_path):
    ask(net)
    entries = json.loads((tmp_path / "eval.json").read_text())["entries"]
    path = tmp_path / entries[1]["flags"]
    intact = path.read_bytes()
    spoil(path)
    assert ask(net) == [True, False]
    assert path.read_bytes() == intact
    assert len(json.loads((tmp_path / "eval.json").read_text())["entries"]) == 2


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("accuracy", 1.0),
        ("correct", 40),
        ("n", 41),
        ("key", 7),
        ("probe", None),
        ("probe", []),
        ("warnings", None),
        ("warnings", [3]),
    ],
)
def test_an_entry_that_contradicts_its_flags_is_computed_again(field, value, ask, net, tmp_path):
    ask(net)
    path = tmp_path / "eval.json"
    content = json.loads(path.read_text())
    content["entries"][0][field] = value
    path.write_text(json.dumps(content))
    assert ask(net) == [False, True]


def test_an_entry_with_any_other_figure_than_was_written_is_computed_again(ask, net, tmp_path):
    ask(net)
    path = tmp_path / "eval.json"
    intact = json.loads(path.read_text())
    for field, value in intact["entries"][1].items():
        if field in ("seconds", "sum"):
            continue
        content = copy.deepcopy(intact)
        content["entries"][1][field] = {"other": 1} if isinstance(value, dict) else "other"
        path.write_text(json.dumps(content))
        assert ask(net) == [True, False], field
    entries = json.loads(path.read_text())["entries"]
    assert [{**entry, "seconds": 0, "sum": ""} for entry in entries] == [
        {**entry, "seconds": 0, "sum": ""} for entry in intact["entries"]
    ]


def test_entries_of_an_older_version_without_a_sum_are_reused(ask, net, tmp_path):
    ask(net)
    path = tmp_path / "eval.json"
    content = json.loads(path.read_text())
    for entry in content["entries"]:
        del entry["sum"]
    path.write_text(json.dumps(content))
    assert ask(net) == [True, True]


def test_no_flags_are_read_from_outside_the_folder(ask, net, tmp_path):
    ask(net)
    path = tmp_path / "eval.json"
    content = json.loads(path.read_text())
    entry = content["entries"][0]
    (tmp_path / "elsewhere.npy").write_bytes((tmp_path / entry["flags"]).read_bytes())
    entry["key"] = "../elsewhere"
    path.write_text(json.dumps(content))
    assert ask(net) == [False, True]
    assert (tmp_path / "elsewhere.npy").exists()


@pytest.mark.parametrize(
    "text",
    ["", "{", '{"schema_version": 1, "entr', "[]", '{"schema_version": 1}', '{"schema_version": 1, "entries": [3]}',
     '{"schema_version": 2, "entries": []}', "\x00", "[" * 100_000],
)  # fmt: skip
def test_an_eval_file_that_cannot_be_read_is_named_and_left_alone(text, ask, net, tmp_path):
    path = tmp_path / "eval.json"
    path.write_text(text)
    with pytest.raises(UserError, match=r"eval\.json.*move it away to start afresh"):
        ask(net)
    assert path.read_text() == text


def test_a_folder_that_cannot_be_locked_is_named(ask, net, tmp_path):
    (tmp_path / "eval" / ".lock").mkdir(parents=True)
    with pytest.raises(UserError, match=f"cannot write results to {tmp_path}: Is a directory"):
        ask(net, attacks=["natural"])


def test_a_newer_checkpoint_takes_the_older_one_s_place(run):
    settings = {"attacks": ["natural"], "images": 8}
    evaluate(run, **settings)
    evaluate(run, checkpoint="last", **settings)
    best, last = (run.dir / "checkpoints" / f"{name}.safetensors" for name in ("best", "last"))
    tensors, facts = load_checkpoint(last)
    save_checkpoint(best, {name: tensor + 0.01 for name, tensor in tensors.items()}, facts | {"epoch": 9})
    assert not evaluate(run, **settings)["natural"].reused
    entries = json.loads((run.dir / "eval.json").read_text())["entries"]
    assert sorted((entry["checkpoint"], entry["epoch"]) for entry in entries) == [("best", 9), ("last", 2)]
    assert {path.stem for path in (run.dir / "eval").glob("*.npy")} == {entry["key"] for entry in entries}


def test_best_and_last_that_are_one_model_are_computed_once_and_entered_twice(run):
    best, last = (run.dir / "checkpoints" / f"{name}.safetensors" for name in ("best", "last"))
    tensors, facts = load_checkpoint(best)
    save_checkpoint(last, tensors, facts)
    first = evaluate(run, attacks=["natural"], images=8)["natural"]
    second = evaluate(run, attacks=["natural"], images=8, checkpoint="last")["natural"]
    assert second.reused
    assert second.accuracy == first.accuracy
    entries = json.loads((run.dir / "eval.json").read_text())["entries"]
    assert [entry["checkpoint"] for entry in entries] == ["best", "last"]
    assert evaluate(run, attacks=["natural"], images=8)["natural"].entry["checkpoint"] == "best"
