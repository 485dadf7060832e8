"""The authors' AutoAttack: what it leaves standing is judged as ours is, and what it does to the process is undone."""

import json
import logging
import random
import sys
import warnings

import numpy as np
import pytest
import torch
from torch import nn

from pixelpart.attacks import VERSIONS
from pixelpart.attacks.apgd import apgd_search
from pixelpart.cli.main import main
from pixelpart.errors import UserError
from pixelpart.evaluation import reference
from pixelpart.evaluation.evaluate import evaluate
from pixelpart.evaluation.image_set import ImageSet
from pixelpart.evaluation.reference import build, under_reference

pyautoattack = pytest.importorskip("pyautoattack")

EPS = 0.02
CPU = torch.device("cpu")


def cut_short(attack):
    attack.apgd.n_iter = attack.apgd_targeted.n_iter = attack.fab.n_iter = 5
    attack.square.n_queries = 20
    return attack


@pytest.fixture(autouse=True)
def _short(monkeypatch):
    """All of its attacks, with a few steps each; ours, with which it shares a cache, too."""
    original = build
    monkeypatch.setattr(reference, "build", lambda *target, **settings: cut_short(original(*target, **settings)))
    monkeypatch.setitem(VERSIONS, "standard", {"apgd-ce": apgd_search(steps=5)})


class Linear(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.linear = nn.Linear(108, classes)
        generator = torch.Generator().manual_seed(classes)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator))

    def forward(self, x):
        return self.linear(x.flatten(1))


def stand(model, data, *, right=None, eps=EPS, version="standard", seed=0, batch_size=7):
    x, y = data
    model = model.eval().requires_grad_(False)
    right = model(x).argmax(1) == y if right is None else right
    pictures = ImageSet(x, y, CPU)
    return under_reference(model, pictures, right=right, eps=eps, version=version, seed=seed, batch_size=batch_size)


# -- outcomes


@pytest.mark.parametrize("version", ["standard", "plus"])
def test_what_stands_is_what_its_own_images_leave(net, labelled, version):
    net = net.requires_grad_(False)
    flags = stand(net, labelled, version=version)
    index = (net(labelled[0]).argmax(1) == labelled[1]).nonzero()[:, 0]
    x, y = (tensor[index] for tensor in labelled)
    attack = cut_short(pyautoattack.AutoAttack(net, norm="Linf", eps=EPS, version=version, seed=0))
    attack.apgd_targeted.n_target_classes = attack.fab.n_target_classes = 4
    x_adv, _ = attack.run_standard_evaluation(x, y, batch_size=7)
    assert flags.nonzero()[:, 0].tolist() == index[net(x_adv).argmax(1) == y].tolist()
    assert 0 < int(flags.sum()) < len(index)


def test_the_flags_handed_in_are_left_alone_and_nothing_wrong_becomes_right(net, labelled):
    right = torch.zeros(20, dtype=torch.bool)
    right[[3, 5, 8]] = True
    before = right.clone()
    assert stand(net, labelled, right=right, eps=1e-4).nonzero()[:, 0].tolist() == [3, 5, 8]
    assert not stand(net, labelled, right=right, eps=0.3).any()
    assert torch.equal(right, before)


def test_where_nothing_is_right_nothing_is_run(net, labelled, monkeypatch):
    def unused(*_, **__):
        raise AssertionError("there is nothing to attack")

    monkeypatch.setattr(pyautoattack.AutoAttack, "run_standard_evaluation", unused)
    assert not stand(net, labelled, right=torch.zeros(20, dtype=torch.bool)).any()


