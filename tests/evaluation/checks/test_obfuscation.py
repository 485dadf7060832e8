"""A sound model passes; every way to hide a gradient that is made here is detected."""

import copy
import dataclasses
import json
import os

import numpy as np
import pytest
import torch

from checkpoints import facts_of
from corners import MASKED, SET, Hidden, N, backwards, trained
from pixelpart import data, models
from pixelpart.config import Config
from pixelpart.errors import UserError
from pixelpart.evaluation import store
from pixelpart.evaluation.checks import obfuscation, sanity
from pixelpart.evaluation.checks.behaviours import EXPECTED, SKIPPED, SUSPICIOUS
from pixelpart.evaluation.checks.obfuscation import check
from pixelpart.evaluation.images import ImageSet, checked_logits
from pixelpart.files import atomic_write
from pixelpart.runs import Run, save_checkpoint

pytestmark = pytest.mark.usefixtures("corner_set")
NAMES = ["one step", "black box", "unbounded", "random", "growing eps"]


@pytest.fixture
def honest():
    return trained(7)


def verdicts(report):
    return [behaviour.verdict for behaviour in report.behaviours]


# -- sound models


def test_a_robust_model_passes_with_a_surrogate_trained_on_the_users_own_set(honest, monkeypatch):
    monkeypatch.setitem(data.USER_SETS, "mine:corners", SET)
    report = check(honest, data="mine:corners")
    assert [behaviour.name for behaviour in report.behaviours] == NAMES
    assert verdicts(report) == [EXPECTED] * 5
    assert (report.warnings, report.verdict) == ([], EXPECTED)
    under_pgd = f"{report['one step'].numbers['pgd20']:.2%}"
    assert f"verdict: no sign of hidden gradients; accuracy under PGD-20 at 8/255 is {under_pgd}" in str(report)
    step, box = report["one step"].numbers, report["black box"].numbers
    assert 0 < step["pgd20"] <= step["fgsm"] < report.facts["natural"]  # PGD breaks some images
    assert box["transfer"] >= box["pgd20"] == step["pgd20"]
    assert min(box["surrogate_natural"], report.facts["natural"]) > 0.9
    assert box["surrogate"] == "a tiny-cnn trained for it"
    assert list(report["growing eps"].numbers["accuracy"]) == ["8/255", "16/255", "32/255", "64/255", "128/255"]


def tilted(plane):
    other = copy.deepcopy(plane)
    with torch.no_grad():
        other.linear.weight += 0.3 * torch.randn(other.linear.weight.shape, generator=torch.Generator().manual_seed(9))
    return other


def test_the_numbers_of_a_linear_model_are_the_known_ones(plane, pair):
    x, y = pair
    score = plane(x)[:, 0] * torch.where(y == 0, 1, -1)
    robust = int((score > 0.02 * plane.linear.weight.abs().sum()).sum()) / 40
    report = check(plane, data=pair, eps=0.02, step_size=0.005)
    shares = dict.fromkeys(("fgsm", "averaged", "pgd20"), robust)
    assert report["one step"].numbers == shares | {"fgsm_only": 0, "averaged_only": 0}
    assert report["unbounded"].numbers["unbounded"] == report["random"].numbers["random_only"] == 0
    shares = report["growing eps"].numbers["accuracy"]
    assert list(shares) == ["0.02", "0.04", "0.08", "0.16", "0.32", "0.64"]
    assert shares["0.02"] == robust
    assert verdicts(report) == [EXPECTED, SKIPPED, EXPECTED, EXPECTED, EXPECTED]
    assert "no training set to train a surrogate on; give another model" in report["black box"].found
    assert report.verdict == EXPECTED
    other = check(plane, data=pair, eps=0.02, step_size=0.005, surrogate=tilted(plane))["black box"]
    assert (other.verdict, other.numbers["surrogate"]) == (EXPECTED, "a module")


# -- masked gradients


