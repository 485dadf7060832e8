"""AutoAttack by `evaluate` where the gradient leads nowhere: Square once more, told and kept as other parts are."""

import dataclasses

import pytest
import torch
from torch import nn

from fronts import Behind, rounded, turned
from pixelpart.attacks import SEARCHES, VERSIONS
from pixelpart.attacks.autoattack import autoattack
from pixelpart.attacks.square import square_search
from pixelpart.errors import UserError
from pixelpart.evaluation.evaluate import evaluate
from searches import short

AGAIN = "square-again"
EPS = 0.05


@pytest.fixture(autouse=True)
def parts(monkeypatch):
    first = short() | {"square": square_search(20)}
    monkeypatch.setitem(VERSIONS, "standard", first | {AGAIN: dataclasses.replace(square_search(100), blind=True)})
    return VERSIONS["standard"]


@pytest.fixture(params=[rounded, turned])
def astray(request, net, pair):
    """A network whose gradient leads nowhere, and images with its own labels."""
    model, x = Behind(request.param, net).eval(), pair[0]
    return model, (x, model(x).argmax(1))


def asked_of(hunted):
    return {sample for name, sample, _ in hunted["asked"] if name == AGAIN}


def test_evaluate_and_the_attack_itself_leave_the_same(astray):
    model, data = astray
    seed = int(torch.randint(2**62, (), generator=torch.Generator().manual_seed(0)))
    found = evaluate(model, data=data, attacks="autoattack", eps=EPS, seed=seed).flags["autoattack"]
    assert found.tolist() == autoattack(model, *data, EPS).tolist()
    assert 0 < found.sum() < 40


def test_it_is_tried_at_all_that_square_left_and_told_of(astray, hunted, parts, monkeypatch):
    model, data = astray
    told = []
    result = evaluate(model, data=data, attacks="autoattack", eps=EPS, progress=lambda *news: told.append(news))
    tried = asked_of(hunted)
    assert list(result["autoattack"].entry["settings"]["parts"]) == list(parts)
    monkeypatch.setitem(VERSIONS, "standard", {name: part for name, part in parts.items() if name != AGAIN})
    before = evaluate(model, data=data, attacks="autoattack", eps=EPS)
    assert tried == set(before.flags["autoattack"].nonzero()[0].tolist())
    assert result["autoattack"].correct < before["autoattack"].correct
    news = [(done, total, share) for name, done, total, share in told if name == f"autoattack {AGAIN}"]
    assert news[0] == (0, len(tried), before["autoattack"].accuracy)
    assert news[-1] == (len(tried), len(tried), result["autoattack"].accuracy)


def test_with_gradients_it_is_neither_tried_nor_told_of(net, labelled, hunted, parts, monkeypatch):
    told = []
    settings = {"data": labelled, "attacks": "autoattack", "eps": 0.02}
    found = evaluate(net, **settings, progress=lambda name, *_: told.append(name))
    assert asked_of(hunted) == set()
    assert told[-1] == "autoattack square"
    monkeypatch.setitem(VERSIONS, "standard", {name: part for name, part in parts.items() if name != AGAIN})
    assert found.flags["autoattack"].tolist() == evaluate(net, **settings).flags["autoattack"].tolist()
    assert 0 < found["autoattack"].correct < 18


@pytest.mark.parametrize("news", [1, 4, 8])
def test_stopped_after_square_it_goes_on_to_the_same_end(astray, hunted, tmp_path, news):
    model, data = astray
    settings = {"data": data, "attacks": "autoattack", "eps": EPS}
    whole = evaluate(model, **settings)
    hunted["settled"].clear()
    told = []

    def stop(name, *_):
        told.append(name)
        if told.count(f"autoattack {AGAIN}") == news:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate(model, **settings, out=tmp_path, progress=stop)
    settled = set(hunted["settled"])
    assert sum(name == AGAIN for name, *_ in settled) == news - 1
    hunted["asked"].clear()
    result = evaluate(model, **settings, out=tmp_path)
    assert {name for name, *_ in hunted["asked"]} == {AGAIN}
    assert not settled & set(hunted["asked"])
    assert result.flags["autoattack"].tolist() == whole.flags["autoattack"].tolist()


class Closed(nn.Module):
    """A network through which no gradient comes."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    @torch.no_grad()
    def forward(self, x):
        return self.net(x)


def test_square_needs_no_gradient_and_is_run_where_there_is_none(net, pair, monkeypatch):
    """Its figures are those of the open network; whoever follows a gradient is refused."""
    monkeypatch.setitem(SEARCHES, "square", square_search(100))
    settings = {"data": pair, "attacks": ["natural", "square"], "eps": 0.02}
    closed, opened = evaluate(Closed(net.eval()), **settings), evaluate(net.eval(), **settings)
    assert closed.flags["square"].tolist() == opened.flags["square"].tolist()
    assert closed["square"].warnings == []
    assert 0 < closed["square"].correct < closed["natural"].correct
    with pytest.raises(UserError, match=r"no gradient reaches the model's input.*only natural and square can run"):
        evaluate(Closed(net.eval()), **settings | {"attacks": ["natural", "square", "pgd20"]})
