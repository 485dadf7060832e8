import torch
import torch.nn.functional as F

from pixelpart.objectives import at


def test_at_equals_cross_entropy_on_the_adversarial_images_alone(from_logits, draw_logits):
    clean, adv, y = draw_logits(0)
    torch.testing.assert_close(from_logits(at, clean, adv, y), F.cross_entropy(adv, y))
    assert torch.equal(from_logits(at, -clean, adv, y), from_logits(at, clean, adv, y))
