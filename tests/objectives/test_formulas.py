"""AT, TRADES and MART by hand, and against their published formulas."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pixelpart.objectives import at, mart, trades

# -- AT


def test_at_equals_cross_entropy_on_the_adversarial_images(from_logits, draw_logits):
    clean, adv, y = draw_logits(0)
    torch.testing.assert_close(from_logits(at, clean, adv, y), F.cross_entropy(adv, y))
    assert torch.equal(from_logits(at, -clean, adv, y), from_logits(at, clean, adv, y))


def test_at_of_a_mixed_image_by_hand(from_logits):
    adv = torch.tensor([[0.25, 0.75]]).log()
    expected = 0.9 * math.log(4) + 0.1 * math.log(4 / 3)
    assert from_logits(at, -adv, adv, torch.tensor([[0.9, 0.1]])).item() == pytest.approx(expected)


# -- TRADES


def as_published(clean, adv, y, beta):
    """The loss of the TRADES paper's code, in torch's own pieces."""
    divergence = nn.KLDivLoss(reduction="sum")(F.log_softmax(adv, dim=1), F.softmax(clean, dim=1))
    return F.cross_entropy(clean, y) + beta * (1.0 / len(y)) * divergence


def test_trades_equals_ce_when_the_images_are_the_same(from_logits, draw_logits):
    clean, _, y = draw_logits(0)
    torch.testing.assert_close(from_logits(trades, clean, clean, y), F.cross_entropy(clean, y))


@pytest.mark.parametrize(("beta", "k"), [(6.0, 10), (1.0, 2), (3.5, 200), (0.0, 3)])
def test_trades_equals_the_published_formula_in_value_and_gradient(beta, k, from_logits, draw_logits):
    clean, adv, y = draw_logits(1, k=k)
    ours, theirs = from_logits(trades, clean, adv, y, beta=beta), as_published(clean, adv, y, beta)
    torch.testing.assert_close(ours, theirs)
    grads = (torch.autograd.grad(loss, (clean, adv), materialize_grads=True) for loss in (ours, theirs))
    for mine, other in zip(*grads, strict=True):
        torch.testing.assert_close(mine, other)


def test_trades_of_a_mixed_image_by_hand(from_logits):
    """p = (.5, .5), q = (.25, .75), target (.75, .25)."""
    clean, adv = (torch.tensor([v], dtype=torch.float64).log() for v in ([0.5, 0.5], [0.25, 0.75]))
    target = torch.tensor([[0.75, 0.25]], dtype=torch.float64)
    divergence = 0.5 * math.log(0.5 / 0.25) + 0.5 * math.log(0.5 / 0.75)
    assert from_logits(trades, clean, adv, target, beta=3.0).item() == pytest.approx(math.log(2) + 3 * divergence)


# -- MART


def as_written(clean, adv, y, beta):
    """The paper's formula with probabilities, sample by sample."""
    p, q = clean.softmax(1), adv.softmax(1)
    total = 0.0
    for i, label in enumerate(y.tolist()):
        wrong = [q[i, k] for k in range(q.shape[1]) if k != label]
        boosted = -torch.log(q[i, label]) - torch.log(1 - max(wrong))
        divergence = sum(p[i, k] * torch.log(p[i, k] / q[i, k]) for k in range(p.shape[1]))
        total = total + boosted + beta * divergence * (1 - p[i, label])
    return total / len(y)


def test_mart_by_hand(from_logits):
    """p = (.5, .25, .25) and q = (.25, .5, .25) with label 0."""
    clean, adv = (torch.tensor([v], dtype=torch.float64).log() for v in ([0.5, 0.25, 0.25], [0.25, 0.5, 0.25]))
    expected = math.log(4) + math.log(2) + 2.0 * (0.5 * math.log(2) - 0.25 * math.log(2)) * 0.5
    assert from_logits(mart, clean, adv, torch.tensor([0]), beta=2.0).item() == pytest.approx(expected)


def test_mart_of_a_mixed_image_by_hand(from_logits):
    """p = (.5, .25, .25), q = (.25, .5, .25), target (.75, .25, 0): the label is 0, the most likely other class 1."""
    clean, adv = (torch.tensor([v], dtype=torch.float64).log() for v in ([0.5, 0.25, 0.25], [0.25, 0.5, 0.25]))
    target = torch.tensor([[0.75, 0.25, 0.0]], dtype=torch.float64)
    boosted = 0.75 * math.log(4) + 0.25 * math.log(2) + math.log(2)
    confidence = 0.75 * 0.5 + 0.25 * 0.25
    expected = boosted + 2.0 * 0.25 * math.log(2) * (1 - confidence)
    assert from_logits(mart, clean, adv, target, beta=2.0).item() == pytest.approx(expected)


@pytest.mark.parametrize(("beta", "k"), [(6.0, 10), (0.0, 4), (5.0, 2), (6.0, 200)])
def test_mart_equals_the_formula_written_with_probabilities(beta, k, from_logits, draw_logits):
    clean, adv, y = draw_logits(1, k=k, scale=2.0)
    ours, theirs = from_logits(mart, clean, adv, y, beta=beta), as_written(clean, adv, y, beta)
    torch.testing.assert_close(ours, theirs)
    grads = (torch.autograd.grad(loss, (clean, adv), materialize_grads=True) for loss in (ours, theirs))
    for mine, other in zip(*grads, strict=True):
        torch.testing.assert_close(mine, other)


@pytest.mark.parametrize("classes", [2, 10])
def test_mart_is_finite_on_extreme_logits(classes, from_logits):
    rows = torch.tensor([[1e4, -1e4], [-1e4, 1e4], [1e4, 1e4], [-1e4, -1e4], [0.0, 0.0], [0.0, 1e4]])
    rows = torch.cat([rows, torch.zeros(6, classes - 2)], dim=1)
    for y in (0, 1):
        for shift in range(6):
            clean, adv = rows.clone().requires_grad_(), rows.roll(shift, 0).requires_grad_()
            loss = from_logits(mart, clean, adv, torch.full((6,), y))
            assert loss.isfinite()
            assert all(grad.isfinite().all() for grad in torch.autograd.grad(loss, (clean, adv)))


def test_a_confident_wrong_prediction_costs_the_distance_of_its_logits(from_logits):
    """In float32 1 - p is 0 here; computed from the logits the loss is 2 x 200, and 0 for the KL."""
    z = torch.tensor([[0.0, 200.0]])
    assert from_logits(mart, z, z, torch.tensor([0])).item() == pytest.approx(400.0)
