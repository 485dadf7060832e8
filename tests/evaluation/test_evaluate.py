import json
import math

import numpy as np
import pytest
import torch
from torch import nn

import pixelpart as pp
from pixelpart.attacks import ATTACKS, SEARCHES, VERSIONS, Attack
from pixelpart.attacks.apgd import apgd_search
from pixelpart.attacks.square import square_search
from pixelpart.cli.main import main
from pixelpart.config import DEFAULT_ATTACKS, DEFAULT_EPS, DEFAULT_SEED, DEFAULT_STEP_SIZE
from pixelpart.errors import UserError
from pixelpart.evaluation.attack_spec import choices
from pixelpart.evaluation.evaluate import evaluate
from pixelpart.evaluation.statistics import wilson
from pixelpart.runtime.world import World
from searches import evaluated


class Returns(nn.Module):
    """A model that returns function(x)."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def always(k, classes=10):
    """Predicts class k everywhere; the gradient is zero."""
    logits = torch.full((classes,), -1.0)
    logits[k] = 3.0
    return Returns(lambda x: logits + 0 * x.flatten(1).sum(1, keepdim=True))


@pytest.fixture
def own(monkeypatch):
    """An attack added to the table: it moves every pixel up by the budget."""

    def up(model, x, y, budget, *, step_size, steps, start):
        return (x + budget).clamp(0, 1)

    monkeypatch.setitem(ATTACKS, "up", Attack(up))
    return up


def test_an_attack_added_to_the_table_can_be_evaluated(own, plane, pair):
    x, y = pair
    result = evaluate(plane, data=pair, attacks=["up3"], eps=0.1)
    right = [plane(images).argmax(1) == y for images in (x, x + 0.1)]
    assert result.flags["up3"].tolist() == (right[0] & right[1]).tolist()
    assert result["up3"].entry["settings"]["steps"] == 3
    assert "upK, upKxR" in choices()


def test_the_defaults_are_the_same_in_python_and_on_the_command_line(run, capsys):
    assert main(["evaluate", str(run.dir), "--images", "4", "--device", "cpu", "--json"]) == 0
    entries = json.loads(capsys.readouterr().out)
    result = evaluate(run, images=4, device="cpu")
    assert [{"model": str(run.dir)} | entry for entry in result.entries] == entries
    assert all(result[name].reused for name in result)
    assert tuple(result) == DEFAULT_ATTACKS
    assert (entries[1]["eps"], entries[1]["seed"]) == (DEFAULT_EPS, DEFAULT_SEED)
    assert entries[1]["settings"]["step_size"] == DEFAULT_STEP_SIZE


def test_the_accuracy_of_a_constant_model_is_the_share_of_its_class(pair):
    y = torch.arange(40) % 10
    result = evaluate(always(3), data=(pair[0], y), attacks="natural, pgd3x2", eps=0.1)
    for name in ("natural", "pgd3x2"):
        assert result[name].accuracy == 4 / 40
        assert result.flags[name].tolist() == (y == 3).tolist()
        assert result[name].interval == wilson(4, 40)


def test_entries_contain_the_settings(plane, pair):
    result = evaluate(plane, data=pair, attacks=["pgd2x3"], eps=0.02, step_size=0.01, seed=5)
    (entry,) = result.entries
    assert entry["attack"] == "pgd2x3"
    assert entry["settings"] == {"steps": 2, "step_size": 0.01, "restarts": 3}
    assert (entry["eps"], entry["seed"], entry["precision"], entry["n"]) == (0.02, 5, "fp32", 40)
    assert entry["accuracy"] == entry["correct"] / 40
    assert entry["flags"] is None
    assert json.loads(json.dumps(entry)) == entry


def test_images_uses_the_first_n(plane, pair):
    assert evaluate(plane, data=pair, images=7, attacks=["pgd3"]).flags["pgd3"].tolist() == (
        evaluate(plane, data=pair, attacks=["pgd3"]).flags["pgd3"][:7].tolist()
    )
    with pytest.raises(UserError, match="images 41 is more than the 40 available"):
        evaluate(plane, data=pair, images=41)


BAD_MODELS = {
    "NaN": (lambda x: x.flatten(1)[:, :5] * math.nan, "NaN"),
    "probabilities": (lambda x: x.flatten(1)[:, :5].softmax(1), "probabilities"),
    "percent": (lambda x: 100 * x.flatten(1)[:, :5].softmax(1), "probabilities"),
    "no classes": (lambda x: x.flatten(1).sum(1), r"\(8,\) for 8 images"),
    "a map": (lambda x: x, "for 8 images"),
    "a tuple": (lambda x: (x.flatten(1),), "tuple"),
    "labels": (lambda x: x.flatten(1)[:, :5].argmax(1), "int64"),
    "half": (lambda x: x.flatten(1)[:, :5].bfloat16(), "bfloat16"),
    "no gradient": (lambda x: x.detach().flatten(1)[:, :5] * 3, "no gradient"),
    "NaN gradient": (lambda x: (x - x).abs().sqrt().flatten(1)[:, :5] - x.flatten(1)[:, :5], "gradient .* NaN"),
    "one logit": (lambda x: x.flatten(1)[:, :1] * 3, "returns 1 logits .* labels up to 1: it must return at least 2"),
    "one that fails": (lambda x: {}["acts"], r"on images of shape .* fails with KeyError: 'acts' \(.*evaluate.py:"),
}


@pytest.mark.parametrize("case", BAD_MODELS)
def test_a_model_that_does_not_return_logits_is_refused(case, pair):
    function, message = BAD_MODELS[case]
    with pytest.raises(UserError, match=message):
        evaluate(Returns(function), data=pair)


def test_nan_at_a_later_image_is_an_error(pair):
    x, y = pair
    x = x.clone()
    x[33, 0, 0, 0] = 1.0
    late = Returns(lambda x: torch.where(x[:, 0, :1, 0] == 1, math.nan, x.flatten(1)[:, :5]))
    with pytest.raises(UserError, match="NaN"):
        evaluate(late, data=(x, y), attacks=["natural"])


def test_half_precision_weights_are_refused(plane, pair):
    with pytest.raises(UserError, match="weights are float16"):
        evaluate(plane.half(), data=pair)


BAD_DATA = {
    "above one": (lambda x, y: (x * 255, y), "images are in"),
    "NaN": (lambda x, y: (x * math.nan, y), "NaN"),
    "channels last": (lambda x, y: (x.permute(0, 2, 3, 1), y), "channels come before rows"),
    "none": (lambda x, y: (x[:0], y[:0]), "shape"),
    "fewer labels": (lambda x, y: (x, y[:-1]), "labels have shape"),
    "label too high": (lambda x, y: (x, y + 1), "returns 2 logits .* labels up to 2"),
    "negative label": (lambda x, y: (x, y - 1), "label -1 is out of range"),
    "float labels": (lambda x, y: (x, y.float()), "labels are float32"),
    "one thing": (lambda x, y: x[0, 0, 0, 0], "give the name of a data set or a pair"),
    "no such set": (lambda x, y: "imagenet", "unknown data set 'imagenet'; did you mean tinyimagenet"),
    "nothing": (lambda x, y: None, "a module has no data set of its own"),
}


@pytest.mark.parametrize("case", BAD_DATA)
def test_images_and_labels_are_checked(case, plane, pair):
    spoil, message = BAD_DATA[case]
    with pytest.raises(UserError, match=message):
        evaluate(plane, data=spoil(*pair))


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"step_size": 0}, "step_size"), ({"batch_size": 0}, "batch_size 0"), ({"images": 0}, "images 0"),
     ({"images": 2.5}, "images 2.5"), ({"attacks": []}, "no attacks requested"), ({"device": "gpu"}, "device 'gpu'"),
     ({"size": 8}, "--size and --skip-bad need --data folder:PATH")],
)  # fmt: skip
def test_other_settings_are_checked(settings, message, plane, pair):
    with pytest.raises(UserError, match=message):
        evaluate(plane, data=pair, **settings)


def test_a_model_in_train_mode_is_evaluated_in_eval_mode_and_restored(net, pair):
    expected = evaluate(net, data=pair, attacks=["natural", "pgd3"], eps=0.03).flags
    net.train()
    net.bn.eval()
    net.linear.bias.requires_grad_(False)
    state = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    torch.manual_seed(7)
    before = torch.get_rng_state()
    result = evaluate(net, data=pair, attacks=["natural", "pgd3"], eps=0.03)
    assert all(np.array_equal(expected[name], result.flags[name]) for name in expected)
    assert [module.training for module in (net, net.conv, net.bn)] == [True, True, False]
    assert [parameter.requires_grad for parameter in (net.conv.weight, net.linear.bias)] == [True, False]
    assert all(parameter.grad is None for parameter in net.parameters())
    assert all(tensor.equal(state[name]) for name, tensor in net.state_dict().items())
    assert torch.get_rng_state().equal(before)
    net.bn.train()
    assert np.array_equal(evaluate(net, data=pair, attacks=["natural"]).flags["natural"], expected["natural"])


def test_the_model_is_restored_after_an_exception(net, pair):
    def stop(*news):
        raise KeyboardInterrupt

    net.train()
    with pytest.raises(KeyboardInterrupt):
        evaluate(net, data=pair, progress=stop)
    assert net.training
    assert net.bn.training
    assert net.conv.weight.requires_grad


def test_a_run_is_evaluated_on_its_test_set_and_the_result_is_written(run):
    result = pp.evaluate(run, attacks=["natural", "pgd1"], images=16)
    content = json.loads((run.dir / "eval.json").read_text())
    assert content == {"schema_version": 1, "entries": result.entries}
    first = content["entries"][0]
    about = {"checkpoint": "best", "epoch": 1, "weights": "raw", "dataset": "shapes", "split": "test"}
    assert first.items() >= about.items()
    x, y = pp.data.load("shapes", split="test")
    right = run.model(x[:16].float() / 255).argmax(1) == y[:16]
    assert np.load(run.dir / first["flags"], allow_pickle=False).tolist() == right.tolist()


def test_a_missing_checkpoint_is_reported_with_those_that_exist(run):
    with pytest.raises(UserError, match="best, last"):
        evaluate(run, checkpoint="first")


@pytest.mark.parametrize("attack", ["pgd3x2", "apgd-ce"])
def test_processes_that_share_the_images_find_what_one_process_finds(net, pair, attack, monkeypatch, tmp_path):
    """Each attacks its share of the samples, and the shares do not overlap."""
    monkeypatch.setitem(SEARCHES, "apgd-ce", apgd_search(steps=5))
    alone = evaluate(net, data=pair, attacks=attack, eps=0.03, step_size=0.01)
    shares = []
    monkeypatch.setattr(World, "total", lambda world, tensor: (shares.append(tensor.clone()), tensor)[1])
    for rank in range(3):
        mine = {"world": World(rank, 3), "out": tmp_path / str(rank), "name": "net"}
        evaluate(net, data=pair, attacks=attack, eps=0.03, step_size=0.01, **mine)
    counts = torch.stack([flags for flags in shares if len(flags) == len(pair[0])]).sum(0)
    assert (counts > 0).tolist() == alone.flags[attack].tolist()
    assert counts.max() == 1
    assert [(tmp_path / str(rank) / "eval.json").exists() for rank in range(3)] == [True, False, False]


@pytest.mark.slow
def test_workers_give_the_flags_of_one_process(run, capsys):
    args = ["evaluate", str(run.dir), "--attacks", "natural,pgd3,mm3", "--images", "30", "--device", "cpu", "--quiet"]
    assert main([*args, "--workers", "2"]) == 0
    shared = json.loads((run.dir / "eval.json").read_text())["entries"]
    (run.dir / "eval.json").unlink()
    assert main(args) == 0
    alone = json.loads((run.dir / "eval.json").read_text())["entries"]
    assert [e["fingerprint"] for e in shared] == [e["fingerprint"] for e in alone]
    assert not list((run.dir / "eval").glob("*partial"))


class Stairs(nn.Module):
    """Rounds its input to 64 levels: the gradient is zero, though small changes move the logits."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        return self.net((x * 64).round() / 64 + 0 * x)


