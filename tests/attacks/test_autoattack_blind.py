"""Where the margin's gradient leads nowhere Square is tried again, and at no other image."""

import dataclasses
import importlib

import pytest
import torch

from fronts import Behind, Straight, by_no_grad, rippled, rounded, straight, turned
from pixelpart.attacks.autoattack import SEARCHES, VERSIONS, autoattack, hunt, samples_for
from pixelpart.attacks.search import spread
from pixelpart.attacks.square import square_search
from planes import Plane, right_labels, short

module = importlib.import_module("pixelpart.attacks.autoattack")  # the function of that name hides it
AGAIN = "square-again"
BLIND = dataclasses.replace(SEARCHES["square"], blind=True)

fronts = pytest.mark.parametrize("front", [rounded, turned, rippled])


@pytest.fixture
def run(monkeypatch):
    """Flags with the last part and without it, and the samples that it was tried at."""
    tried = set()

    def noting(name, search, net, judge, take, clean, tries, **settings):
        tried.update(sample for sample, _ in tries if name == AGAIN)
        return hunt(name, search, net, judge, take, clean, tries, **settings)

    def both(model, x, y, budget, *, version="standard"):
        tried.clear()
        first = short(steps=3, restarts=1 if version == "standard" else 2)
        flags = []
        again = dataclasses.replace(square_search(200), blind=True)  # so much longer that chance has no say
        for parts in (first | {AGAIN: again}, first):
            monkeypatch.setitem(VERSIONS, version, parts)
            flags.append(autoattack(model, x, y, budget, version=version, slots=16))
        return *flags, tried

    monkeypatch.setattr(module, "hunt", noting)
    return both


@fronts
@pytest.mark.parametrize("version", ["standard", "plus"])
def test_astray_it_breaks_more_and_mends_nothing(make_batch, run, front, version):
    model = Behind(front, Plane())
    x, _, _ = make_batch(40)
    left, before, tried = run(model, x, right_labels(model, x), 0.1, version=version)
    assert tried == set(before.nonzero()[:, 0].tolist())
    assert not (left & ~before).any()
    assert int(left.sum()) < int(before.sum())


@pytest.mark.parametrize("version", ["standard", "plus"])
def test_with_gradients_it_is_not_tried_and_no_flag_moves(make_net, make_batch, run, version):
    net = make_net().eval()
    x, _, budget = make_batch(20)
    left, before, tried = run(net, x, right_labels(net, x), budget, version=version)
    assert torch.equal(left, before)
    assert 0 < int(left.sum()) < 17
    assert tried == set()


@fronts
def test_of_samples_with_honest_and_other_gradients_the_others_are_tried(make_batch, run, front):
    x, _, _ = make_batch(40)
    model = Behind(front, Plane(), above=0.5)
    astray = x[:, 0, 0, 0] > 0.5
    left, before, tried = run(model, x, right_labels(model, x), 0.03)
    assert tried == set((before & astray).nonzero()[:, 0].tolist())
    assert torch.equal(left[~astray], before[~astray])
    assert 5 < len(tried) < int(before.sum()) - 5


def chosen(model, x, y, budget, *, standing=None, slots=4, search=BLIND):
    """The samples that a search is tried at."""
    room = spread(budget, x)
    numbers = range(len(x)) if standing is None else standing
    return samples_for(search, model, lambda some: (x[some], y[some], room[some]), numbers, slots=slots)


@fronts
def test_the_choice_is_each_samples_own(make_batch, front):
    """By any number of slots, among any others."""
    x, _, _ = make_batch(40)
    model = Behind(front, Plane(), above=0.5)
    y = model(x).argmax(1)
    astray = (x[:, 0, 0, 0] > 0.5).nonzero()[:, 0].tolist()
    for slots in (1, 3, 16, 64):
        assert chosen(model, x, y, 0.03, slots=slots) == astray
    assert chosen(model, x, y, 0.03, standing=range(1, 40, 3)) == [one for one in astray if one % 3 == 1]