@pytest.mark.parametrize("case", MASKED)
def test_a_hidden_gradient_is_detected(case, honest):
    settings, shown = MASKED[case]
    report = check(Hidden(honest, **settings), data="corners", surrogate=trained(3))
    assert report.facts["natural"] > 0.9
    suspicious = {behaviour.name for behaviour in report.behaviours if behaviour.verdict == SUSPICIOUS}
    assert shown <= suspicious
    assert report.verdict == SUSPICIOUS
    assert f"verdict: suspicious: {', '.join(name for name in NAMES if name in suspicious)}" in str(report)
    if case == "random":
        assert sanity.RANDOM in report.warnings
    if case in ("saturated", "quantised"):
        assert any("gradient of the cross-entropy is zero" in warning for warning in report.warnings)


def test_a_gradient_hidden_for_one_class_is_detected(honest):
    some = Hidden(honest, lambda x: torch.where((honest(x).argmax(1) == 2)[:, None, None, None], backwards(x), x))
    report = check(some, data="corners", surrogate=trained(3))
    assert report["unbounded"].verdict == report.verdict == SUSPICIOUS
    assert report["unbounded"].numbers["unbounded"] <= 0.25


# -- surrogates


@pytest.fixture
def make_run(tmp_path):
    def write(model, dataset="corners", name="run"):
        config = Config(dataset=dataset, model="tiny-cnn")
        atomic_write(tmp_path / name / "config.json", config.to_json())
        state = {f"model.{key}": value for key, value in model.state_dict().items()}
        save_checkpoint(tmp_path / name / "checkpoints" / "best.safetensors", state, facts_of(config))
        return Run(tmp_path / name)

    return write


def test_a_large_training_set_skips_the_black_box(honest, monkeypatch):
    monkeypatch.setitem(data.SETS, "corners", dataclasses.replace(SET, counts={"train": 50_000, "test": N}))
    report = check(honest, data="corners", images=8)
    assert report["black box"].found.startswith("corners has 50000 training images, too many")
    assert report["black box"].verdict == SKIPPED


def test_an_unsuitable_surrogate_is_rejected(honest, make_run):
    settings = {"data": "corners", "images": 8}
    with pytest.raises(UserError, match="the surrogate is the model itself"):
        check(make_run(honest), images=8, surrogate=make_run(honest, name="twin"))
    with pytest.raises(UserError, match="the surrogate is for shapes, the model for corners"):
        check(honest, **settings, surrogate=make_run(models.build("tiny-cnn"), "shapes", "shapes"))
    with pytest.raises(UserError, match="the surrogate has 7 classes, the model 4"):
        check(honest, **settings, surrogate=models.build("tiny-cnn", num_classes=7))
    with pytest.raises(UserError, match="no gradient"):
        check(honest, **settings, surrogate=Hidden(trained(3), lambda x: x.detach()))


def test_a_function_for_a_surrogate_gets_the_number_of_classes(honest, tmp_path, monkeypatch):
    (tmp_path / "other_network.py").write_text(
        "from pixelpart import models\n"
        "def build(num_classes):\n"
        "    return models.build('tiny-cnn', num_classes=num_classes)"
    )
    monkeypatch.syspath_prepend(tmp_path)
    report = check(honest, data="corners", images=8, surrogate="other_network:build")
    assert report["black box"].numbers["surrogate"] == "other_network:build"


# -- the report


def test_the_report_of_a_run_is_written_to_its_folder(honest, make_run):
    run, other = make_run(honest), make_run(trained(3), name="other")
    report = check(run, images=16, surrogate=other.dir)
    written = json.loads((run.dir / "check.json").read_text())
    assert written == json.loads(json.dumps(report.as_json()))
    assert report.kept == run.dir / "check.json"
    assert (written["schema_version"], written["verdict"], written["n"]) == (1, EXPECTED, 16)
    assert (written["checkpoint"], written["dataset"], written["eps"]) == ("best", "corners", 8 / 255)
    assert [behaviour["name"] for behaviour in written["behaviours"]] == NAMES
    assert report["black box"].numbers["surrogate"] == str(other.dir)
    assert not (other.dir / "check.json").exists()


