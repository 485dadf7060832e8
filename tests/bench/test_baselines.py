"""The baselines compute what our code computes: adversarial images, masks, losses and updated weights."""

import copy

import pytest
import torch
import torch.nn.functional as F

from pixelpart import attacks, masks, models
from pixelpart.bench import METHODS, baselines, components
from pixelpart.bench import train as train_bench
from pixelpart.bench.timing import Bench, BenchReport
from pixelpart.data import augment
from pixelpart.engine.plan import build_plan
from pixelpart.engine.state import TrainingState
from pixelpart.engine.step import train_step
from pixelpart.view.views import Folding

EPS, LOW, STEP = 8 / 255, 7 / 255, 2 / 255
CPU = torch.device("cpu")
BENCH = Bench(BenchReport("", {}, {}), CPU, 1, print)


@pytest.fixture(params=["tiny-cnn", "preactresnet18"])
def model(request):
    """In eval mode, batch norm's statistics away from 0 and 1, in double so that no sign depends on rounding."""
    net = models.build(request.param).double()
    for module in net.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            torch.nn.init.normal_(module.running_mean, std=0.1)
            torch.nn.init.uniform_(module.running_var, 0.5, 2)
    return net.eval()


@pytest.fixture
def batch():
    x, y = components.random_batch(2, CPU, size=16)
    return x.double(), y


@pytest.mark.parametrize("gradient", [baselines.by_backward, baselines.by_grad])
def test_pgd_gives_our_images(model, batch, gradient):
    x, y = batch
    budget = torch.where(torch.rand(2, 1, 16, 16) < 0.5, LOW, EPS).double()
    noise = attacks.draw_noise(x, kind="uniform")
    baseline = baselines.pgd(model, x, y, budget, noise, step_size=STEP, steps=3, gradient=gradient)
    ours = attacks.pgd(Folding(model)(), x, y, budget, step_size=STEP, steps=3)
    assert torch.allclose(baseline, ours, atol=1e-9)
    with_weights = gradient is baselines.by_backward
    assert all((parameter.grad is not None) == with_weights for parameter in model.parameters())


def test_trades_attack_gives_our_images(model, batch):
    x, y = batch
    noise = attacks.draw_noise(x, kind="normal")
    baseline = baselines.trades_attack(model, x, EPS, noise, step_size=STEP, steps=3)
    ours = attacks.pgd(Folding(model)(), x, y, EPS, step_size=STEP, steps=3, loss="kl", start="normal")
    assert torch.allclose(baseline, ours, atol=1e-9)


@pytest.mark.parametrize("to_weights", [True, False])
def test_heatmaps_and_budgets_are_ours(model, batch, to_weights):
    x, _ = batch
    heat = baselines.heatmaps(model, x, to_weights=to_weights)
    assert torch.allclose(heat, masks.heatmap(Folding(model)(), x), atol=1e-5)
    ours = masks.budget(heat, eps=EPS, eps_low=LOW)
    assert torch.equal(baselines.budgets(model, x, eps=EPS, eps_low=LOW, to_weights=to_weights), ours)
    assert ours.unique().tolist() == [LOW, EPS]


@pytest.mark.parametrize("method", METHODS)
def test_a_training_step_has_our_loss_and_updates_the_weights_as_ours_does(method):
    config = train_bench.step_config(method, model="tiny-cnn", batch_size=8, steps=2, precision="fp32")
    plan = build_plan(config)
    baseline = copy.deepcopy(plan.model)
    state = TrainingState(plan.model, config, CPU)
    state.lr.fill_(config.optim.lr)
    batch = train_bench.random_step_batch(config, plan.main, CPU)
    train_step(state, plan.main, batch)
    optimizer = torch.optim.SGD(baseline.parameters(), lr=config.optim.lr, momentum=0.9, weight_decay=2e-4)
    x = augment.apply_to_images(batch.augmentation, batch.images)
    loss = baselines.train_step(baseline, optimizer, x, batch.labels, batch.start_noise, method, config)
    sums = state.tally.read()
    # the constants in the logarithms of MART's code change its loss by 1e-4
    assert sums["loss"] / sums["images"] == pytest.approx(loss.item(), abs=2e-4)
    for a, b in zip(baseline.parameters(), state.model.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-4)
    assert not torch.equal(baseline.linear.weight, build_plan(config).model.linear.weight)


def test_the_folded_runs_compute_what_the_plain_runs_compute():
    plain, fp32, bf16 = components.views("tiny-cnn", BENCH)
    x, y = components.random_batch(8, CPU)
    x_adv = attacks.pgd(plain, x, y, EPS, step_size=STEP, steps=2)
    close = (components.folded_pgd(fp32, x, y, steps=2) - x_adv).abs() < 1e-6
    assert close.float().mean() > 0.99
    assert (components.folded_budget(fp32, x) == components.mean_budget(plain, x)).float().mean() > 0.99
    assert F.cross_entropy(plain(components.folded_pgd(bf16, x, y, steps=5)), y) > F.cross_entropy(plain(x), y)