@pytest.mark.parametrize(("reach", "stands"), [(0.9, False), (1.1, True)])
def test_an_image_of_its_that_lies_outside_the_ball_breaks_nothing(net, labelled, monkeypatch, reach, stands):
    x, y = labelled
    sign = torch.randn(x.shape).sign()

    class Stray:
        def __init__(self):
            self.apgd_targeted = self.fab = type("Part", (), {"n_target_classes": 9})()

        def run_standard_evaluation(self, x, y, *, batch_size):
            return x + reach * 0.15 * sign[: len(x)], y

    monkeypatch.setattr(reference, "build", lambda *_, **__: Stray())
    # between [0.2, 0.8] a change of 0.15 stays in [0, 1]
    right = torch.ones(20, dtype=torch.bool)
    fooled = net(x + reach * 0.15 * sign).argmax(1) != y
    assert fooled.sum() > 3
    flags = stand(net, labelled, right=right, eps=0.15)
    assert torch.equal(flags, torch.ones_like(fooled) if stands else ~fooled)


@pytest.mark.parametrize("classes", [4, 5, 9, 10, 12])
@pytest.mark.parametrize("version", ["standard", "plus"])
def test_with_fewer_than_ten_classes_it_has_fewer_targets(pair, classes, version):
    model, x = Linear(classes).eval(), pair[0][:4]
    flags = stand(model, (x, model(x).argmax(1)), eps=1e-3, version=version)
    assert flags.all()


@pytest.mark.parametrize("classes", [2, 3])
def test_with_fewer_than_four_it_refuses(pair, classes):
    model, x = Linear(classes).eval(), pair[0][:4]
    with pytest.raises(UserError, match=f"needs 4 classes or more, for its targets; there are {classes}"):
        stand(model, (x, model(x).argmax(1)))


def test_the_seed_and_the_version_are_handed_on(net, labelled, monkeypatch):
    made = []
    monkeypatch.setattr(
        reference, "build", lambda *_, **settings: made.append(settings) or cut_short(build(*_, **settings))
    )
    for version in ("standard", "plus"):
        stand(net, labelled, seed=7, version=version, eps=0.01)
    assert made == [{"eps": 0.01, "version": version, "seed": 7} for version in ("standard", "plus")]
    attack = build(net, CPU, eps=0.01, version="plus", seed=7)
    assert (attack.seed, attack.epsilon, attack.norm, attack.version) == (7, 0.01, "Linf", "plus")


@pytest.mark.parametrize("seed", [2**70 + 3, -1])
def test_any_whole_number_is_a_seed(seed, net, labelled):
    assert torch.equal(stand(net, labelled, seed=seed), stand(net, labelled, seed=seed))


def test_the_same_seed_gives_the_same_flags(net, labelled):
    assert torch.equal(stand(net, labelled, seed=3), stand(net, labelled, seed=3))


# -- as before


def state():
    loggers = [(name, logging.getLogger(name).level) for name in ("auto-attack", "")]
    generators = torch.get_rng_state().tolist(), random.getstate(), str(np.random.get_state())
    return generators, loggers, list(warnings.filters), sys.gettrace(), torch.is_grad_enabled()


@pytest.mark.parametrize("level", [logging.NOTSET, logging.DEBUG])
def test_generators_logging_warnings_and_tracing_are_as_before(net, labelled, level, caplog, recwarn):
    logger = logging.getLogger("auto-attack")
    logger.setLevel(level)
    caplog.set_level(logging.DEBUG)

    def tracer(frame, event, argument):
        return None

    torch.manual_seed(5)
    outer = sys.gettrace()
    sys.settrace(tracer)
    try:
        before = state()
        stand(net, labelled, version="plus")
        assert state() == before
    finally:
        sys.settrace(outer)
        logger.setLevel(logging.NOTSET)
    assert caplog.records == []
    assert not recwarn.list


def test_they_are_after_an_exception_too(net, labelled):
    calls = []

    class Failing(type(net)):
        def forward(self, x):
            calls.append(1)
            if len(calls) == 9:
                raise ZeroDivisionError
            return super().forward(x)

    model = Failing()
    before = state()
    with pytest.raises(ZeroDivisionError):
        stand(model, labelled, right=torch.ones(20, dtype=torch.bool))
    assert state() == before


