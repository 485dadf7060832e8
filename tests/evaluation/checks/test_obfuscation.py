"""An honest model passes; every way of hiding a gradient that is made here is caught."""

import copy
import dataclasses
import json
import os

import pytest
import torch

from corners import MASKED, SET, Hidden, N, backwards, trained
from pixelpart import data, models
from pixelpart.config import Config
from pixelpart.errors import UserError
from pixelpart.evaluation.checks import obfuscation, sanity
from pixelpart.evaluation.checks.behaviours import EXPECTED, SKIPPED, SUSPICIOUS
from pixelpart.evaluation.checks.obfuscation import check
from pixelpart.files import atomic_write
from pixelpart.runs import Run, save_checkpoint

pytestmark = pytest.mark.usefixtures("corner_set")
NAMES = ["one step", "black box", "unbounded", "random", "growing eps"]


@pytest.fixture
def honest():
    return trained(7)


# -- honest


def test_a_trained_model_passes(honest):
    report = check(honest, data="corners")
    assert [one.name for one in report.behaviours] == NAMES
    assert [one.verdict for one in report.behaviours] == [EXPECTED] * 5
    assert report.warnings == []
    assert report.verdict == EXPECTED
    assert report.facts["natural"] > 0.9
    step, box = report["one step"].numbers, report["black box"].numbers
    assert 0 < step["pgd20"] <= step["fgsm"] < report.facts["natural"]  # there was something to find
    assert box["transfer"] >= box["pgd20"] == step["pgd20"]
    assert box["surrogate_natural"] > 0.9
    assert report["unbounded"].numbers["unbounded"] == 0
    assert list(report["growing eps"].numbers["accuracy"]) == ["8/255", "16/255", "32/255", "64/255", "128/255"]


def test_so_does_a_plane_whose_figures_are_known(plane, pair):
    x, y = pair
    score = plane(x)[:, 0] * torch.where(y == 0, 1, -1)
    report = check(plane, data=pair, eps=0.02, step_size=0.005)
    robust = int((score > 0.02 * plane.linear.weight.abs().sum()).sum()) / 40
    shares = dict.fromkeys(("fgsm", "averaged", "pgd20"), robust)
    assert report["one step"].numbers == shares | {"fgsm_only": 0, "averaged_only": 0}
    assert report["unbounded"].numbers["unbounded"] == 0
    assert report["random"].numbers["random_only"] == 0
    shares = report["growing eps"].numbers["accuracy"]
    assert list(shares) == ["0.02", "0.04", "0.08", "0.16", "0.32", "0.64"]
    assert shares["0.02"] == robust
    assert [one.verdict for one in report.behaviours] == [EXPECTED, SKIPPED, EXPECTED, EXPECTED, EXPECTED]
    assert report.verdict == EXPECTED
    other = check(plane, data=pair, eps=0.02, step_size=0.005, surrogate=tilted(plane))
    assert other["black box"].verdict == EXPECTED
    assert other["black box"].numbers["surrogate"] == "a module"


def tilted(plane):
    other = copy.deepcopy(plane)
    with torch.no_grad():
        other.linear.weight += 0.3 * torch.randn(other.linear.weight.shape, generator=torch.Generator().manual_seed(9))
    return other


# -- masked


@pytest.mark.parametrize("case", MASKED)
def test_a_hidden_gradient_is_caught(case, honest):
    settings, shown = MASKED[case]
    model = Hidden(honest, **settings)
    report = check(model, data="corners", surrogate=trained(3))
    assert report.facts["natural"] > 0.9  # as a defence it looks fine
    suspicious = {one.name for one in report.behaviours if one.verdict == SUSPICIOUS}
    assert shown <= suspicious
    assert report.verdict == SUSPICIOUS
    assert f"verdict: suspicious: {', '.join(name for name in NAMES if name in suspicious)}" in str(report)
    if case == "random":
        assert sanity.RANDOM in report.warnings
    if case in ("saturated", "quantised"):
        assert any("gradient of the cross-entropy is zero" in warning for warning in report.warnings)


def test_a_hidden_gradient_on_few_images_is_caught_too(honest):
    """Only images of one class hide theirs: a tenth of what an average would show."""
    some = Hidden(honest, lambda x: torch.where((honest(x).argmax(1) == 2)[:, None, None, None], backwards(x), x))
    report = check(some, data="corners", surrogate=trained(3))
    assert report.verdict == SUSPICIOUS
    assert report["unbounded"].verdict == SUSPICIOUS
    assert report["unbounded"].numbers["unbounded"] <= 0.25


# -- surrogates


def test_without_a_training_set_the_black_box_is_skipped_and_says_so(plane, pair):
    found = check(plane, data=pair, eps=0.02)["black box"]
    assert found.verdict == SKIPPED
    assert "without a training set" in found.found
    assert "--surrogate RUN" in found.found


def test_a_set_of_the_users_own_has_one_trained_on_it(honest, monkeypatch):
    monkeypatch.setitem(data.USER_SETS, "mine:corners", SET)
    found = check(honest, data="mine:corners", images=20)["black box"]
    assert found.numbers["surrogate"] == "a tiny-cnn trained for it"


