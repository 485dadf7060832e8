"""Where the margin has no gradient Square is tried again, and nowhere else."""

import dataclasses
import importlib

import pytest
import torch
from torch import nn

from pixelpart.attacks.autoattack import SEARCHES, VERSIONS, autoattack, hunt, samples_for
from planes import Plane, right_labels, short

module = importlib.import_module("pixelpart.attacks.autoattack")  # the function of that name hides it
AGAIN = "square-again"


class Steps(nn.Module):
    """A network whose input is rounded to 16 levels, in the images whose first pixel says so."""

    def __init__(self, net, above=-1.0):
        super().__init__()
        self.net, self.above = net, above

    def forward(self, x):
        rough = (x[:, :1, :1, :1] > self.above).detach()
        return self.net(torch.where(rough, (15 * x).round() / 15, x))


@pytest.fixture
def run(monkeypatch):
    """Flags with the last part and without it, and the samples that it was tried at."""
    tried = set()

    def noting(name, search, net, judge, take, clean, tries, **settings):
        tried.update(sample for sample, _ in tries if name == AGAIN)
        return hunt(name, search, net, judge, take, clean, tries, **settings)

    def both(model, x, y, budget, *, version="standard", seed=0):
        tried.clear()
        first = short(steps=3, restarts=1 if version == "standard" else 2)
        flags = []
        for parts in (first | {AGAIN: dataclasses.replace(first["square"], blind=True)}, first):
            monkeypatch.setitem(VERSIONS, version, parts)
            generator = torch.Generator().manual_seed(seed)
            flags.append(autoattack(model, x, y, budget, version=version, slots=16, generator=generator))
        return *flags, tried

    monkeypatch.setattr(module, "hunt", noting)
    return both


@pytest.mark.parametrize("version", ["standard", "plus"])
def test_without_gradients_it_breaks_more_and_mends_nothing(make_batch, run, version):
    plane = Plane()
    x, _, _ = make_batch(40)
    y = right_labels(Steps(plane), x)
    fewer = 0
    for seed in range(3):
        left, before, tried = run(Steps(plane), x, y, 0.1, version=version, seed=seed)
        assert not (left & ~before).any()
        assert tried == set(before.nonzero()[:, 0].tolist())
        fewer += int((before & ~left).sum())
    assert fewer > 0


@pytest.mark.parametrize("version", ["standard", "plus"])
def test_with_gradients_it_is_not_tried_and_no_flag_moves(make_net, make_batch, run, version):
    net = make_net().eval()
    x, _, budget = make_batch(20)
    left, before, tried = run(net, x, right_labels(net, x), budget, version=version)
    assert torch.equal(left, before)
    assert 0 < int(left.sum()) < 17
    assert tried == set()


def test_of_samples_with_and_without_gradients_those_without_are_tried(make_batch, run):
    x, _, _ = make_batch(40)
    model = Steps(Plane(), above=0.5)
    rough = x[:, 0, 0, 0] > 0.5
    left, before, tried = run(model, x, right_labels(model, x), 0.03)
    assert tried == set((before & rough).nonzero()[:, 0].tolist())
    assert torch.equal(left[~rough], before[~rough])
    assert 5 < len(tried) < int(before.sum()) - 5


def bent(x):
    """The gradient is NaN at the first image, zero at the second, and NaN at one pixel of the third."""

    def steep(some):
        """0, by a root that is infinitely steep there."""
        return (some - some.detach()).abs().sqrt().sum()

    score = torch.stack((steep(x[0]), 0 * x[1].sum(), steep(x[2, 0]) + x[2, 1].sum(), x[3].sum()))
    return torch.stack((score, -score), 1)


def test_nan_and_zero_everywhere_are_no_gradient():
    x, y = torch.rand(4, 3, 2, 2), torch.zeros(4, dtype=torch.long)
    blind = dataclasses.replace(SEARCHES["square"], blind=True)

    def tried(search, standing):
        return samples_for(search, bent, lambda samples: (x[samples], y[samples], x[samples]), standing, slots=4)

    assert tried(blind, [0, 1, 2, 3]) == [0, 1]
    assert tried(blind, []) == []
    assert tried(SEARCHES["square"], [0, 1, 2, 3]) == [0, 1, 2, 3]


def test_it_is_square_and_comes_last():
    for parts in VERSIONS.values():
        assert list(parts)[-1] == AGAIN
        assert parts[AGAIN] == dataclasses.replace(SEARCHES["square"], blind=True)
        assert [name for name, part in parts.items() if part.blind] == [AGAIN]
    assert not any(search.blind for search in SEARCHES.values())