def test_the_draws_of_a_caller_are_not_moved(net, labelled):
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    stand(net, labelled)
    assert torch.equal(torch.rand(3), expected)


# -- through evaluate


def test_each_engine_has_an_entry_of_its_own(net, labelled, tmp_path):
    settings = {"data": labelled, "attacks": "autoattack", "eps": EPS, "out": tmp_path}
    theirs = evaluate(net, **settings, engine="reference")
    ours = evaluate(net, **settings)
    entries = json.loads((tmp_path / "eval.json").read_text())["entries"]
    assert [entry["settings"]["engine"] for entry in entries] == ["reference", "own"]
    assert entries[0]["settings"]["search"] == "fp32"
    assert (theirs["autoattack"].reused, ours["autoattack"].reused) == (False, False)
    for engine, first in (("reference", theirs), ("own", ours)):
        again = evaluate(net, **settings, engine=engine)
        assert again["autoattack"].reused
        assert again.flags["autoattack"].tolist() == first.flags["autoattack"].tolist()
    right = net(labelled[0]).argmax(1) == labelled[1]
    assert theirs.flags["autoattack"].tolist() == stand(net, labelled, right=right, batch_size=128).tolist()
    assert list(tmp_path.glob("eval/*.journal")) == []


def test_progress_is_told_to_the_end(net, labelled):
    told = []
    result = evaluate(net, data=labelled, attacks="autoattack", eps=EPS, engine="reference",
                      progress=lambda *news: told.append(news))  # fmt: skip
    assert told[-1] == ("autoattack", 20, 20, result["autoattack"].accuracy)


def test_the_search_is_fp32_whatever_was_asked(net, labelled):
    (entry,) = evaluate(net, data=labelled, attacks="autoattack", eps=EPS, engine="reference", search="bf16").entries
    assert entry["settings"]["search"] == "fp32"


@pytest.mark.parametrize("attack", ["apgd-ce", "apgd-t", "fab-t", "square", "mm3"])
def test_parts_are_refused_before_anything_is_done(net, labelled, attack, tmp_path):
    with pytest.raises(UserError, match=f"the engine reference runs autoattack, autoattack-plus alone, not {attack}"):
        evaluate(net, data=labelled, attacks=f"natural,autoattack,{attack}", engine="reference", out=tmp_path)
    assert not (tmp_path / "eval.json").exists()


def test_other_attacks_are_run_as_ever(net, labelled):
    result = evaluate(net, data=labelled, attacks="natural,pgd3", eps=EPS, step_size=0.01, engine="reference")
    plain = evaluate(net, data=labelled, attacks="natural,pgd3", eps=EPS, step_size=0.01)
    assert [entry["asked"] for entry in result.entries] == [entry["asked"] for entry in plain.entries]


def test_through_the_command_line(run, capsys):
    command = ["evaluate", str(run.dir), "--attacks", "autoattack", "--images", "12", "--device", "cpu", "--json"]
    assert main([*command, "--engine", "reference"]) == 0
    (entry,) = json.loads(capsys.readouterr().out)
    assert entry["settings"]["engine"] == "reference"
    assert entry["n"] == 12


def test_an_eps_of_its_own_is_taken(net, labelled):
    result = evaluate(net, data=labelled, attacks="autoattack@0.0001,autoattack@0.3", engine="reference")
    assert [entry["eps"] for entry in result.entries] == [0.0001, 0.3]
    assert result["autoattack@0.0001"].correct == 18
    assert result["autoattack@0.3"].correct == 0


def test_without_the_package_it_says_how_to_get_it(net, labelled, monkeypatch):
    monkeypatch.setattr(reference, "build", build)
    monkeypatch.setitem(sys.modules, "pyautoattack", None)
    with pytest.raises(UserError, match=r"needs pyautoattack: pip install 'pixelpart\[reference\]'"):
        stand(net, labelled)
