"""Adversarial weight perturbation against a plain loop, and what it leaves behind."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from pixelpart import draws, models, recipes
from pixelpart.data import augment
from pixelpart.engine.awp import perturbed
from pixelpart.engine.plan import build
from pixelpart.engine.state import Learner
from pixelpart.engine.step import StepInputs, train_step

GAMMA, BETA = 0.02, 6.0
METHODS = ["at", "trades", "part-m"]


def some_inputs(n=6, seed=0, dtype=torch.float64):
    g = draws.generator(seed, "test")
    images, noise = (torch.rand(n, 3, 32, 32, generator=g, dtype=dtype) for _ in range(2))
    return StepInputs(images, torch.randint(10, (n,), generator=g), augment.draw("none", n, generator=g), 2 * noise - 1)


def learner_for(plan, dtype=torch.float64):
    learner = Learner(copy.deepcopy(plan.model).to(dtype), plan.config, torch.device("cpu"))
    learner.lr.fill_(0.05)
    return learner


def plan_for(method, **overrides):
    attack = {"steps": 2, "step_size": "3/255"}
    settings = {"burn_in": {"epochs": 0}, "ema": 0.0, "awp": {"gamma": GAMMA}, "attack": attack}
    return build(recipes.shapes(method, **(settings | overrides)))


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


@pytest.mark.parametrize("method", METHODS)
def test_three_steps_equal_a_plain_loop_with_a_proxy_of_the_network(method):
    """The way of the authors: a second network is perturbed, and its statistics are thrown away."""
    plan = plan_for(method)
    learner, phase, seen = learner_for(plan), plan.phase(0), []

    def attack(*args, **kwargs):
        seen.append(plan.main.attack(*args, **kwargs))
        return seen[-1]

    model = copy.deepcopy(learner.model)
    momentum = [torch.zeros_like(p) for p in model.parameters()]
    for i in range(3):
        inputs = some_inputs(seed=i)
        train_step(learner, type(phase)(**(vars(phase) | {"attack": attack})), inputs)

        x, y = inputs.images, inputs.labels
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
    for (name, a), b in zip(learner.model.state_dict().items(), model.state_dict().values(), strict=True):
        assert torch.allclose(a, b, rtol=1e-7, atol=1e-9), name


def test_a_weight_of_two_numbers_by_hand():
    """w = (3, 4), loss 5 w1: g = (5, 0), so w moves by 0.1 * 5 along the first; the bias stays."""
    layer = nn.Linear(2, 1).double()
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[3.0, 4.0]]))
        layer.bias.fill_(7.0)
    with perturbed(layer, lambda: 5 * layer.weight[0, 0] + layer.bias.sum(), gamma=0.1):
        assert layer.weight.tolist() == [[pytest.approx(3.5), 4.0]]
        assert layer.bias.item() == 7.0
    assert layer.weight.tolist() == [[3.0, 4.0]]
    with perturbed(layer, lambda: layer.bias.sum(), gamma=0.1):  # the weight takes no part
        assert layer.weight.tolist() == [[3.0, 4.0]]
    with perturbed(layer, lambda: 0 * layer.weight.sum(), gamma=0.1):  # no gradient, no direction
        assert layer.weight.tolist() == [[3.0, 4.0]]


def test_outside_all_is_as_before_to_the_bit_also_after_an_exception():
    model = models.build("tiny-cnn").train()
    x = torch.rand(4, 3, 8, 8, generator=draws.generator(0, "test"))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}

    def changed():
        return {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])}

    def fail():
        with perturbed(model, lambda: model(x).square().mean(), gamma=0.01):
            assert changed() == {name for name, parameter in model.named_parameters() if parameter.ndim > 1}
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert not changed()
    assert all(parameter.grad is None for parameter in model.parameters())


def test_the_loss_is_larger_inside():
    model = models.build("tiny-cnn").train()
    x, y = torch.rand(16, 3, 8, 8, generator=draws.generator(0, "test")), torch.arange(16) % 10

    def loss():
        return F.cross_entropy(model(x), y)

    losses = [loss().item()]
    for gamma in (0.001, 0.01):
        with perturbed(model, loss, gamma=gamma):
            losses.append(loss().item())
    assert losses == sorted(losses)
    assert losses[2] > losses[0] + 1e-3


def test_batch_norm_counts_one_forward_a_step():
    plan = plan_for("at")
    learner = learner_for(plan)
    train_step(learner, plan.phase(0), some_inputs())
    assert int(learner.model.layer1.bn.num_batches_tracked) == 1


def test_it_begins_at_its_epoch_also_in_the_middle_of_a_ramp():
    plan = plan_for("part", epochs=6, burn_in={"epochs": 1}, eps_ramp=4, awp={"gamma": 0.01, "after": 2})
    assert [plan.phase(epoch).awp for epoch in range(6)] == [0, 0, 0.01, 0.01, 0.01, 0.01]
    assert plan.phase(2).share == 2.5 / 4
    assert plan_for("at", awp={}).phase(5).awp == 0


def test_without_it_a_step_is_plain_descent_to_the_bit():
    plan = plan_for("at", awp={"gamma": 0.0})
    a, b = learner_for(plan, torch.float32), learner_for(plan, torch.float32)
    inputs = some_inputs(dtype=torch.float32)
    train_step(a, plan.phase(0), inputs)
    view = b.freeze()
    start = (inputs.images + 8 / 255 * inputs.noise).clamp(0, 1)
    x_adv = plan.main.attack(view, inputs.images, inputs.labels, 8 / 255, start=start)
    loss = F.cross_entropy(b.model(x_adv), inputs.labels)
    loss.backward()
    b.optimizer.step()
    for (name, mine), theirs in zip(a.model.state_dict().items(), b.model.state_dict().values(), strict=True):
        assert torch.equal(mine, theirs), name


@pytest.mark.parametrize("overrides", [{}, {"optim": {"name": "adamw", "clip": 1.0}}], ids=str)
def test_step_never_waits_for_the_device(overrides):
    """Fake tensors have no values: reading one, or branching on one, raises."""
    plan = plan_for("part", **overrides)
    learner = Learner(plan.model, plan.config, torch.device("cpu"))
    with FakeTensorMode(allow_non_fake_inputs=True):
        train_step(learner, plan.phase(0), some_inputs(dtype=torch.float32))
