"""When a kept result is reused, and that a damaged file never gives a number."""

import copy
import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from pixelpart import models
from pixelpart.errors import UserError
from pixelpart.evaluation import evaluate as evaluate_module
from pixelpart.evaluation.evaluate import evaluate
from pixelpart.evaluation.partial import agree
from pixelpart.evaluation.store import (
    ResultKey,
    hash_tensors,
    hash_weights,
    read_entries,
    read_labels,
    signature,
    with_checksum,
)
from pixelpart.runs import load_checkpoint, save_checkpoint
from pixelpart.version import code_version

KEY = ResultKey("name a", "weights", "images", (1.0, 2.0), {"kind": "pgd", "eps": 0.03, "settings": {"steps": 3}})


@pytest.fixture
def reused(pair, tmp_path):
    """Evaluates into one folder; returns for each attack whether a kept result was reused."""

    def call(model, *, data=pair, attacks=("natural", "pgd3"), eps=0.03, name="model", **settings):
        result = evaluate(model, data=data, attacks=attacks, eps=eps, out=tmp_path, name=name, **settings)
        return [result[attack].reused for attack in result]

    return call


# -- keys


@pytest.mark.parametrize(
    "change",
    [{"model": "name b"}, {"weights": "other"}, {"images": "other"}, {"version": KEY.version + 1},
     {"attack": {"kind": "pgd", "eps": 0.03, "settings": {"steps": 4}}}],
)  # fmt: skip
def test_every_field_but_the_probe_changes_the_digest(change):
    assert dataclasses.replace(KEY, **change).digest() != KEY.digest()
    assert dataclasses.replace(KEY, probe=(1.0, 2.0000001)).digest() == KEY.digest()


def test_weights_hash_sees_name_shape_type_value_and_buffers_outside_the_state_dict():
    base = torch.arange(6.0)
    variants = [("a", base), ("b", base), ("a", base.view(2, 3)), ("a", base.int()), ("a", base + 1)]
    assert len({hash_tensors([variant]) for variant in variants}) == len(variants)
    plain, scaled = (models.build("tiny-cnn", mean=mean, std=(0.5,) * 3) for mean in ((0.4,) * 3, (0.5,) * 3))
    assert hash_weights(plain) != hash_weights(scaled)


def test_signatures_agree_up_to_rounding_and_depend_on_every_class():
    logits = torch.randn(8, 10, generator=torch.Generator().manual_seed(0))
    base = signature(logits)
    assert agree(base, signature(logits * (1 + 1e-6)))
    for k in range(10):
        other = logits.clone()
        other[0, k] += 0.01
        assert not agree(base, signature(other))


# -- reuse


def test_the_same_call_reuses_all_results_and_touches_no_file(reused, net, tmp_path, monkeypatch):
    assert reused(net) == [False, False]
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in tmp_path.rglob("*.*")}
    monkeypatch.setattr(evaluate_module, "measure", None)
    assert reused(net, batch_size=5) == [True, True]
    assert before == {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in tmp_path.rglob("*.*")}


def test_any_changed_weight_or_buffer_is_another_model(reused, net):
    reused(net)
    assert reused(copy.deepcopy(net).train()) == [True, True]
    for tensor in (net.linear.bias, net.bn.running_mean):
        with torch.no_grad():
            tensor[0] += 1e-6
        assert reused(net) == [False, False]


@pytest.mark.parametrize(
    ("change", "expected"),
    [({"eps": 0.031}, [True, False]), ({"seed": 1}, [True, False]), ({"step_size": 1 / 255}, [True, False]),
     ({"search": "bf16"}, [True, False]), ({"attacks": ("pgd4", "pgd3x2")}, [False, False]),
     ({"images": 39}, [False, False]), ({"name": "other"}, [False, False])],
)  # fmt: skip
def test_changed_settings_are_measured_and_the_old_result_stays(reused, net, change, expected):
    reused(net)
    assert reused(net, **change) == expected
    assert reused(net) == [True, True]


def test_changed_pixels_or_labels_are_measured_but_not_another_dtype(reused, net, pair):
    x, y = (pair[0] * 255).byte(), pair[1]
    assert reused(net, data=(x, y)) == [False, False]
    assert reused(net, data=(x.float() / 255, y.int())) == [True, True]
    moved, relabelled = x.clone(), y.clone()
    moved[39, 2, 5, 5] ^= 1
    relabelled[39] = 1 - relabelled[39]
    assert reused(net, data=(moved, y)) == [False, False]
    assert reused(net, data=(x, relabelled)) == [False, False]


class Wrapper(nn.Module):
    """The same weights, another function."""

    def __init__(self, inner, after):
        super().__init__()
        self.inner, self.after = inner, after

    def forward(self, x):
        return self.after(self.inner(x))


