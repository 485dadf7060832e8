"""Adversarial weight perturbation against a plain loop."""

import copy
import dataclasses

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pixelpart import draws, models
from pixelpart.engine.awp import perturbed
from pixelpart.engine.step import train_step
from steps import batch_for, plan_for, state_for

GAMMA, BETA = 0.02, 6.0


def plain_loss(method, model, x, x_adv, y):
    if method == "at":
        return F.cross_entropy(model(x_adv), y)
    p, q = model(x).softmax(1), model(x_adv).softmax(1)
    kl = (p * (p / q).log()).sum(1)
    rows = torch.arange(len(y))
    if method == "trades":
        return F.nll_loss(p.log(), y) + BETA * kl.mean()
    wrong = q.masked_fill(F.one_hot(y, 10).bool(), 0).amax(1)
    return -(q[rows, y].log() + (1 - wrong).log()).mean() + BETA * (kl * (1 - p[rows, y])).mean()


@pytest.mark.parametrize("method", ["at", "trades", "part-m"])
def test_three_steps_equal_a_plain_loop_with_a_proxy_of_the_network(method):
    """As the authors do it: a second network is perturbed, and its batch-norm statistics are thrown away."""
    plan = plan_for(method, awp={"gamma": GAMMA}, ema=0.0)
    state, phase, seen = state_for(plan), plan.phase(0), []

    def run(*args, **kwargs):
        seen.append(phase.attack(*args, **kwargs))
        return seen[-1]

    spied = dataclasses.replace(phase, attack=run)
    model = copy.deepcopy(state.model)
    momentum = [torch.zeros_like(p) for p in model.parameters()]
    for i in range(3):
        batch = batch_for(phase, seed=i, kind="none")
        train_step(state, spied, batch)

        x, y = batch.images, batch.labels
        proxy, clean = copy.deepcopy(model), copy.deepcopy(model)
        plain_loss(method, proxy, x, seen[-1], y).backward()
        with torch.no_grad():
            for w, source in zip(model.parameters(), proxy.parameters(), strict=True):
                if w.ndim > 1:
                    w += GAMMA * w.pow(2).sum().sqrt() * source.grad / source.grad.pow(2).sum().sqrt()
        model.zero_grad()
        plain_loss(method, model, x, seen[-1], y).backward()
        with torch.no_grad():
            for w, old, buffer in zip(model.parameters(), clean.parameters(), momentum, strict=True):
                buffer.mul_(0.9).add_(w.grad + 5e-4 * old)
                w.copy_(old - 0.05 * buffer)
    for (name, a), b in zip(state.model.state_dict().items(), model.state_dict().values(), strict=True):
        assert torch.allclose(a, b, rtol=1e-7, atol=1e-9), name


def test_a_weight_of_two_numbers_by_hand():
    """w = (3, 4), loss 5 w1: g = (5, 0), so w moves by 0.1 * 5 along the first; the bias is not moved."""
    layer = nn.Linear(2, 1).double()
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[3.0, 4.0]]))
        layer.bias.fill_(7.0)
    with perturbed(layer, lambda: 5 * layer.weight[0, 0] + layer.bias.sum(), gamma=0.1):
        assert layer.weight.tolist() == [[pytest.approx(3.5), 4.0]]
        assert layer.bias.item() == 7.0
    assert layer.weight.tolist() == [[3.0, 4.0]]
    with perturbed(layer, lambda: layer.bias.sum(), gamma=0.1):  # the loss does not depend on the weight
        assert layer.weight.tolist() == [[3.0, 4.0]]
    with perturbed(layer, lambda: 0 * layer.weight.sum(), gamma=0.1):  # a zero gradient has no direction
        assert layer.weight.tolist() == [[3.0, 4.0]]


def test_weights_and_statistics_are_restored_to_the_bit_also_after_an_exception():
    model = models.build("tiny-cnn").train()
    x, y = torch.rand(4, 3, 8, 8, generator=draws.generator(0, "test")), torch.arange(4)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}

    def loss():
        return F.cross_entropy(model(x), y)

    def changed():
        return {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])}

    def fail():
        with perturbed(model, loss, gamma=0.01):
            assert changed() == {name for name, parameter in model.named_parameters() if parameter.ndim > 1}
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert not changed()
    assert all(parameter.grad is None for parameter in model.parameters())
