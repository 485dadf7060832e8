"""What is measured after an epoch: by hand on a linear model, and against a plain loop on a network."""

import functools

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from metrics_rows import metrics_row
from pixelpart import draws, models
from pixelpart.config import Config
from pixelpart.engine import messages, metrics
from pixelpart.models import Classifier
from pixelpart.view.views import Folding


class Linear(Classifier):
    """Two classes: logits (s, 0) with s = w·x, pixel by pixel."""

    def __init__(self, w):
        super().__init__()
        self.w = nn.Parameter(w)

    def trunk(self, x):
        return x

    def head(self, acts):
        score = (acts * self.w).sum((1, 2, 3))
        return torch.stack((score, torch.zeros_like(score)), 1)


W = torch.tensor([[[1.0, -2.0], [0.5, 0.0]], [[3.0, 0.0], [0.0, -1.0]], [[0.25, 0.0], [0.0, 0.0]]], dtype=torch.float64)


@pytest.fixture
def linear():
    return Folding(Linear(W))()


def probe(model, x, y, config, *, stream, chunk):
    probe_batch = functools.partial(metrics.probe_batch, lambda: model, config)
    return metrics.probe(probe_batch, x, y, seed=config.seed, stream=stream, chunk=chunk)


def test_damage_is_the_budget_weighted_sum_of_gradients(linear):
    """For (s, 0) and label 0 the cross-entropy is log(1 + exp(-s)), its gradient -(1 - p) w, p = 1/(1 + exp(-s))."""
    x = torch.zeros(2, 3, 2, 2, dtype=torch.float64)  # s = 0, so p = 1/2 for either label
    y = torch.tensor([0, 1])
    budget = torch.tensor([[[[0.1, 0.2], [0.3, 0.4]]], [[[0.0, 0.0], [0.0, 1.0]]]], dtype=torch.float64)
    first = 0.5 * (0.1 * (1 + 3 + 0.25) + 0.2 * 2 + 0.3 * 0.5 + 0.4 * 1)
    second = 0.5 * (1.0 * 1)
    assert metrics.first_order_damage(linear, x, y, budget) == pytest.approx((first + second) / 2, rel=1e-12)


def test_a_probe_equals_a_plain_loop_without_folding():
    config = Config(seed=4, eps="60/255", eps_low=0, attack={"steps": 3, "step_size": "30/255"})
    model = models.build("tiny-cnn", generator=torch.Generator().manual_seed(3)).double()
    generator = torch.Generator().manual_seed(5)
    x = torch.rand(11, 3, 16, 16, dtype=torch.float64, generator=generator)
    model(x)  # so that batch norm has statistics of its own
    model.eval()
    with torch.no_grad():
        model.linear.bias -= model(x).mean(0)  # else an untrained model predicts one class only
    y = model(x).argmax(1)
    y[::3] = (y[::3] + 1) % 10
    found = probe(Folding(model)(), x, y, config, stream="held-out", chunk=4)

    rows = []
    for begin in range(0, 11, 4):
        images, labels = x[begin : begin + 4], y[begin : begin + 4]
        noise = torch.rand(images.shape, generator=draws.generator(4, "probe/held-out", 0, begin), dtype=torch.float64)
        x_adv = (images + 60 / 255 * (2 * noise - 1)).clamp(0, 1)
        for _ in range(3):
            leaf = x_adv.detach().requires_grad_()
            F.cross_entropy(model(leaf), labels, reduction="sum").backward()
            x_adv = leaf.detach() + 30 / 255 * leaf.grad.sign()
            x_adv = torch.clamp(x_adv, images - 60 / 255, images + 60 / 255).clamp(0, 1)
        logits = model(x_adv).detach()
        rows += [
            ((clean == label).item(), (adv.argmax() == label).item(), F.cross_entropy(adv, label).item())
            for clean, adv, label in zip(model(images).argmax(1), logits, labels, strict=True)
        ]
    natural, robust, loss = (sum(column) / 11 for column in zip(*rows, strict=True))
    assert natural == pytest.approx(7 / 11)
    assert (found.natural, found.pgd) == pytest.approx((natural, robust), abs=1e-12)
    assert found.robust_ce == pytest.approx(loss, rel=1e-9)
    assert robust < natural


def test_a_probe_has_eps_at_every_pixel_also_for_a_run_with_a_mask(linear):
    """The linear model's worst case is known: s falls, for label 0, by eps |w|_1."""
    config = Config(eps="8/255", eps_low=0, mask={"rule": "mean"}, attack={"steps": 40, "step_size": "1/255"})
    x = torch.full((1, 3, 2, 2), 0.5, dtype=torch.float64)
    score = 0.5 * W.sum().item() - 8 / 255 * W.abs().sum().item()
    found = probe(linear, x, torch.tensor([0]), config, stream="train", chunk=1)
    expected = F.softplus(torch.tensor(-score, dtype=torch.float64)).item()
    assert found.robust_ce == pytest.approx(expected, rel=1e-9)


def test_conclusion_has_the_accuracies_of_the_best_epoch():
    rows = [metrics_row(epoch, natural=natural, pgd=natural / 2) for epoch, natural in ((1, 0.4), (2, 0.6), (3, 0.5))]
    best = "best: epoch 2 (lowest robust cross-entropy), natural 60.0%, pgd 30.0% (held-out)"
    assert messages.conclusion(rows, 2, Config()) == best
    assert messages.conclusion(rows, None, Config()) == "last: epoch 3, natural 50.0%, pgd 25.0% (held-out)"


def test_a_run_without_an_attack_reports_no_pgd():
    row = metrics_row(2, natural=0.996, pgd=0.996, train_natural=0.999, train_pgd=0.999)
    plain, attacked = Config(eps=0, epochs=4), Config(epochs=4)
    assert "natural 99.6% (held-out), natural on training images 99.9%" in messages.summary_line(row, plain)
    assert "natural 99.6%, pgd 99.6% (held-out), pgd on training images 99.9%" in messages.summary_line(row, attacked)
    assert messages.conclusion([row], 2, plain) == "best: epoch 2 (lowest cross-entropy), natural 99.6% (held-out)"
    for config, cells in ((plain, 1), (attacked, 2)):
        assert messages.row_cells(row, config).count("99.6%") == cells
        assert len(messages.row_cells(row, config)) == len(messages.epoch_columns(config))