def test_other_logits_under_the_same_name_and_weights_are_measured(reused, net):
    for after in (lambda z: z * 1.0, lambda z: z * 1.01, lambda z: z + torch.tensor([0, 0, 0, 0, 0.5])):
        assert reused(Wrapper(net, after)) == [False, False]
    assert reused(Wrapper(net, after)) == [True, True]


def test_probes_off_the_255_levels_show_a_model_that_rounds_its_input(reused, net, pair):
    data = (pair[0] * 255).byte(), pair[1]
    assert reused(net, data=data) == [False, False]
    net.register_forward_pre_hook(lambda module, inputs: ((inputs[0] * 255).round() / 255,))
    assert reused(net, data=data) == [False, False]


def test_the_same_attack_under_another_name_is_reused(net, pair, tmp_path):
    settings = {"data": pair, "images": 8, "out": tmp_path, "name": "net"}
    first = evaluate(net, attacks="apgd-ce-l2,pgd2", **settings)
    again = evaluate(net, attacks="apgd-ce-l2@0.5,pgd2@8/255,pgd2@4/255", **settings)
    assert [again[name].reused for name in again] == [True, True, False]
    entries = read_entries(tmp_path)
    assert [entry["attack"] for entry in entries] == [*first, *again]
    assert {entry["code"] for entry in entries} == {code_version()}