def test_on_a_large_set_too(honest, monkeypatch):
    monkeypatch.setitem(data.SETS, "corners", dataclasses.replace(SET, counts={"train": 50_000, "test": N}))
    report = check(honest, data="corners", images=20)
    assert report["black box"].found.startswith("corners has 50000 training images, too many")
    assert report.verdict == EXPECTED


@pytest.fixture
def make_run(tmp_path):
    def write(model, dataset="corners", name="run"):
        config = Config(dataset=dataset, model="tiny-cnn")
        atomic_write(tmp_path / name / "config.json", config.to_json())
        state = {f"model.{key}": value for key, value in model.state_dict().items()}
        save_checkpoint(
            tmp_path / name / "checkpoints" / "best.safetensors", state, {"epoch": 1, "config": config.hash()}
        )
        return Run(tmp_path / name)

    return write


def test_a_run_may_be_the_surrogate(honest, make_run):
    run = make_run(trained(3))
    report = check(honest, data="corners", images=20, surrogate=run.dir)
    assert report["black box"].verdict == EXPECTED
    assert report["black box"].numbers["surrogate"] == str(run.dir)
    assert not (run.dir / "check.json").exists()


def test_a_surrogate_that_is_none_is_refused(honest, make_run):
    other = {"data": "corners", "images": 8}
    with pytest.raises(UserError, match="the surrogate is the model itself"):
        check(make_run(honest), images=8, surrogate=make_run(honest, name="twin"))
    with pytest.raises(UserError, match="the surrogate is for shapes, the model for corners"):
        check(honest, **other, surrogate=make_run(models.build("tiny-cnn"), "shapes", "shapes"))
    with pytest.raises(UserError, match="the surrogate knows 7 classes, the model 4"):
        check(honest, **other, surrogate=models.build("tiny-cnn", num_classes=7))
    with pytest.raises(UserError, match="no gradient"):
        check(honest, **other, surrogate=Hidden(trained(3), lambda x: x.detach()))


# -- what is written


def test_the_report_of_a_run_goes_to_its_folder(honest, make_run):
    run = make_run(honest)
    report = check(run, images=24, surrogate=trained(3))
    written = json.loads((run.dir / "check.json").read_text())
    assert written == json.loads(json.dumps(report.as_json()))
    assert report.kept == run.dir / "check.json"
    assert (written["schema_version"], written["verdict"], written["n"]) == (1, EXPECTED, 24)
    assert (written["checkpoint"], written["dataset"], written["eps"]) == ("best", "corners", 8 / 255)
    assert [one["name"] for one in written["behaviours"]] == NAMES
    assert all(one["rule"] and one["found"] for one in written["behaviours"])


def test_others_are_kept_where_out_says_and_else_nowhere(plane, pair, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert check(plane, data=pair, eps=0.02).kept is None
    assert list(tmp_path.iterdir()) == []
    check(plane, data=pair, eps=0.02, out="kept")
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["check.json"]


def test_a_folder_that_cannot_be_written_to_is_told_before_the_work(plane, pair, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: (path, mode) != (tmp_path, os.W_OK))
    with pytest.raises(UserError, match="cannot write the report to"):
        check(plane, data=pair, eps=0.02, out=tmp_path)


def test_the_page_has_a_line_for_each_and_the_verdict_last(plane, pair):
    lines = str(check(plane, data=pair, eps=0.02, step_size=0.0005)).splitlines()
    assert [line[:11].strip() for line in lines[:5]] == NAMES
    assert lines[5].startswith("* steps * step_size < eps")
    assert lines[6] == "verdict: suspicious: one step, warnings; n = 40"


def test_a_thousand_images_are_enough_unless_told_otherwise(plane, monkeypatch):
    monkeypatch.setattr(obfuscation, "IMAGES", 10)
    x = torch.rand(40, 3, 6, 6, generator=torch.Generator().manual_seed(0))
    y = plane(x).argmax(1)
    assert check(plane, data=(x, y)).facts["n"] == 10
    assert check(plane, data=(x, y), images=15).facts["n"] == 15
    with pytest.raises(UserError, match="images 0"):
        check(plane, data=(x, y), images=0)


def test_nothing_right_is_nothing_to_check(plane, pair):
    x, _ = pair
    with pytest.raises(UserError, match="none of 40 images right"):
        check(plane, data=(x, 1 - plane(x).argmax(1)))


def test_the_same_seed_gives_the_same_numbers_and_no_trace_is_left(net, plane, pair):
    x, _ = pair
    y = net(x).argmax(1)
    other = Hidden(tilted(plane), after=lambda logits: logits[:, [0, 1, 1, 1, 1]]).train()
    net.train()
    net.bn.eval()
    state = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    torch.manual_seed(5)
    before = torch.get_rng_state()
    one, two = (check(net, data=(x, y), eps=0.03, surrogate=other) for _ in range(2))
    assert one.behaviours == two.behaviours
    assert [module.training for module in (net, net.conv, net.bn, other)] == [True, True, False, True]
    assert all(tensor.equal(state[name]) for name, tensor in net.state_dict().items())
    assert all(
        parameter.requires_grad and parameter.grad is None for parameter in (*net.parameters(), *other.parameters())
    )
    assert torch.get_rng_state().equal(before)
