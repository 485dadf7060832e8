"""The precision in which attacks search, and models that have no view for it."""

import dataclasses
import functools

import pytest
import torch
from torch import nn

from pixelpart import attacks, data, models
from pixelpart.attacks import ATTACKS
from pixelpart.evaluation import measuring, searching
from pixelpart.evaluation.evaluate import evaluate
from pixelpart.evaluation.image_set import ImageSet
from pixelpart.evaluation.searching import choose_search, clean_logits
from pixelpart.view import check
from pixelpart.view.borrow import FrozenView
from pixelpart.view.check import trusted_view
from searches import CPU, EPS, plane_truth

pytestmark = pytest.mark.usefixtures("short_searches")


@pytest.mark.parametrize(("asked", "device", "chosen"), [
    ("auto", "cpu", "fp32"), ("auto", "cuda", "bf16"), ("fp32", "cuda", "fp32"), ("bf16", "cpu", "bf16"),
])  # fmt: skip
def test_auto_is_bf16_on_a_gpu_alone(asked, device, chosen):
    assert choose_search(asked, torch.device(device)) == chosen


def test_bf16_search_finds_what_fp32_confirms(net, labelled):
    wide, narrow = (evaluate(net, data=labelled, attacks="autoattack", eps=EPS, search=s) for s in ("fp32", "bf16"))
    assert narrow.entries[0]["settings"]["search"] == "bf16"
    assert narrow["autoattack"].warnings == wide["autoattack"].warnings
    assert abs(narrow["autoattack"].correct - wide["autoattack"].correct) <= 1


class Branching(nn.Module):
    """Cannot be read."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        return self.net(x) if x.mean() > -1 else self.net(2 * x)


class Widening(nn.Module):
    """In bf16 its second layer is handed fp32."""

    def __init__(self, net):
        super().__init__()
        self.net, self.by = net, nn.Conv2d(4, 4, 1)
        self.place = nn.Parameter(torch.zeros(4, 1, 1))
        with torch.no_grad():
            self.by.weight.copy_(torch.eye(4)[:, :, None, None])
            self.by.bias.zero_()

    def forward(self, x):
        acts = self.by(self.net.conv(x) + self.place)
        return self.net.linear(self.net.bn(acts).relu().flatten(1))


@pytest.mark.parametrize("wrap", [Branching, Widening])
def test_a_model_without_a_bf16_view_is_searched_as_it_is_and_the_entry_says_so(net, labelled, wrap):
    said = []
    model = wrap(net).eval()
    narrow = evaluate(model, data=labelled, attacks="autoattack", eps=EPS, search="bf16", say=said.append)
    plain = evaluate(net, data=labelled, attacks="autoattack", eps=EPS)
    assert narrow.flags["autoattack"].tolist() == plain.flags["autoattack"].tolist()
    assert len(said) == 1
    assert "in fp32" in said[0]
    assert narrow["autoattack"].entry["settings"]["search"] == "fp32"
    assert narrow["autoattack"].warnings == plain["autoattack"].warnings  # fp32 decides anyway


def test_in_fp32_an_unreadable_model_is_no_cause_for_doubt(net, labelled):
    said = []
    result = evaluate(Branching(net).eval(), data=labelled, attacks="apgd-ce", eps=EPS, search="fp32", say=said.append)
    assert said == []
    assert result["apgd-ce"].warnings == evaluate(net, data=labelled, attacks="apgd-ce", eps=EPS)["apgd-ce"].warnings


def test_a_view_that_says_something_else_than_the_model_is_not_trusted(net, labelled, monkeypatch):
    pictures = ImageSet(*labelled, CPU)
    clean = clean_logits(net, pictures, batch_size=7)
    assert torch.allclose(clean, net(labelled[0]), atol=1e-5)
    view, reason = trusted_view(net, labelled[0], "fp32")
    assert view is not net
    assert reason is None
    monkeypatch.setattr(check, "search_view", lambda model, **_: lambda x: -net(x))
    view, reason = trusted_view(net, labelled[0], "fp32")
    assert view is net
    assert "gives other logits" in reason


def test_a_view_that_errs_everywhere_breaks_nothing_that_fp32_does_not_confirm(plane, pair, monkeypatch):
    liar = nn.Sequential(nn.Flatten(), nn.Linear(108, 2))
    monkeypatch.setattr(searching, "trusted_view", lambda *_: (liar, None))
    flags = evaluate(plane, data=pair, attacks="autoattack", eps=EPS, search="bf16").flags["autoattack"]
    assert not (plane_truth(plane, *pair, EPS) & ~flags).any()


# -- attacks by so many steps


@pytest.mark.parametrize("name", ["pgd3", "mma3", "adaptive-pgd3", "adaptive-in3"])
def test_gradients_in_bf16_are_those_of_the_view_and_the_model_decides(name, monkeypatch):
    small = models.build("tiny-cnn", generator=torch.Generator().manual_seed(4)).eval()
    images = data.load("shapes", split="test")[0][:24]
    with torch.no_grad():
        small.linear.bias -= small(images / 255).mean(0)
        given = images, small(images / 255).argmax(1)
    seen, kinds = [], {"pgd": attacks.pgd, "mma": attacks.mma}

    def watched(kind, model, *args, **settings):
        seen.append(model)
        return kinds[kind](model, *args, **settings)

    for kind in kinds:
        entry = dataclasses.replace(ATTACKS[kind], run=functools.partial(watched, kind))
        monkeypatch.setitem(ATTACKS, kind, entry)
    wide, narrow = (evaluate(small, data=given, attacks=name, eps=0.002, search=search) for search in ("auto", "bf16"))
    half = len(seen) // 2
    assert all(model is small for model in seen[:half])
    assert all(isinstance(model, FrozenView) for model in seen[half:])
    assert seen[-1].features(images[:1] / 255).dtype == torch.bfloat16
    assert "search" not in wide[name].entry["settings"]
    assert narrow[name].entry["settings"] == wide[name].entry["settings"] | {"search": "bf16"}
    assert abs(narrow[name].correct - wide[name].correct) <= 1


def test_a_lying_view_breaks_nothing_under_pgd_either(plane, pair, monkeypatch):
    liar = nn.Sequential(nn.Flatten(), nn.Linear(108, 2))
    monkeypatch.setattr(measuring, "trusted_view", lambda *_: (liar, None))
    flags = evaluate(plane, data=pair, attacks="pgd5", eps=EPS, search="bf16").flags["pgd5"]
    assert not (plane_truth(plane, *pair, EPS) & ~flags).any()


def test_a_model_without_a_bf16_view_has_the_figure_of_fp32_under_pgd_and_the_entry_says_so(net, labelled):
    said = []
    narrow = evaluate(Branching(net).eval(), data=labelled, attacks="pgd5", eps=EPS, search="bf16", say=said.append)
    assert ["torch.fx cannot trace this model; the search runs in fp32" in line for line in said] == [True]
    assert narrow["pgd5"].entry["settings"]["search"] == "fp32"
    assert narrow.flags["pgd5"].tolist() == evaluate(net, data=labelled, attacks="pgd5", eps=EPS).flags["pgd5"].tolist()
