import math

import pytest
import torch
import torch.nn.functional as F

from pixelpart.objectives import at


def test_at_equals_cross_entropy_on_the_adversarial_images(from_logits, draw_logits):
    clean, adv, y = draw_logits(0)
    torch.testing.assert_close(from_logits(at, clean, adv, y), F.cross_entropy(adv, y))
    assert torch.equal(from_logits(at, -clean, adv, y), from_logits(at, clean, adv, y))


def test_at_of_a_mixed_image_by_hand(from_logits):
    adv = torch.tensor([[0.25, 0.75]]).log()
    expected = 0.9 * math.log(4) + 0.1 * math.log(4 / 3)
    assert from_logits(at, -adv, adv, torch.tensor([[0.9, 0.1]])).item() == pytest.approx(expected)