def test_autoattack_warns_if_square_breaks_what_gradients_do_not(plane, pair, monkeypatch):
    parts = {"apgd-ce": apgd_search(steps=5), "square": square_search(40)}
    monkeypatch.setitem(VERSIONS, "standard", parts)
    masked, open_ = (evaluate(m, data=pair, attacks="autoattack", eps=0.03) for m in (Stairs(plane), plane))
    assert any("Square, which uses no gradient, broke" in warning for warning in masked["autoattack"].warnings)
    assert not open_["autoattack"].warnings


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--engine", "theirs"], "unknown engine 'theirs'; choose from own, reference"),
        (["--search", "fp16"], "unknown search 'fp16'; did you mean bf16? choose from auto, bf16, fp32"),
        (["--attacks", "natural,apgd-ce", "--engine", "reference"], "not apgd-ce"),
        (["--attacks", "apgd-l1@0"], "apgd-l1's eps 0 is out of range: choose a number above 0"),
        (["--attacks", "autoatack"], "unknown attack 'autoatack'; did you mean autoattack"),
        (["--name", "a"], "name 'a' is for a model that is not a run or checkpoint"),
    ],
)
def test_a_mistake_on_the_command_line_is_one_line_and_exit_code_2(run, capsys, flags, said):
    assert main([*evaluated(run, attacks="natural"), *flags]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert said in shown.err
    assert shown.err.count("\n") == 1
    assert not (run.dir / "eval.json").exists()


@pytest.mark.usefixtures("short_searches")
def test_all_kinds_of_attacks_run_through_the_command_line(run, capsys):
    names = "natural,pgd2@16/255,mma2,adaptive-in2,autoattack,apgd-ce-l2@0.1"
    assert main(evaluated(run, "--quiet", attacks=names)) == 0
    entries = json.loads(capsys.readouterr().out)
    assert [entry["attack"] for entry in entries] == names.split(",")
    assert [entry["eps"] for entry in entries] == [0.0, 16 / 255, *[8 / 255] * 3, 0.1]
    assert all(entry["correct"] <= entries[0]["correct"] for entry in entries)
    kept = json.loads((run.dir / "eval.json").read_text())["entries"]
    assert [{"model": str(run.dir)} | entry for entry in kept] == entries
    assert not list((run.dir / "eval").glob("*.partial"))
