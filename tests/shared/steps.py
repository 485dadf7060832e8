"""Plans, training states and batches for tests of single training steps, on small images."""

import copy
import dataclasses

import torch

from pixelpart import draws, masks, recipes
from pixelpart.data import augment
from pixelpart.engine.plan import build_plan
from pixelpart.engine.state import TrainingState
from pixelpart.engine.step import StepBatch, step_batch

METHODS = ["at", "trades", "mart", "part", "part-t", "part-m"]
SIZE = 16


def plan_for(method="part", **overrides):
    """A plan of the tiny network: two attack steps, averaging, no burn-in."""
    settings = {"burn_in": {"epochs": 0}, "ema": 0.9, "attack": {"steps": 2, "step_size": "3/255"}}
    return build_plan(recipes.shapes(method, **(settings | overrides)))


def state_for(plan, *, model=None, dtype=torch.float64, device="cpu", size=SIZE, rate=0.05):
    """A training state with its own copy of the plan's model."""
    model = copy.deepcopy(model or plan.model).to(dtype)
    state = TrainingState(model, plan.config, torch.device(device), shape=(3, size, size))
    state.lr.fill_(rate)
    return state


def batch_for(phase, n=6, seed=0, *, kind="crop-flip", dtype=torch.float64, device="cpu", size=SIZE, maps=None):
    """A batch of random images with the draws that the phase needs; `maps`: size of random stored maps or objects."""
    g = draws.generator(seed, "test")
    images = torch.rand(n, 3, size, size, generator=g, dtype=dtype)
    shape = images.shape if phase.starts == 1 else (phase.starts, *images.shape)
    normal = phase.start == "normal"
    noise = (torch.randn if normal else torch.rand)(shape, generator=g, dtype=dtype)
    labels = torch.randint(10, (n,), generator=g)
    given = None if maps is None else torch.rand(n, *maps, generator=g, dtype=dtype).to(device)
    stored, objects = (given, None) if phase.mask is not None and phase.mask.stored else (None, given)
    augmentation = augment.draw(kind, n, generator=draws.generator(seed, "test", device=device))
    noise = noise if normal else 2 * noise - 1
    blobs = masks.draw_blobs(n, generator=g).to(device, dtype).unbind(1)
    return StepBatch(images.to(device), labels.to(device), augmentation, noise.to(device), stored, objects, *blobs)


def budgets_of(step, state, plan, loader, objects, *, epochs):
    """The budget that the attack is given in the first step of each of these epochs; a graph may be captured."""
    seen = torch.empty(plan.config.batch_size, 3, *loader.take(torch.arange(1))[0].shape[2:], device=loader.device)
    budgets = []
    for epoch in epochs:
        phase = plan.phase(epoch)

        def spy(model, x, target, budget, *, run=phase.attack, **rest):
            seen.copy_(budget)
            return run(model, x, target, budget, **rest)

        scale = plan.budget_scale(epoch)
        batch = step_batch(plan.config, phase, loader, epoch=epoch, step=0, objects=objects, budget_scale=scale)
        step(state, dataclasses.replace(phase, attack=spy), batch)
        budgets.append(seen.clone())
    return budgets


def decay_at(t, ema):
    """The decay of averaged weights, as the documentation has it: age = min(t/10, (t/64)^2), d = age / (1 + age)."""
    age = t / 10 if t > 409.6 else t * t / 4096
    return min(ema, age / (1 + age))


def assert_same_state(a, b):
    """Equal to the bit: weights, averages, optimiser state and sums."""
    for (name, mine), theirs in zip(a.tensors().items(), b.tensors().values(), strict=True):
        assert torch.equal(mine, theirs), name


def assert_close_state(a, b, **tolerance):
    for (name, mine), theirs in zip(a.tensors().items(), b.tensors().values(), strict=True):
        torch.testing.assert_close(mine, theirs, msg=name, **({"rtol": 1e-6, "atol": 1e-8} | tolerance))