def test_a_model_without_a_name_is_not_kept(net, pair, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    evaluate(net, data=pair, attacks="natural")
    assert not list(tmp_path.iterdir())
    with pytest.raises(UserError, match=r"kept under a name; give name \(--name\)"):
        evaluate(net, data=pair, attacks="natural", out=tmp_path / "out")
    with pytest.raises(UserError, match=r"name 'a' needs out"):
        evaluate(net, data=pair, attacks="natural", name="a")


def test_a_run_needs_no_name(run, tmp_path):
    settings = {"attacks": "natural", "images": 4, "out": tmp_path / "out"}
    assert [evaluate(run, **settings)["natural"].reused for _ in range(2)] == [False, True]
    with pytest.raises(UserError, match="name 'a' is for a model that is not a run or checkpoint"):
        evaluate(run, **settings, name="a")


def test_a_newer_checkpoint_replaces_the_older_result(run):
    settings = {"attacks": ["natural"], "images": 8}
    evaluate(run, **settings)
    evaluate(run, checkpoint="last", **settings)
    best, last = (run.dir / "checkpoints" / f"{name}.safetensors" for name in ("best", "last"))
    tensors, facts = load_checkpoint(last)
    moved = {name: tensor + 0.01 if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}
    save_checkpoint(best, moved, facts | {"epoch": 9})
    assert not evaluate(run, **settings)["natural"].reused
    entries = read_entries(run.dir)
    assert sorted((entry["checkpoint"], entry["epoch"]) for entry in entries) == [("best", 9), ("last", 2)]
    flags = {path.stem for path in (run.dir / "eval").glob("*.npy") if not path.name.startswith("labels-")}
    assert flags == {entry["key"] for entry in entries}


def test_labels_are_kept_once_for_an_image_set_and_written_for_older_results(net, pair, tmp_path):
    settings = {"attacks": "natural,pgd2", "images": 8, "out": tmp_path, "name": "net"}
    for data in (pair, (pair[0].flip(0), pair[1].flip(0))):
        evaluate(net, data=data, **settings)
        entry = read_entries(tmp_path)[-1]
        np.testing.assert_array_equal(read_labels(tmp_path, entry), data[1][:8])
    kept = sorted((tmp_path / "eval").glob("labels-*.npy"))
    assert len(kept) == 2  # two image sets, four results
    assert read_labels(tmp_path, entry | {"pixels": "../x"}) is read_labels(tmp_path, entry | {"n": 9}) is None
    (tmp_path / "eval" / f"labels-{entry['pixels'][:16]}.npy").write_bytes(b"\x93NUMPY")
    assert read_labels(tmp_path, entry) is None
    for path in kept:
        path.unlink()
    assert evaluate(net, data=data, **settings)["pgd2"].reused
    np.testing.assert_array_equal(read_labels(tmp_path, entry), data[1][:8])


def test_best_and_last_that_are_one_model_are_measured_once_and_entered_twice(run):
    best, last = (run.dir / "checkpoints" / f"{name}.safetensors" for name in ("best", "last"))
    save_checkpoint(last, *load_checkpoint(best))
    first = evaluate(run, attacks=["natural"], images=8)["natural"]
    second = evaluate(run, attacks=["natural"], images=8, checkpoint="last")["natural"]
    assert second.reused
    assert second.accuracy == first.accuracy
    assert [entry["checkpoint"] for entry in read_entries(run.dir)] == ["best", "last"]


# -- damaged files


def rewrite(change):
    def spoil(path):
        path.write_bytes(change(path.read_bytes()))

    return spoil


SPOILT = {
    "cut": rewrite(lambda content: content[:-5]),
    "flipped": rewrite(lambda content: content[:-2] + bytes(1 - byte for byte in content[-2:])),
    "length": lambda path: np.save(path, np.load(path)[:-1]),
    "type": lambda path: np.save(path, np.load(path).astype(np.int8)),
    "pickle": lambda path: np.save(path, np.array([print], dtype=object), allow_pickle=True),
    "head": rewrite(lambda content: content.replace(b")", b"\t", 1)),
    "missing": Path.unlink,
}


@pytest.mark.parametrize("case", SPOILT)
def test_missing_or_corrupt_flags_are_measured_again(case, reused, net, tmp_path):
    reused(net)
    path = tmp_path / read_entries(tmp_path)[1]["flags"]
    intact = path.read_bytes()
    SPOILT[case](path)
    assert reused(net) == [True, False]
    assert path.read_bytes() == intact
    assert len(read_entries(tmp_path)) == 2


@pytest.mark.parametrize("checksum", ["kept", "none", "recomputed"])
def test_a_changed_entry_is_measured_again(checksum, reused, net, tmp_path):
    """Also where the checksum is absent, as in files of older versions, or fits: flags and fields must agree."""
    reused(net)
    path = tmp_path / "eval.json"
    intact = json.loads(path.read_text())
    fields = (
        intact["entries"][1].keys() - {"sum"} if checksum == "kept" else {"accuracy", "correct", "n", "key", "probe"}
    )
    for field in fields - {"seconds"}:
        content = copy.deepcopy(intact)
        entry = content["entries"][1]
        entry[field] = {"other": 1} if isinstance(entry[field], dict) else 7
        if checksum == "none":
            del entry["sum"]
        elif checksum == "recomputed":
            content["entries"][1] = with_checksum(entry)
        path.write_text(json.dumps(content))
        assert reused(net) == [True, False], field
        path.write_text(json.dumps(intact))


@pytest.mark.parametrize(
    "change",
    [{"accuracy": 7.0}, {"accuracy": "0.5"}, {"n": 10**400}, {"eps": float("nan")}, {"interval": None},
     {"warnings": 3}, {"settings": []}, {"attack": "\x1b]0;x\x07"}, {"split": None}],
)  # fmt: skip
def test_an_entry_that_is_no_result_is_left_out_with_and_without_a_checksum(change, reused, net, tmp_path):
    reused(net)
    path = tmp_path / "eval.json"
    content = json.loads(path.read_text())
    first, second = content["entries"]
    changed = with_checksum(second | change)
    for entry in (changed, {name: value for name, value in changed.items() if name != "sum"}):
        path.write_text(json.dumps(content | {"entries": [first, entry]}))
        assert read_entries(tmp_path) == [first]


def test_flags_are_never_read_from_outside_the_folder(reused, net, tmp_path):
    reused(net)
    path = tmp_path / "eval.json"
    content = json.loads(path.read_text())
    (tmp_path / "elsewhere.npy").write_bytes((tmp_path / content["entries"][0]["flags"]).read_bytes())
    content["entries"][0] = with_checksum(content["entries"][0] | {"key": "../elsewhere"})
    path.write_text(json.dumps(content))
    assert reused(net) == [False, True]
    assert (tmp_path / "elsewhere.npy").exists()


@pytest.mark.parametrize(
    "text",
    ["", '{"schema_version": 1, "entr', "[]", '{"schema_version": 1}', '{"schema_version": 1, "entries": [3]}',
     '{"schema_version": 2, "entries": []}', "\x00", "[" * 100_000],
)  # fmt: skip
def test_an_unreadable_eval_json_is_reported_and_not_changed(text, reused, net, tmp_path):
    path = tmp_path / "eval.json"
    path.write_text(text)
    with pytest.raises(UserError, match=r"eval\.json.*move it away to start afresh"):
        reused(net)
    assert path.read_text() == text


def test_entries_of_older_versions_are_readable_and_never_reused(reused, net, tmp_path):
    reused(net)
    path = tmp_path / "eval.json"
    content = json.loads(path.read_text())
    for entry in content["entries"]:
        old = {name: value for name, value in entry.items() if name not in ("warnings", "sum")}
        entry.clear()
        entry.update(with_checksum(old | {"doubts": ["old"], "asked": "0f" * 32, "key": "ab" * 16}))
    path.write_text(json.dumps(content))
    assert [entry["warnings"] for entry in read_entries(tmp_path)] == [["old"], ["old"]]
    assert reused(net) == [False, False]


def test_a_folder_that_cannot_be_locked_is_a_user_error(reused, net, tmp_path):
    (tmp_path / "eval" / ".lock").mkdir(parents=True)
    with pytest.raises(UserError, match=f"cannot write results to {tmp_path}: Is a directory"):
        reused(net, attacks=["natural"])
