import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pixelpart.objectives import trades


def as_published(clean, adv, y, beta):
    """The loss of the TRADES paper's code, in torch's own pieces."""
    divergence = nn.KLDivLoss(reduction="sum")(F.log_softmax(adv, dim=1), F.softmax(clean, dim=1))
    return F.cross_entropy(clean, y) + beta * (1.0 / len(y)) * divergence


def test_trades_equals_ce_when_beta_is_zero(from_logits, draw_logits):
    clean, adv, y = draw_logits(0)
    torch.testing.assert_close(from_logits(trades, clean, adv, y, beta=0.0), F.cross_entropy(clean, y))


def test_trades_equals_ce_when_the_images_are_the_same(from_logits, draw_logits):
    clean, _, y = draw_logits(0)
    torch.testing.assert_close(from_logits(trades, clean, clean, y), F.cross_entropy(clean, y))


@pytest.mark.parametrize(("beta", "k"), [(6.0, 10), (1.0, 2), (3.5, 200)])
def test_trades_equals_the_published_formula_in_value_and_gradient(beta, k, from_logits, draw_logits):
    clean, adv, y = draw_logits(1, k=k)
    ours, theirs = from_logits(trades, clean, adv, y, beta=beta), as_published(clean, adv, y, beta)
    torch.testing.assert_close(ours, theirs)
    grads = (torch.autograd.grad(loss, (clean, adv)) for loss in (ours, theirs))
    for mine, other in zip(*grads, strict=True):
        assert mine.abs().max() > 0
        torch.testing.assert_close(mine, other)


def test_the_default_beta_is_six(from_logits, draw_logits):
    clean, adv, y = draw_logits(2)
    assert torch.equal(from_logits(trades, clean, adv, y), from_logits(trades, clean, adv, y, beta=6.0))


def test_trades_of_a_mixed_image_by_hand(from_logits):
    """p = (.5, .5), q = (.25, .75), target (.75, .25)."""
    clean, adv = (torch.tensor([v], dtype=torch.float64).log() for v in ([0.5, 0.5], [0.25, 0.75]))
    target = torch.tensor([[0.75, 0.25]], dtype=torch.float64)
    divergence = 0.5 * math.log(0.5 / 0.25) + 0.5 * math.log(0.5 / 0.75)
    assert from_logits(trades, clean, adv, target, beta=3.0).item() == pytest.approx(math.log(2) + 3 * divergence)
