"""Losses by hand, against loops and against torch."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pixelpart.errors import UserError
from pixelpart.losses import (
    LOSSES,
    at_class,
    ce,
    dlr,
    kl,
    likeliest,
    margin,
    one_hot,
    smoothed,
    targeted_dlr,
    targeted_margin,
    without,
)


def draw(seed, b=6, k=5):
    g = torch.Generator().manual_seed(seed)
    return 3 * torch.randn(b, k, generator=g, dtype=torch.float64), torch.randint(k, (b,), generator=g)


def probabilities(row):
    total = sum(math.exp(z) for z in row)
    return [math.exp(z) / total for z in row]


def test_hand_computed_values():
    z = torch.tensor([[1.0, 3.0, 0.0, -1.0], [1.0, 3.0, 0.0, -1.0]])
    y = torch.tensor([1, 0])
    assert margin(z, y).tolist() == [-2.0, 2.0]
    assert dlr(z, y).tolist() == pytest.approx([-2 / 3, 2 / 3])
    assert ce(torch.zeros(1, 4), torch.tensor([2])).tolist() == pytest.approx([math.log(4)])
    even, certain = torch.zeros(1, 2), torch.tensor([[math.log(3.0), 0.0]])
    assert kl(even, certain).tolist() == pytest.approx([0.75 * math.log(1.5) + 0.25 * math.log(0.5)])
    assert at_class(z, y).tolist() == [3.0, 1.0]
    assert without(z, y)[0].tolist() == [1.0, -math.inf, 0.0, -1.0]


def test_targeted_losses_by_hand():
    z = torch.tensor([[5.0, 1.0, 4.0, 2.0, -7.0]]).expand(3, 5)
    y, target = torch.tensor([0, 0, 1]), torch.tensor([2, 4, 0])
    assert targeted_margin(z, y, target).tolist() == [-1.0, -12.0, 4.0]
    assert targeted_dlr(z, y, target).tolist() == pytest.approx([-1 / 3.5, -12 / 3.5, 4 / 3.5])  # 5 - (2 + 1) / 2
    y, target = torch.tensor([0]), torch.tensor([1])
    assert targeted_dlr(torch.tensor([[5.0, 1.0, 3.0]]), y, target).tolist() == pytest.approx([-4 / 4])
    assert targeted_dlr(torch.tensor([[5.0, 1.0]]), y, target).tolist() == [-4.0]


@settings(deadline=None, max_examples=10)
@given(seed=st.integers(0, 10_000), k=st.integers(3, 12))
def test_every_loss_equals_a_loop_over_samples(seed, k):
    z, y = draw(seed, k=k)
    other, _ = draw(seed + 1, k=k)
    for i in range(len(y)):
        row, label = z[i].tolist(), int(y[i])
        p, q = probabilities(row), probabilities(other[i].tolist())
        lead = max(v for j, v in enumerate(row) if j != label) - row[label]
        ranked = sorted(row, reverse=True)
        assert ce(z, y)[i].item() == pytest.approx(-math.log(p[label]))
        assert margin(z, y)[i].item() == pytest.approx(lead)
        assert dlr(z, y)[i].item() == pytest.approx(lead / (ranked[0] - ranked[2]))
        assert kl(z, other)[i].item() == pytest.approx(sum(b * math.log(b / a) for a, b in zip(p, q, strict=True)))


def test_targets_by_hand():
    """p = (1/2, 1/4, 1/4) and the target (1/2, 1/2, 0)."""
    z = torch.tensor([[0.5, 0.25, 0.25]]).log()
    half = torch.tensor([[0.5, 0.5, 0.0]])
    assert ce(z, half).tolist() == pytest.approx([1.5 * math.log(2)])
    y = torch.tensor([2, 0])
    assert one_hot(y, 3).tolist() == [[0, 0, 1], [1, 0, 0]]
    assert smoothed(y, 0.3, 3).tolist() == [pytest.approx([0.1, 0.1, 0.8]), pytest.approx([0.8, 0.1, 0.1])]
    assert smoothed(half, 0.3, 3).tolist() == [pytest.approx([0.45, 0.45, 0.1])]
    assert likeliest(smoothed(y, 0.3, 3)).tolist() == likeliest(y).tolist() == [2, 0]


def test_dlr_equals_the_published_form_with_sorted_logits():
    z, y = draw(3, b=200)
    ranked, order = z.sort(dim=1)
    right = (order[:, -1] == y).double()
    z_y = z[torch.arange(200), y]
    published = -(z_y - ranked[:, -2] * right - ranked[:, -1] * (1 - right)) / (ranked[:, -1] - ranked[:, -3] + 1e-12)
    torch.testing.assert_close(dlr(z, y), published)


@settings(deadline=None, max_examples=10)
@given(seed=st.integers(0, 10_000), shift=st.floats(-50, 50), scale=st.floats(0.01, 100))
def test_a_shift_changes_no_loss_and_a_scale_does_not_change_dlr(seed, shift, scale):
    z, y = draw(seed)
    for name, loss in LOSSES.items():
        target = draw(seed + 1)[0] if name == "kl" else y
        torch.testing.assert_close(loss(z + shift, target), loss(z, target), atol=1e-9, rtol=1e-9)
    torch.testing.assert_close(dlr(z * scale, y), dlr(z, y), atol=1e-8, rtol=1e-8)


def test_dlr_needs_three_classes():
    with pytest.raises(UserError, match="at least 3 classes, not 2; choose"):
        dlr(*draw(6, k=2))


@pytest.mark.parametrize("name", list(LOSSES))
def test_finite_values_and_gradients_on_extreme_logits(name):
    z = torch.tensor([[1e4, -1e4, 0.0], [-1e4, 1e4, 1e4], [0.0, 0.0, 0.0]], requires_grad=True)
    y = torch.tensor([1, 0, 2])
    target = -z.detach() if name == "kl" else y
    loss = LOSSES[name](z, target)
    loss.sum().backward()
    assert loss.isfinite().all()
    assert z.grad.isfinite().all()
