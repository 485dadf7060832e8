import pytest
import torch


class Lookup:
    """A model with given logits: images of zeros give the clean logits, images of ones the adversarial."""

    def __init__(self, clean, adv):
        self.answers = {0.0: clean, 1.0: adv}

    def __call__(self, x):
        return self.answers[float(x.flatten()[0])]


@pytest.fixture
def from_logits():
    """Calls an objective with given logits."""

    def call(objective, clean, adv, y, **settings):
        x = torch.zeros(len(y), 3, 1, 1, dtype=clean.dtype)
        return objective(Lookup(clean, adv), x, x + 1, y, **settings)

    return call


@pytest.fixture
def draw_logits():
    def draw(seed, b=6, k=5, scale=3.0):
        g = torch.Generator().manual_seed(seed)
        clean, adv = (scale * torch.randn(b, k, generator=g, dtype=torch.float64) for _ in range(2))
        return clean.requires_grad_(), adv.requires_grad_(), torch.randint(k, (b,), generator=g)

    return draw
