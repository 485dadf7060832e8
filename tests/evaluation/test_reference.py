"""The authors' AutoAttack: its images are judged as ours are, and its changes to the process are undone."""

import contextlib
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
from pixelpart.errors import UserError
from pixelpart.evaluation import reference
from pixelpart.evaluation.evaluate import evaluate
from pixelpart.evaluation.images import ImageSet
from pixelpart.evaluation.reference import build, under_reference
from searches import short

pyautoattack = pytest.importorskip("pyautoattack")

EPS = 0.02
CPU = torch.device("cpu")


def cut_short(attack):
    attack.apgd.n_iter = attack.apgd_targeted.n_iter = attack.fab.n_iter = 5
    attack.square.n_queries = 20
    return attack


@pytest.fixture(autouse=True)
def _short(monkeypatch):
    """A few steps for each of its attacks, and for ours."""
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


def remaining(model, data, *, right=None, eps=EPS, version="standard", seed=0):
    x, y = data
    model = model.eval().requires_grad_(False)
    right = model(x).argmax(1) == y if right is None else right
    pictures = ImageSet(x, y, CPU, batch_size=7)
    return under_reference(model, pictures, correct=right, eps=eps, version=version, seed=seed)


# -- outcomes


@pytest.mark.parametrize("version", ["standard", "plus"])
def test_flags_are_those_of_the_images_that_the_package_returns(net, labelled, version):
    net = net.requires_grad_(False)
    flags = remaining(net, labelled, version=version)
    index = (net(labelled[0]).argmax(1) == labelled[1]).nonzero()[:, 0]
    x, y = (tensor[index] for tensor in labelled)
    attack = cut_short(pyautoattack.AutoAttack(net, norm="Linf", eps=EPS, version=version, seed=0))
    attack.apgd_targeted.n_target_classes = attack.fab.n_target_classes = 4
    x_adv, _ = attack.run_standard_evaluation(x, y, batch_size=7)
    assert flags.nonzero()[:, 0].tolist() == index[net(x_adv).argmax(1) == y].tolist()
    assert 0 < int(flags.sum()) < len(index)


@pytest.mark.parametrize(("reach", "outside"), [(0.9, False), (1.1, True)])
def test_an_image_outside_the_ball_breaks_nothing(net, labelled, monkeypatch, reach, outside):
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
    flags = remaining(net, labelled, right=right, eps=0.15)
    assert torch.equal(flags, torch.ones_like(fooled) if outside else ~fooled)


@pytest.mark.parametrize(("classes", "version"), [(4, "standard"), (4, "plus"), (12, "standard")])
def test_with_fewer_than_ten_classes_there_are_fewer_targets(pair, classes, version):
    model, x = Linear(classes).eval(), pair[0][:4]
    flags = remaining(model, (x, model(x).argmax(1)), eps=1e-3, version=version)
    assert flags.all()


# -- the process is left as it was


def state():
    loggers = [(name, logging.getLogger(name).level) for name in ("auto-attack", "")]
    generators = torch.get_rng_state().tolist(), random.getstate(), str(np.random.get_state())
    return generators, loggers, list(warnings.filters), sys.gettrace(), torch.is_grad_enabled()


@pytest.mark.parametrize("fails", [False, True])
def test_generators_logging_warnings_and_tracing_are_restored(net, labelled, caplog, recwarn, fails):
    calls = []

    class Watched(type(net)):
        def forward(self, x):
            calls.append(1)
            if fails and len(calls) == 9:
                raise ZeroDivisionError
            return super().forward(x)

    def tracer(frame, event, argument):
        return None

    model, logger, outer = Watched(), logging.getLogger("auto-attack"), sys.gettrace()
    logger.setLevel(logging.DEBUG)
    caplog.set_level(logging.DEBUG)
    sys.settrace(tracer)
    try:
        before = state()
        with pytest.raises(ZeroDivisionError) if fails else contextlib.nullcontext():
            remaining(model, labelled, right=torch.ones(20, dtype=torch.bool), version="plus")
        assert state() == before
    finally:
        sys.settrace(outer)
        logger.setLevel(logging.NOTSET)
    assert caplog.records == []
    assert not recwarn.list


# -- through evaluate


def test_each_engine_has_its_own_entry_and_both_break_nearly_the_same_samples(net, labelled, tmp_path, monkeypatch):
    monkeypatch.setitem(VERSIONS, "standard", short())
    settings = {"data": labelled, "attacks": "autoattack@0.01", "out": tmp_path, "name": "net"}
    news = []
    theirs = evaluate(net, **settings, engine="reference", search="bf16", progress=lambda *item: news.append(item))
    ours = evaluate(net, **settings)
    entries = json.loads((tmp_path / "eval.json").read_text())["entries"]
    assert [entry["settings"]["engine"] for entry in entries] == ["reference", "own"]
    assert [entry["settings"]["search"] for entry in entries] == ["fp32", "fp32"]
    (theirs,), (ours,) = theirs.outcomes.values(), ours.outcomes.values()
    assert news[-1] == ("autoattack@0.01", 20, 20, f"{theirs.accuracy:.2%} correct")
    assert 0 < ours.correct < 18
    assert (ours.right != theirs.right).sum() <= 1
    for engine in ("reference", "own"):
        assert evaluate(net, **settings, engine=engine)["autoattack@0.01"].reused


def test_settings_reach_the_package_and_few_classes_are_refused(net, pair):
    attack = build(net, CPU, eps=0.01, version="plus", seed=2**63 + 7)
    assert (attack.seed, attack.epsilon, attack.norm, attack.version) == (7, 0.01, "Linf", "plus")
    model, x = Linear(3).eval(), pair[0][:4]
    with pytest.raises(UserError, match="needs at least 4 classes, not 3"):
        remaining(model, (x, model(x).argmax(1)))


def test_without_the_package_the_error_says_how_to_install_it(net, labelled, monkeypatch):
    monkeypatch.setattr(reference, "build", build)
    monkeypatch.setitem(sys.modules, "pyautoattack", None)
    with pytest.raises(UserError, match=r"needs pyautoattack: pip install 'pixelpart\[reference\]'"):
        remaining(net, labelled)