def test_warnings_of_autoattack_in_eval_json_are_in_the_report(plane, pair, tmp_path):
    settings = {"data": pair, "eps": 0.02, "step_size": 0.01, "out": tmp_path}
    assert check(plane, **settings).verdict == EXPECTED
    flags = np.zeros(40, bool)
    probe = store.signature(checked_logits(plane, ImageSet(*pair, torch.device("cpu"))))
    facts = {
        "checkpoint": None, "dataset": "given", "split": "given", "accuracy": 0.0, "correct": 0, "n": 40,
        "settings": {}, "seed": 0, "precision": "fp32", "fingerprint": store.fingerprint(flags),
    }  # fmt: skip
    for number, (attack, eps, its_probe, warnings) in enumerate(
        (
            ("autoattack@0.02", 0.02, probe, ["a warning", "a warning"]),
            ("autoattack", 0.04, probe, ["of another eps"]),
            ("autoattack", 0.02, [1.0, *probe[1:]], ["of another model"]),
            ("pgd20", 0.02, probe, ["of another attack"]),
        )
    ):
        key = {"key": f"{number:032x}", "subject": str(number), "attack": attack, "eps": eps, "probe": its_probe}
        store.add_entry(tmp_path, facts | key | {"warnings": warnings}, flags)
    report = check(plane, **settings)
    assert (report.warnings, report.verdict) == (["a warning"], SUSPICIOUS)


def test_the_text_has_a_line_per_behaviour_then_warnings_and_the_verdict(plane, pair, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    report = check(plane, data=pair, eps=0.02, step_size=0.0005)
    lines = str(report).splitlines()
    assert [line[:11].strip() for line in lines[:5]] == NAMES
    assert lines[5].startswith("* steps * step_size < eps")
    assert lines[6] == "verdict: suspicious: one step, warnings; n = 40"
    assert report.kept is None
    assert list(tmp_path.iterdir()) == []


def test_the_first_1000_images_are_used_by_default(plane, pair, tmp_path, monkeypatch):
    monkeypatch.setattr(obfuscation, "DEFAULT_IMAGES", 10)
    x, _ = pair
    y = plane(x).argmax(1)
    assert check(plane, data=(x, y)).facts["n"] == 10
    assert check(plane, data=(x, y), images=15).facts["n"] == 15
    with pytest.raises(UserError, match="images 0"):
        check(plane, data=(x, y), images=0)
    with pytest.raises(UserError, match="classifies none of 10 images correctly"):
        check(plane, data=(x, 1 - y))
    monkeypatch.setattr(os, "access", lambda path, mode: (path, mode) != (tmp_path, os.W_OK))
    with pytest.raises(UserError, match="cannot write the report to"):
        check(plane, data=pair, eps=0.02, out=tmp_path)


def test_the_same_seed_gives_the_same_numbers_and_leaves_no_trace(net, plane, pair):
    x, _ = pair
    y = net(x).argmax(1)
    other = Hidden(tilted(plane), after=lambda logits: logits[:, [0, 1, 1, 1, 1]]).train()
    net.train()
    net.bn.eval()
    state = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first, second = (check(net, data=(x, y), eps=0.03, surrogate=other) for _ in range(2))
    assert first.behaviours == second.behaviours
    assert [module.training for module in (net, net.conv, net.bn, other)] == [True, True, False, True]
    assert all(tensor.equal(state[name]) for name, tensor in net.state_dict().items())
    assert all(
        parameter.requires_grad and parameter.grad is None for parameter in (*net.parameters(), *other.parameters())
    )
    assert torch.get_rng_state().equal(before)