def summed(rise):
    """Logits whose margin, for class 0, is a function of how far the sum of the pixels lies above that of grey."""

    def logits(x):
        sums = rise((x - 0.5).flatten(1).sum(1))
        return torch.stack((torch.ones_like(sums), sums), 1)

    return logits


def test_a_fifth_of_what_the_gradient_tells_is_enough():
    """The margin rises up to a ceiling: the shortest step, a quarter of the budget, tells budget * pixels / 4."""
    x, y, budget = torch.full((2, 3, 4, 4), 0.5), torch.zeros(2, dtype=torch.long), 0.1
    ceiling = torch.tensor([0.19, 0.21]) * budget * x[0].numel() / 4
    assert chosen(summed(lambda sums: sums.minimum(ceiling)), x, y, budget) == [0]


def test_one_of_three_steps_that_brings_it_is_enough():
    """The margin rises at one distance alone: the whole budget, a half, a quarter, and one that is not tried."""
    x, y, budget = torch.full((4, 3, 4, 4), 0.5), torch.zeros(4, dtype=torch.long), 0.1
    there = torch.tensor([1, 0.5, 0.25, 0.75]) * budget * x[0].numel()

    def rise(sums):
        return sums.where((sums.abs() < 0.01) | ((sums - there).abs() < 0.01), 0)

    assert chosen(summed(rise), x, y, budget) == [3]


def test_no_room_for_a_step_is_no_reason(make_batch):
    """Neither a budget of 0 nor pixels that are at the end of [0, 1]."""
    plane = Plane()
    x, _, _ = make_batch(8)
    y = plane(x).argmax(1)
    assert chosen(plane, x, y, 0.0) == []
    white = torch.ones_like(x)
    white[:, 0, 0, 0] = 0.5
    assert chosen(summed(lambda sums: sums), white, 0 * y, 0.1) == []


def bent(x):
    """The gradient is NaN at the first image, zero at the second, NaN at one colour of the third and the fourth.

    It points the wrong way in the other colours of the fourth.
    """

    def steep(some):
        """0, by a root that is infinitely steep there."""
        return (some - some.detach()).abs().sqrt().sum()

    mixed = steep(x[2, 0]) + x[2, 1:].sum(), steep(x[3, 0]) + turned(x[3, 1:]).sum()
    score = torch.stack((steep(x[0]), 0 * x[1].sum(), *mixed, x[4].sum()))
    return torch.stack((score, -score), 1)


def test_nan_and_zero_everywhere_are_no_gradient():
    x, y = torch.rand(5, 3, 2, 2), torch.zeros(5, dtype=torch.long)
    assert chosen(bent, x, y, 0.1, slots=5) == [0, 1, 3]
    assert chosen(bent, x, y, 0.1, slots=5, standing=[]) == []
    assert chosen(bent, x, y, 0.1, slots=5, search=SEARCHES["square"]) == [0, 1, 2, 3, 4]


def test_it_is_square_and_comes_last():
    for parts in VERSIONS.values():
        assert list(parts)[-1] == AGAIN
        assert parts[AGAIN] == BLIND
        assert [name for name, part in parts.items() if part.blind] == [AGAIN]
    assert not any(search.blind for search in SEARCHES.values())


@pytest.mark.parametrize("through", [straight, by_no_grad])
def test_a_gradient_that_passes_straight_through_rounding_is_followed(make_batch, monkeypatch, through):
    """The network's own gradient, not that of what it computes, which is zero."""
    monkeypatch.setitem(VERSIONS, "standard", {"apgd-ce": short(steps=3)["apgd-ce"]})
    x, _, _ = make_batch(40)
    hidden, passed = (Straight(front, Plane()) for front in (rounded, through))
    left, blind = (int(autoattack(model, x, right_labels(model, x), 0.1).sum()) for model in (passed, hidden))
    assert left < blind - 5
