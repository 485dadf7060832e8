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
from pixelpart.evaluation.attack_spec import parse_attack
from pixelpart.evaluation.evaluate import evaluate
from pixelpart.evaluation.statistics import wilson
from pixelpart.runtime.world import World


class Returns(nn.Module):
    """Whatever a function makes of the images."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def always(k, classes=10):
    """Says class k to everything; the gradient exists and is zero."""
    logits = torch.full((classes,), -1.0)
    logits[k] = 3.0
    return Returns(lambda x: logits + 0 * x.flatten(1).sum(1, keepdim=True))


def test_attack_names_are_taken_apart():
    attack = parse_attack("pgd20x5")
    assert (attack.kind, attack.steps, attack.restarts) == ("pgd", 20, 5)
    assert (parse_attack("pgd7").steps, parse_attack("pgd7").restarts) == (7, 1)
    assert parse_attack("natural").kind == "natural"
    assert parse_attack("mma20x2") == type(attack)("mma20x2", "mma", 20, 2)


@pytest.fixture
def own(monkeypatch):
    """An attack that is an entry in the table and nothing more: it moves every pixel up by the budget."""

    def up(model, x, y, budget, *, step_size, steps, start):
        return (x + budget).clamp(0, 1)

    monkeypatch.setitem(ATTACKS, "up", Attack(up))
    return up


def test_an_attack_is_known_by_its_entry_in_the_table(own, plane, pair):
    x, y = pair
    result = evaluate(plane, data=pair, attacks=["up3"], eps=0.1)
    right = [plane(images).argmax(1) == y for images in (x, x + 0.1)]
    assert result.flags["up3"].tolist() == (right[0] & right[1]).tolist()
    assert result["up3"].entry["settings"]["steps"] == 3
    with pytest.raises(UserError, match="upK, upKxR"):
        parse_attack("down3")


def test_mma_breaks_at_least_what_its_first_target_breaks(net, pair):
    result = evaluate(net, data=pair, attacks="natural,mma5,mma5x3", eps=0.03, step_size=0.01)
    assert 0 < result["mma5"].correct < result["natural"].correct
    assert not (result.flags["mma5x3"] & ~result.flags["mma5"]).any()


def test_mma_goes_through_the_command_line(run, capsys):
    assert main(["evaluate", str(run.dir), "--attacks", "mma20", "--images", "8", "--device", "cpu", "--json"]) == 0
    (entry,) = json.loads(capsys.readouterr().out)
    assert (entry["attack"], entry["n"]) == ("mma20", 8)
    assert entry["settings"] == {"steps": 20, "step_size": 2 / 255, "restarts": 1}


def test_the_defaults_are_the_same_in_python_and_on_the_command_line(run, capsys):
    assert main(["evaluate", str(run.dir), "--images", "4", "--device", "cpu", "--json"]) == 0
    entries = json.loads(capsys.readouterr().out)
    result = evaluate(run, images=4, device="cpu")
    assert result.entries == entries
    assert all(result[name].reused for name in result)
    assert tuple(result) == DEFAULT_ATTACKS
    assert (entries[1]["eps"], entries[1]["seed"]) == (DEFAULT_EPS, DEFAULT_SEED)
    assert entries[1]["settings"]["step_size"] == DEFAULT_STEP_SIZE


@pytest.mark.parametrize(
    "name", ["pgd", "pgd0", "pgd20x0", "pgd20x", "pgd-1", "PGD20", "fgsm", "", "pgd2 ", "pgd٣", "mma"]
)
def test_an_unknown_attack_is_named_with_the_choices(name, plane, pair):
    choices = r"natural, pgdK, pgdKxR, mmaK, mmaKxR .*, apgd-ce, .*, autoattack-plus"
    with pytest.raises(UserError, match=rf"unknown attack .* choose from {choices}"):
        evaluate(plane, data=pair, attacks=[name])


def test_a_constant_model_gets_exactly_its_class_share(pair):
    y = torch.arange(40) % 10
    result = evaluate(always(3), data=(pair[0], y), attacks="natural, pgd3x2", eps=0.1)
    for name in ("natural", "pgd3x2"):
        assert result[name].accuracy == 4 / 40
        assert result.flags[name].tolist() == (y == 3).tolist()
        assert result[name].interval == wilson(4, 40)


def test_robust_accuracy_of_a_plane_is_known_beforehand(plane, pair):
    x, y = pair
    score = plane(x)[:, 0] * torch.where(y == 0, 1, -1)
    result = evaluate(plane, data=pair, attacks=["natural", "pgd8"], eps=0.02, step_size=0.01)
    assert result["natural"].correct == int((score > 0).sum())
    assert result["pgd8"].correct == int((score > 0.02 * plane.linear.weight.abs().sum()).sum())
    assert 0 < result["pgd8"].correct < result["natural"].correct


def test_entries_say_what_was_done(plane, pair):
    result = evaluate(plane, data=pair, attacks=["pgd2x3"], eps=0.02, step_size=0.01, seed=5)
    (entry,) = result.entries
    assert entry["attack"] == "pgd2x3"
    assert entry["settings"] == {"steps": 2, "step_size": 0.01, "restarts": 3}
    assert (entry["eps"], entry["seed"], entry["precision"], entry["n"]) == (0.02, 5, "fp32", 40)
    assert entry["accuracy"] == entry["correct"] / 40
    assert entry["flags"] is None
    assert json.loads(json.dumps(entry)) == entry


def test_progress_is_told_of_every_attack_to_the_end(plane, pair):
    told = []
    names = ["natural", "pgd2"]
    result = evaluate(plane, data=pair, attacks=names, batch_size=16, progress=lambda *news: told.append(news))
    assert list(result) == names
    for name in result:
        news = [item for item in told if item[0] == name]
        assert news[-1] == (name, 40, 40, result[name].accuracy)
        assert all(total == 40 for _, _, total, _ in news)


def test_images_takes_the_first_so_many(plane, pair):
    assert evaluate(plane, data=pair, images=7, attacks=["pgd3"]).flags["pgd3"].tolist() == (
        evaluate(plane, data=pair, attacks=["pgd3"]).flags["pgd3"][:7].tolist()
    )
    with pytest.raises(UserError, match="images 41 is more than the 40"):
        evaluate(plane, data=pair, images=41)


@pytest.mark.parametrize("eps", [torch.full((1, 1, 6, 6), 0.03), {"high": 0.03}, "8/255", None, True, [0.03]])
def test_eps_is_one_number_never_a_budget(eps, plane, pair):
    with pytest.raises(UserError, match=r"eps is a .* one number for all pixels"):
        evaluate(plane, data=pair, eps=eps)


@pytest.mark.parametrize("eps", [0, -0.1, 1.01, 8, math.nan, math.inf])
def test_eps_of_zero_or_above_one_gives_no_number(eps, plane, pair):
    with pytest.raises(UserError, match="is not above 0 and at most 1"):
        evaluate(plane, data=pair, eps=eps)


BAD_MODELS = {
    "NaN": (lambda x: x.flatten(1)[:, :5] * math.nan, "NaN"),
    "infinite": (lambda x: x.flatten(1)[:, :5] / 0, "infinite"),
    "probabilities": (lambda x: x.flatten(1)[:, :5].softmax(1), "probabilities"),
    "percent": (lambda x: 100 * x.flatten(1)[:, :5].softmax(1), "probabilities"),
    "one-hot": (lambda x: nn.functional.one_hot(x.flatten(1)[:, :5].argmax(1), 5).float(), "probabilities"),
    "no classes": (lambda x: x.flatten(1).sum(1), r"\(8,\) for 8 images"),
    "another batch": (lambda x: x.flatten(1)[:1, :5], r"\(1, 5\) for 8 images"),
    "a map": (lambda x: x, "for 8 images"),
    "a tuple": (lambda x: (x.flatten(1),), "tuple"),
    "labels": (lambda x: x.flatten(1)[:, :5].argmax(1), "int64"),
    "half": (lambda x: x.flatten(1)[:, :5].bfloat16(), "bfloat16"),
    "no gradient": (lambda x: x.detach().flatten(1)[:, :5] * 3, "no gradient"),
    "NaN gradient": (lambda x: (x - x).abs().sqrt().flatten(1)[:, :5] - x.flatten(1)[:, :5], "gradient .* NaN"),
    "one that fails": (lambda x: x @ torch.zeros(5, 5), "fails on images of shape"),
}


@pytest.mark.parametrize("case", BAD_MODELS)
def test_a_model_that_returns_no_logits_gives_no_number(case, pair):
    function, message = BAD_MODELS[case]
    with pytest.raises(UserError, match=message):
        evaluate(Returns(function), data=pair)


def test_one_image_with_logits_above_zero_is_no_probability(pair):
    result = evaluate(Returns(lambda x: x.flatten(1)[:, :5]), data=pair, images=1, attacks=["natural"])
    assert result["natural"].n == 1


def test_nan_that_comes_late_gives_no_number_either(pair):
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
    "above one": (lambda x, y: (x * 255, y), "images lie in"),
    "below zero": (lambda x, y: (x - 0.5, y), "images lie in"),
    "NaN": (lambda x, y: (x * math.nan, y), "NaN"),
    "channels last": (lambda x, y: (x.permute(0, 2, 3, 1), y), "channels come before rows"),
    "flat": (lambda x, y: (x.flatten(1), y), "shape"),
    "none": (lambda x, y: (x[:0], y[:0]), "shape"),
    "fewer labels": (lambda x, y: (x, y[:-1]), "labels have shape"),
    "label too high": (lambda x, y: (x, y + 1), "label 2 is out of range"),
    "label below 0": (lambda x, y: (x, y - 1), "label -1 is out of range"),
    "float labels": (lambda x, y: (x, y.float()), "labels are float32"),
    "one thing": (lambda x, y: x[0, 0, 0, 0], "give the name of a set or a pair"),
    "no such set": (lambda x, y: "imagenet", "unknown data set 'imagenet'; choose from"),
    "nothing": (lambda x, y: None, "a module brings no test images"),
}


@pytest.mark.parametrize("case", BAD_DATA)
def test_images_and_labels_are_checked(case, plane, pair):
    spoil, message = BAD_DATA[case]
    with pytest.raises(UserError, match=message):
        evaluate(plane, data=spoil(*pair))


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"step_size": 0}, "step_size"), ({"batch_size": 0}, "batch_size 0"), ({"images": 0}, "images 0"),
     ({"images": 2.5}, "images 2.5"), ({"attacks": []}, "no attacks"), ({"device": "gpu"}, "device 'gpu'")],
)  # fmt: skip
def test_other_settings_are_checked(settings, message, plane, pair):
    with pytest.raises(UserError, match=message):
        evaluate(plane, data=pair, **settings)


def test_neither_run_nor_module_is_refused(pair):
    with pytest.raises(UserError, match="cannot evaluate a function"):
        evaluate(lambda x: x, data=pair)


def test_a_model_in_train_mode_is_judged_in_eval_mode_and_left_as_it_was(net, pair):
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


def test_the_model_is_left_as_it_was_after_an_exception(net, pair):
    def stop(*news):
        raise KeyboardInterrupt

    net.train()
    with pytest.raises(KeyboardInterrupt):
        evaluate(net, data=pair, progress=stop)
    assert net.training
    assert net.bn.training
    assert net.conv.weight.requires_grad


def test_a_bare_module_leaves_nothing_on_disk(plane, pair, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    evaluate(plane, data=pair, attacks=["natural"])
    assert not list(tmp_path.iterdir())


def test_a_run_is_evaluated_on_its_test_set_and_written_down(run):
    result = pp.evaluate(run, attacks=["natural", "pgd1"], images=16)
    content = json.loads((run.dir / "eval.json").read_text())
    assert content == {"schema_version": 1, "entries": result.entries}
    first = content["entries"][0]
    about = {"checkpoint": "best", "epoch": 1, "weights": "raw", "dataset": "shapes", "split": "test"}
    assert first.items() >= about.items()
    x, y = pp.data.load("shapes", split="test")
    right = run.model(x[:16].float() / 255).argmax(1) == y[:16]
    assert np.load(run.dir / first["flags"], allow_pickle=False).tolist() == right.tolist()


def test_a_run_without_that_checkpoint_says_which_there_are(run):
    with pytest.raises(UserError, match="best, last"):
        evaluate(run, checkpoint="first")


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(UserError, match="not a run folder"):
        evaluate(str(tmp_path))


@pytest.mark.parametrize("attack", ["pgd3x2", "apgd-ce"])
def test_processes_that_share_the_images_find_what_one_finds(net, pair, attack, monkeypatch, tmp_path):
    """Each attacks its share; what is put together is what a single process finds."""
    monkeypatch.setitem(SEARCHES, "apgd-ce", apgd_search(steps=5))
    alone = evaluate(net, data=pair, attacks=attack, eps=0.03, step_size=0.01)
    shares = []
    monkeypatch.setattr(World, "any_of", lambda world, flags: (shares.append(flags.clone()), flags)[1])
    for rank in range(3):
        mine = {"world": World(rank, 3), "out": tmp_path / str(rank)}
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
    assert not list((run.dir / "eval").glob("*journal"))


class Stairs(nn.Module):
    """A model behind coarse levels of brightness: no gradient comes through, though small changes move its logits."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        return self.net((x * 64).round() / 64 + 0 * x)


def test_an_autoattack_in_which_square_does_better_than_gradients_is_in_doubt(plane, pair, monkeypatch):
    parts = {"apgd-ce": apgd_search(steps=5), "square": square_search(40)}
    monkeypatch.setitem(VERSIONS, "standard", parts)
    masked, open_ = (evaluate(m, data=pair, attacks="autoattack", eps=0.03) for m in (Stairs(plane), plane))
    assert any("Square, which uses no gradient, broke" in warning for warning in masked["autoattack"].warnings)
    assert not open_["autoattack"].warnings
