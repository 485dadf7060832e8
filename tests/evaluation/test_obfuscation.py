"""An honest model passes; every way of hiding a gradient that is made here is caught."""

import copy
import dataclasses
import functools
import json

import numpy as np
import pytest
import torch
from torch import nn

from pixelpart import data, models
from pixelpart.config import Config
from pixelpart.errors import UserError
from pixelpart.evaluation import behaviours, cache, guards, identity, obfuscation, surrogate
from pixelpart.evaluation.behaviours import EXPECTED, SKIPPED, SUSPICIOUS, Trial, growing_eps
from pixelpart.evaluation.obfuscation import check, of_square
from pixelpart.evaluation.pictures import Pictures
from pixelpart.run import Run
from pixelpart.runfolder import atomic_write, save_checkpoint

N = 40
NAMES = ["one step", "black box", "unbounded", "random", "growing eps"]


# -- a set that is learnt in a second: which corner is lighter, by more or by less


@functools.cache
def corners(split):
    generator = torch.Generator().manual_seed(len(split))
    n = 320 if split == "train" else N
    x = 100 + 60 * torch.rand(n, 3, 12, 12, generator=generator)
    lighter = 10 + 20 * torch.rand(n, 1, 1, 1, generator=generator)
    y = torch.arange(n) % 4
    for label, (top, left) in enumerate(((0, 0), (0, 6), (6, 0), (6, 6))):
        x[y == label, :, top : top + 6, left : left + 6] += lighter[y == label]
    return x.byte(), y


SET = data.DataSet(
    classes=("nw", "ne", "sw", "se"),
    size=12,
    mean=(0.5, 0.5, 0.5),
    std=(0.2, 0.2, 0.2),
    counts={"train": 320, "test": N},
    about="",
    load=lambda split, root: corners(split),
)


@pytest.fixture(autouse=True)
def _sets(monkeypatch):
    monkeypatch.setitem(data.SETS, "corners", SET)
    monkeypatch.setattr(surrogate, "BATCH", 16)
    monkeypatch.setattr(behaviours, "POINTS", 20)


