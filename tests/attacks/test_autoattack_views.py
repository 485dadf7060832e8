"""What AutoAttack searches, and who decides."""

import threading

import pytest
import torch
from torch import nn

from pixelpart.attacks.autoattack import autoattack
from pixelpart.attacks.search import is_correct
from pixelpart.view import check
from pixelpart.view.check import agrees
from planes import Plane

pytestmark = pytest.mark.usefixtures("short_versions")


# -- what is searched, and who decides


def liar(x):
    """Finds an error wherever it looks, more of one at each look."""
    return torch.stack((-x.flatten(1).sum(1), *[x.flatten(1).sum(1) + k for k in range(4)]), 1)


@pytest.mark.parametrize("search", ["fp32", "bf16"])
def test_a_view_that_errs_everywhere_breaks_nothing_that_the_model_does_not_confirm(make_batch, monkeypatch, search):
    x, _, _ = make_batch(10)
    plane = Plane()
    with torch.no_grad():
        plane.linear.weight.mul_(0.01)
        plane.linear.bias.mul_(10)
    y = plane(x).argmax(1)
    assert (plane.slack(x, y, 0.05) > 0).all()
    monkeypatch.setattr(check, "trusted_view", lambda *_: (liar, None))
    assert autoattack(plane, x, y, 0.05, search=search).all()


def test_a_view_that_sees_no_error_at_all_does_not_hide_one(make_batch, monkeypatch):
    """At the end of each try the model itself is asked."""
    x, _, _ = make_batch(10)
    plane = Plane()
    y = plane(x).argmax(1)
    blind = lambda x: plane(x) + 1e6 * nn.functional.one_hot(y_of(x), 5)  # noqa: E731
    lookup = {image.sum().item(): label for image, label in zip(x, y, strict=True)}

    def y_of(images):
        sums = torch.tensor(list(lookup))
        nearest = (images.flatten(1).sum(1)[:, None] - sums).abs().argmin(1)
        return torch.stack(list(lookup.values()))[nearest]

    monkeypatch.setattr(check, "trusted_view", lambda *_: (blind, None))
    assert not autoattack(plane, x, y, 0.3).all()


class Branching(Plane):
    """Cannot be read: what it does depends on its input."""

    def forward(self, x):
        return super().forward(x) if x.mean() > -1 else super().forward(2 * x)


class Locked(Plane):
    """Cannot be copied."""

    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()


class Widening(nn.Module):
    """Adds fp32 numbers in the middle, so that what follows is not in bf16 though its weights are."""

    def __init__(self):
        super().__init__()
        g = torch.Generator().manual_seed(3)
        self.a, self.b, self.fc = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 1), nn.Linear(64, 5)
        self.place = nn.Parameter(torch.zeros(4, 4, 4))
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(0.5 * torch.randn(parameter.shape, generator=g))

    def forward(self, x):
        return self.fc(self.b(self.a(x).tanh() + self.place).flatten(1))


class Twofaced(nn.Module):
    """It has features and a head, and its forward pass is not the one behind the other."""

    def __init__(self):
        super().__init__()
        g = torch.Generator().manual_seed(4)
        self.conv, self.linear = nn.Conv2d(3, 6, 3, padding=1), nn.Linear(6, 5)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=g))

    @property
    def pooled_linear(self):
        return self.linear

    def features(self, x):
        return self.conv(x).tanh()

    def head(self, acts):
        return self.linear(acts.mean((2, 3)))

    def forward(self, x):
        return -self.head(self.features(x))


@pytest.mark.parametrize("make", [Branching, Locked, Widening, Twofaced])
@pytest.mark.parametrize("search", ["fp32", "bf16"])
def test_a_model_without_a_view_that_agrees_with_it_is_searched_as_it_is(make, search, make_batch, monkeypatch):
    """Beside the same model as a plain function, of which there is no view."""
    model = make().eval()
    x, _, _ = make_batch(8)
    y = model(x).argmax(1)
    robust = autoattack(model, x, y, 0.08, search=search)
    assert torch.equal(robust, autoattack(lambda x: model(x), x, y, 0.08))
    assert not robust.all()


def test_agreement_is_within_a_tenth_of_the_spread_in_bf16_and_to_rounding_in_fp32(make_batch):
    plane = Plane()
    x, _, _ = make_batch(8)
    z = plane(x).detach()

    def off(share):
        return lambda x: plane(x).detach() + share * z.std()

    assert agrees(off(0.09), x, z, torch.bfloat16)
    assert not agrees(off(0.11), x, z, torch.bfloat16)
    assert agrees(off(0.0009), x, z, None)
    assert not agrees(off(0.002), x, z, None)
    assert not agrees(lambda x: plane(x) * torch.nan, x, z, None)
    assert not agrees(lambda x: plane(x.bfloat16()), x, z, torch.bfloat16)  # raises


# -- NaN


class Holes(Plane):
    """NaN at every image that is not one of those it knows."""

    def __init__(self, known, spoilt):
        super().__init__()
        self.known, self.spoilt = known, spoilt

    def forward(self, x):
        new = ~(x.detach().flatten(1)[:, None] == self.known.flatten(1)).all(2).any(1)
        return super().forward(x) + torch.where(new, torch.nan, 0.0)[:, None] * self.spoilt


@pytest.mark.parametrize("spoilt", [torch.ones(5), torch.tensor([1.0, 0, 0, 0, 0])])
def test_what_the_model_has_no_answer_to_is_not_right(make_batch, spoilt):
    x, _, _ = make_batch(6)
    y = Plane()(x).argmax(1)
    assert autoattack(Holes(x, spoilt), x, y, 0.0).all()
    assert not autoattack(Holes(x, spoilt), x, y, 0.05).any()


def test_nan_is_not_right_whatever_its_place():
    logits = torch.tensor([[2.0, 1], [torch.nan, 1], [1, torch.nan], [1, 2], [torch.nan, torch.nan]])
    assert is_correct(logits, torch.zeros(5, dtype=torch.long)).tolist() == [True, False, False, False, False]
    assert is_correct(logits, torch.ones(5, dtype=torch.long)).tolist() == [False, False, False, True, False]
