"""The baselines do our work: the same adversarial images, masks, losses and updated weights, from the same draws."""

import copy

import pytest
import torch
import torch.nn.functional as F

from pixelpart import attacks, masks, models
from pixelpart.bench import METHODS, baselines
from pixelpart.bench import attack as attack_bench
from pixelpart.bench import cam as cam_bench
from pixelpart.bench import train as train_bench
from pixelpart.engine.plan import build
from pixelpart.engine.state import TrainingState
from pixelpart.engine.step import train_step
from pixelpart.view.views import Folding

EPS, LOW, STEP = 8 / 255, 7 / 255, 2 / 255
CPU = torch.device("cpu")


@pytest.fixture(params=["tiny-cnn", "preactresnet18"])
def model(request):
    """In eval mode, batch norm's averages away from 0 and 1, in double: a sign never hangs on rounding."""
    net = models.build(request.param).double()
    for module in net.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            torch.nn.init.normal_(module.running_mean, std=0.1)
            torch.nn.init.uniform_(module.running_var, 0.5, 2)
    return net.eval()


@pytest.fixture
def batch():
    x, y = attack_bench.random_batch(4, CPU)
    return x.double(), y


@pytest.mark.parametrize("gradient", [baselines.by_backward, baselines.by_grad])
def test_pgd_gives_our_images(model, batch, gradient):
    x, y = batch
    budget = torch.where(torch.rand(4, 1, 32, 32) < 0.5, LOW, EPS).double()
    noise = attacks.draw_noise(x, kind="uniform")
    theirs = baselines.pgd(model, x, y, budget, noise, step_size=STEP, steps=3, gradient=gradient)
    ours = attacks.pgd(Folding(model)(), x, y, budget, step_size=STEP, steps=3)
    assert torch.allclose(theirs, ours, atol=1e-9)


def test_backward_also_makes_weight_gradients_and_grad_does_not(model, batch):
    x, y = batch
    for gradient, made in ((baselines.by_grad, False), (baselines.by_backward, True)):
        baselines.pgd(model, x, y, EPS, torch.zeros_like(x), step_size=STEP, steps=1, gradient=gradient)
        assert all((parameter.grad is not None) == made for parameter in model.parameters())


def test_trades_attack_gives_our_images(model, batch):
    x, y = batch
    noise = attacks.draw_noise(x, kind="normal")
    theirs = baselines.trades_attack(model, x, EPS, noise, step_size=STEP, steps=3)
    ours = attacks.pgd(Folding(model)(), x, y, EPS, step_size=STEP, steps=3, loss="kl", start="normal")
    assert torch.allclose(theirs, ours, atol=1e-9)


@pytest.mark.parametrize("whole", [True, False])
def test_heatmaps_and_budgets_are_ours(model, batch, whole):
    x, _ = batch
    heat = baselines.heatmaps(model, x, whole=whole)
    assert torch.allclose(heat, masks.heatmap(Folding(model)(), x), atol=1e-5)
    ours = masks.budget(heat, eps=EPS, eps_low=LOW)
    assert torch.equal(baselines.budgets(model, x, eps=EPS, eps_low=LOW, whole=whole), ours)
    assert ours.unique().tolist() == [LOW, EPS]


def test_a_dead_map_stays_dead():
    model = models.build("tiny-cnn").eval()
    torch.nn.init.zeros_(model.linear.weight)
    assert baselines.heatmaps(model, torch.rand(1, 3, 32, 32)).count_nonzero() == 0


@pytest.mark.parametrize("method", METHODS)
def test_training_step_has_our_loss_and_moves_the_weights_as_ours_does(method):
    config = train_bench.step_config(method, model="tiny-cnn", batch_size=8, steps=2, precision="fp32")
    plan = build(config)
    usual = copy.deepcopy(plan.model)
    state = TrainingState(plan.model, config, CPU)
    state.lr.fill_(config.optim.lr)
    inputs = train_bench.step_inputs(config, plan.main, CPU)
    train_step(state, plan.main, inputs)
    optimizer = torch.optim.SGD(usual.parameters(), lr=config.optim.lr, momentum=0.9, weight_decay=2e-4)
    x = train_bench.augmented(inputs)
    loss = train_bench.usual_step(method, config, usual, optimizer, x, inputs)
    sums = state.tally.read()
    # the constants in the logarithms of MART's own code move its loss by 1e-4
    assert sums["loss"] / sums["images"] == pytest.approx(loss.item(), abs=2e-4)
    for theirs, ours in zip(usual.parameters(), state.model.parameters(), strict=True):
        assert torch.allclose(theirs, ours, atol=1e-4)
    assert not torch.equal(usual.linear.weight, build(config).model.linear.weight)


def test_folded_runs_of_the_benches_are_the_plain_ones():
    usual, fold, _ = attack_bench.views("tiny-cnn", CPU, print)
    x, y = attack_bench.random_batch(8, CPU)
    plain = attacks.pgd(usual, x, y, EPS, step_size=STEP, steps=2)
    close = (attack_bench.folded_pgd(fold, x, y, steps=2) - plain).abs() < 1e-6
    assert close.float().mean() > 0.99
    assert (cam_bench.folded_masks(fold, x) == cam_bench.mean_budget(usual, x)).float().mean() > 0.99


def test_bf16_search_still_raises_the_loss():
    usual, _, narrow = attack_bench.views("tiny-cnn", CPU, print)
    x, y = attack_bench.random_batch(8, CPU)
    x_adv = attack_bench.folded_pgd(narrow, x, y, steps=5)
    assert F.cross_entropy(usual(x_adv), y) > F.cross_entropy(usual(x), y)