@functools.cache
def trained(seed):
    """A tiny-cnn, adversarially trained: the surrogate's own training, with another seed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(data.SETS, "corners", SET)
        patch.setattr(surrogate, "BATCH", 16)
        return surrogate.train_surrogate("corners", eps=8 / 255, seed=seed, device=torch.device("cpu"))


@pytest.fixture
def honest():
    return trained(7)


class Hidden(nn.Module):
    """A model behind a change of its images and one of its logits."""

    def __init__(self, model, change=lambda x: x, after=lambda logits: logits):
        super().__init__()
        self.model, self.change, self.after = model, change, after

    def forward(self, x):
        return self.after(self.model(self.change(x)))


def stairs(x):
    """Sixteen levels; the gradient is zero wherever there is one."""
    return (x * 16).round() / 16 + 0 * x


def random(x):
    return x + 0.1 * torch.randn_like(x)


def backwards(x):
    """The same images, and a gradient that leads away."""
    return 2 * x.detach() - x


def shattered(x):
    """Nearly the same images, and a gradient that is that of a fast ripple."""
    return x + 0.002 * torch.sin(1e5 * x)


def on_the_levels(x):
    """The same images, and a gradient at images of whole levels alone: a random start is none."""
    whole = (x * 255 - (x * 255).round()).abs() < 1e-3
    return torch.where(whole, x, x.detach())


MASKED = {
    "saturated": ({"after": lambda logits: 1e4 * logits}, {"unbounded", "growing eps", "black box"}),
    "quantised": ({"change": stairs}, {"unbounded", "growing eps", "black box"}),
    "random": ({"change": random}, set()),  # what it shows is chance; that it is random is told
    "backwards": ({"change": backwards}, {"unbounded", "growing eps", "black box"}),
    "shattered": ({"change": shattered}, {"black box"}),
    "on the levels": ({"change": on_the_levels}, {"one step", "unbounded", "growing eps", "black box"}),
}


# -- honest


def test_a_trained_model_passes(honest):
    report = check(honest, data="corners")
    assert [one.name for one in report.behaviours] == NAMES
    assert [one.verdict for one in report.behaviours] == [EXPECTED] * 5
    assert report.doubts == []
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
    assert report["one step"].numbers == {"fgsm": robust, "pgd20": robust, "fgsm_only": 0}
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
        assert guards.RANDOM in report.doubts
    if case in ("saturated", "quantised"):
        assert any("gradient of the cross-entropy is zero" in doubt for doubt in report.doubts)


def test_a_hidden_gradient_on_few_images_is_caught_too(honest):
    """Only images of one class hide theirs: a tenth of what an average would show."""
    some = Hidden(honest, lambda x: torch.where((honest(x).argmax(1) == 2)[:, None, None, None], backwards(x), x))
    report = check(some, data="corners", surrogate=trained(3))
    assert report.verdict == SUSPICIOUS
    assert report["unbounded"].verdict == SUSPICIOUS
    assert report["unbounded"].numbers["unbounded"] <= 0.25


# -- rules


class Scripted(Trial):
    """A trial whose attacks leave what they are told to."""

    def after(self, what, attempt, *, right=None, tries=1):
        count = self.script[what]
        return torch.arange(len(self.pictures)) < count


def scripted(n=1000, **script):
    pictures = Pictures(torch.zeros(n, 3, 2, 2), torch.zeros(n, dtype=torch.long), torch.device("cpu"))
    trial = Scripted(nn.Identity(), pictures, torch.ones(n, dtype=torch.bool), 8 / 255, 2 / 255, 0, 8, None)
    object.__setattr__(trial, "script", {name.replace("_", " "): count for name, count in script.items()})
    return trial


@pytest.mark.parametrize(
    ("counts", "verdict"),
    [
        ((400, 100, 10, 10, 10), EXPECTED),
        ((400, 100, 10, 10, 11), SUSPICIOUS),  # more than 1 % is left
        ((400, 100, 110, 10, 0), EXPECTED),
        ((400, 100, 111, 10, 0), SUSPICIOUS),  # it rises by more than 1 %
        ((400, 400, 400, 400, 400), SUSPICIOUS),
    ],
)
def test_accuracy_has_to_fall_as_eps_grows_and_to_nothing(counts, verdict):
    first, *rest = counts
    trial = scripted(**{f"eps {16 * 2**i}/255": count for i, count in enumerate(rest)})
    assert growing_eps(trial, torch.arange(1000) < first).verdict == verdict


@pytest.mark.parametrize(("fgsm", "verdict"), [(500, EXPECTED), (380, EXPECTED), (379, SUSPICIOUS), (0, SUSPICIOUS)])
def test_one_step_may_find_two_percent_of_what_twenty_leave(fgsm, verdict):
    found = behaviours.one_step(scripted(one_step=fgsm), torch.arange(1000) < 400)
    assert found.verdict == verdict
    assert found.numbers["fgsm_only"] == max(0, 400 - fgsm)


@pytest.mark.parametrize(("after", "verdict"), [(400, EXPECTED), (390, EXPECTED), (389, SUSPICIOUS)])
def test_random_points_may_find_one_percent(after, verdict):
    assert behaviours.random_points(scripted(random=after), torch.arange(1000) < 400).verdict == verdict


@pytest.mark.parametrize(("left", "verdict"), [(0, EXPECTED), (10, EXPECTED), (11, SUSPICIOUS)])
def test_an_unbounded_attack_may_leave_one_percent(left, verdict):
    assert behaviours.unbounded(scripted(unbounded=left)).verdict == verdict


def test_one_image_is_no_proof():
    assert behaviours.unbounded(scripted(n=10, unbounded=1)).verdict == EXPECTED
    assert behaviours.unbounded(scripted(n=10, unbounded=2)).verdict == SUSPICIOUS


def test_steps_grow_with_eps_and_the_start_does_not(plane, pair, monkeypatch):
    x, y = pair
    calls = []

    def watched(model, x, y, budget, *, step_size, steps, start):
        calls.append((budget, step_size, steps, start))
        return x

    monkeypatch.setattr(behaviours, "pgd", watched)
    trial = Trial(plane, Pictures(x, y, x.device), None, 8 / 255, 2 / 255, 0, 8, None)
    for eps in (None, 64 / 255, 1.0):
        trial.pgd20(eps=eps)(torch.arange(40), x, y, 0)
    assert [call[:3] for call in calls] == [
        (8 / 255, 2 / 255, 20),
        (64 / 255, pytest.approx(16 / 255), 20),
        (1.0, pytest.approx(0.25), 20),
    ]
    assert all(((call[3] - x).abs() <= 8 / 255 + 1e-6).all() for call in calls)
    assert calls[0][3].equal(calls[2][3])


# -- surrogates


def test_without_a_training_set_the_black_box_is_skipped_and_says_so(plane, pair):
    found = check(plane, data=pair, eps=0.02)["black box"]
    assert found.verdict == SKIPPED
    assert "without a training set" in found.found
    assert "--surrogate RUN" in found.found


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


def test_the_page_has_a_line_for_each_and_the_verdict_last(plane, pair):
    lines = str(check(plane, data=pair, eps=0.02, step_size=0.0005)).splitlines()
    assert [line[:11].strip() for line in lines[:5]] == NAMES
    assert lines[5].startswith("* steps * step_size < eps")
    assert lines[6] == "verdict: suspicious: one step, doubts; n = 40"


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


# -- AutoAttack's own warning


@pytest.mark.parametrize(
    ("left", "n", "broken"),
    [
        ({"apgd-ce": 500, "apgd-t": 450, "fab-t": 449, "square": 446}, 1000, 3),
        ({"apgd-ce": 500, "apgd-t": 450, "fab-t": 449, "square": 447}, 1000, 0),  # .2 %
        ({"apgd-ce": 500, "apgd-t": 450, "fab-t": 449, "square": 449}, 1000, 0),
        ({"apgd-ce": 500, "square": 300, "apgd-t": 299}, 1000, 0),  # others find as much after it
        ({"apgd-ce": 500, "square": 300, "apgd-t": 310}, 1000, 10),
        ({"square": 10}, 1000, 0),
        ({"apgd-ce": 500, "apgd-t": 450}, 1000, 0),
    ],
)
def test_square_must_not_break_what_gradients_left(left, n, broken):
    doubts = guards.of_parts(left, n)
    assert len(doubts) == (broken > 0)
    if broken:
        assert f"broke {broken} of {n} images that the white-box parts left standing" in doubts[0]


def stored(folder, attack, right, *, probe=(1.0, 2.0), eps=8 / 255, doubts=(), pixels="same"):
    key = identity.digest([attack, probe, eps, pixels])[:32]
    entry = {
        "attack": attack, "subject": None, "checkpoint": None, "dataset": "corners", "split": "test",
        "accuracy": int(right.sum()) / len(right), "correct": int(right.sum()), "n": len(right), "eps": eps,
        "settings": {}, "seed": 0, "precision": "fp32", "doubts": list(doubts), "pixels": pixels,
        "fingerprint": cache.fingerprint(right), "key": key, "asked": "", "probe": list(probe),
    }  # fmt: skip
    cache.add(folder, entry, right)


def test_what_eval_json_tells_of_square_is_a_doubt(tmp_path):
    look = functools.partial(of_square, tmp_path, [1.0, 2.0], 8 / 255)
    left, none = np.arange(80) < 60, np.zeros(80, bool)
    assert look() == []
    stored(tmp_path, "square", none)
    for part in ("apgd-ce", "apgd-t"):
        stored(tmp_path, part, left)
    assert look() == []  # without all three it is no AutoAttack
    stored(tmp_path, "fab-t", left, pixels="other images")
    stored(tmp_path, "fab-t", left, probe=(3.0, 4.0))  # another model
    stored(tmp_path, "fab-t", left, eps=4 / 255)
    assert look() == []
    stored(tmp_path, "fab-t", left & (np.arange(80) > 3))
    (doubt,) = look()
    assert doubt.startswith("Square, which needs no gradient, broke 56 of 80 images")
    stored(tmp_path, "autoattack", left, doubts=["a doubt"], eps=4 / 255)
    assert look() == [doubt]
    stored(tmp_path, "autoattack@8/255", left, doubts=["a doubt"])
    assert sorted(look()) == sorted(["a doubt", doubt])
    (tmp_path / "eval.json").write_text(json.dumps({"schema_version": 1, "entries": [{"eps": 8 / 255}]}))
    assert look() == []


def test_doubts_about_kept_figures_are_in_the_report(plane, pair, tmp_path):
    settings = {"data": pair, "eps": 0.02, "step_size": 0.01, "out": tmp_path}
    assert check(plane, **settings).verdict == EXPECTED
    probe = identity.signature(plane(pair[0][: identity.PROBES]).detach())
    stored(tmp_path, "autoattack", np.zeros(40, bool), probe=tuple(probe), eps=0.02, doubts=["a doubt", "a doubt"])
    report = check(plane, **settings)
    assert (report.doubts, report.verdict) == (["a doubt"], SUSPICIOUS)
