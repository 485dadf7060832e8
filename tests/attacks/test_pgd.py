"""PGD against a plain implementation, its starts, losses and precisions."""

import math

import pytest
import torch

from pixelpart.attacks import draw_noise, pgd, project, start_point
from pixelpart.errors import UserError
from pixelpart.losses import LOSSES, kl


def sample_loss(logits, name, label, clean):
    """The loss of one row of logits, written with exponentials."""
    p = logits.exp() / logits.exp().sum()
    others = [k for k in range(len(logits)) if k != label]
    if name == "ce":
        return -p[label].log()
    if name == "kl":
        return sum(clean[k] * (clean[k] / p[k]).log() for k in range(len(logits)))
    lead = max(logits[k] for k in others) - logits[label]
    ranked = sorted(logits, reverse=True)
    return lead if name == "margin" else lead / (ranked[0] - ranked[2])


def naive_pgd(net, x, y, budget, first, *, step_size, steps, loss):
    """PGD one sample and one pixel at a time, in Python's floats."""
    net = net.eval()
    out = torch.empty_like(x)
    for i in range(len(x)):
        z = net(x[i : i + 1])[0].detach()
        clean, adv = z.exp() / z.exp().sum(), first[i].clone()
        for _ in range(steps):
            leaf = adv.clone().requires_grad_()
            sample_loss(net(leaf[None])[0], loss, int(y[i]), clean).backward()
            for c in range(x.shape[1]):
                for h in range(x.shape[2]):
                    for w in range(x.shape[3]):
                        g, at, b = leaf.grad[c, h, w].item(), x[i, c, h, w].item(), budget[i, 0, h, w].item()
                        value = adv[c, h, w].item() + step_size * (math.copysign(1, g) if g else 0)
                        adv[c, h, w] = min(max(value, at - b, 0.0), at + b, 1.0)
        out[i] = adv
    return out


@pytest.mark.parametrize("loss", list(LOSSES))
def test_equals_a_loop_over_samples_and_pixels(loss, make_net, make_batch):
    net = make_net(dtype=torch.float64)
    x, y, budget = make_batch(3, dtype=torch.float64)
    first = start_point(x, budget, draw_noise(x, kind="uniform"), kind="uniform")
    settings = {"step_size": 0.02, "steps": 6, "loss": loss}
    expected = naive_pgd(make_net(dtype=torch.float64), x, y, budget, first, **settings)
    torch.testing.assert_close(pgd(net, x, y, budget, start="uniform", **settings), expected, atol=1e-15, rtol=0)


def test_the_change_stays_within_the_budget_for_any_number_of_steps(make_net, make_batch):
    """The paper's own update rule lets it grow with every step, to 70/255 after ten."""
    net, (x, y, _) = make_net(), make_batch()
    budget = torch.full((4, 1, 4, 4), 7 / 255)
    budget[..., ::2] = 8 / 255
    for steps in (1, 10, 100):
        x_adv = pgd(net, x, y, budget, step_size=2 / 255, steps=steps)
        assert ((x_adv - x).abs() - budget).max() <= 1e-6
    inner = (x > 0.1) & (x < 0.9)
    reached = ((x_adv - x).abs() / budget)[inner]
    assert (reached > 0.999).float().mean() > 0.8  # and does not shrink from step to step


def test_a_start_tensor_is_projected_and_used(make_net, make_batch):
    net, (x, y, budget) = make_net(), make_batch()
    elsewhere = torch.rand(x.shape, generator=torch.Generator().manual_seed(3))
    assert torch.equal(pgd(net, x, y, budget, step_size=0.1, steps=0, start=elsewhere), project(elsewhere, x, budget))
    halfway = pgd(net, x, y, budget, step_size=0.01, steps=3)
    assert torch.equal(
        pgd(net, x, y, budget, step_size=0.01, steps=2, start=halfway), pgd(net, x, y, budget, step_size=0.01, steps=5)
    )


@pytest.mark.parametrize("loss", ["kl", kl])
def test_kl_with_labels_equals_kl_with_clean_logits(loss, make_net, make_batch):
    net, (x, y, budget) = make_net(), make_batch()
    settings = {"step_size": 0.02, "steps": 4, "loss": loss, "start": "normal"}
    clean = make_net().eval()(x)  # carries a gradient history, as clean logits of a training step do
    x_adv = pgd(net, x, clean, budget, **settings)
    assert torch.equal(pgd(net, x, y, budget, **settings), x_adv)
    assert not torch.equal(pgd(net, x, y, budget, **settings | {"loss": "ce"}), x_adv)


def test_unknown_names_are_refused_with_the_choices(make_net, make_batch):
    net, (x, y, budget) = make_net(), make_batch()
    with pytest.raises(UserError, match="unknown loss 'cw'; choose from ce, dlr, kl, margin"):
        pgd(net, x, y, budget, step_size=0.1, steps=1, loss="cw")
    with pytest.raises(UserError, match="unknown start 'zero'; choose from none, normal, uniform"):
        pgd(net, x, y, budget, step_size=0.1, steps=1, start="zero")


def per_class(logits, y):
    return logits


def nan_at_class_0(logits, y):
    return torch.where(y == 0, torch.nan, -logits[:, 0])


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (per_class, r"the loss per_class returned shape \(4, 5\); it must return one number per image, \(4,\)"),
        (nan_at_class_0, "the loss nan_at_class_0 returned NaN or infinite values for 2 of 4 images"),
        (lambda logits, y: 0.0, "the loss <lambda> returned a float"),
    ],
)
def test_a_loss_that_is_not_a_finite_number_per_image_is_named(loss, message, make_net, make_batch):
    x, _, budget = make_batch()
    with pytest.raises(UserError, match=message) as caught:
        pgd(make_net(), x, torch.tensor([0, 1, 0, 2]), budget, step_size=0.1, steps=2, loss=loss)
    assert "\n" not in str(caught.value)


def test_a_loss_of_ones_own_equals_the_named_one_also_as_a_sum(make_net, make_batch):
    net, (x, y, budget) = make_net(), make_batch()
    expected = pgd(net, x, y, budget, step_size=0.02, steps=3, loss="margin")
    for loss in (LOSSES["margin"], lambda logits, y: LOSSES["margin"](logits, y).sum()):
        assert torch.equal(pgd(net, x, y, budget, step_size=0.02, steps=3, loss=loss), expected)


def test_a_loss_of_ones_own_may_differentiate_with_respect_to_the_logits(make_net, make_batch):
    def weighted(logits, y):
        loss = LOSSES["ce"](logits, y)
        (grads,) = torch.autograd.grad(loss.sum(), logits, retain_graph=True)
        return loss * grads.norm(dim=1)

    net, (x, y, budget) = make_net(), make_batch()
    assert not torch.equal(pgd(net, x, y, budget, step_size=0.02, steps=3, loss=weighted, start="none"), x)
