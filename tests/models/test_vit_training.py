"""PART trains a transformer with the same step as any other model, and with maps of its attention."""

import functools

import pytest
import torch

from pixelpart import draws, masks
from pixelpart.attacks.ball import draw_noise
from pixelpart.data import augment, shapes
from pixelpart.data.loader import as_float
from pixelpart.engine.plan import build_plan
from pixelpart.engine.state import TrainingState
from pixelpart.engine.step import StepBatch, train_step
from pixelpart.engine.stored_maps import current_maps
from pixelpart.errors import UserError
from pixelpart.recipes import RECIPES


def config(**changes):
    small = {"attack": {"steps": 2}, "batch_size": 32, "burn_in": {"epochs": 0}, "model": "vit-tiny", "ema": 0.0}
    return RECIPES["shapes-part"](**(small | changes))


@functools.cache
def pictures():
    return shapes.generate("test")


def inputs(plan, n=16):
    images, labels = (tensor[:n] for tensor in pictures())
    x = as_float(images)
    noise = draw_noise(x, kind=plan.main.start, generator=draws.generator(0, "start", 0, 0))
    moves = augment.draw("none", n, generator=draws.generator(0, "augment", 0, 0))
    return StepBatch(x, labels, moves, noise)


@pytest.mark.parametrize(
    ("method", "precision"), [("gradcam", "fp32"), ("rollout", "bf16"), ("gradient-rollout", "fp32")]
)
def test_the_loss_falls_with_every_map(method, precision):
    plan = build_plan(config(mask={"source": method}, precision=precision))
    state = TrainingState(plan.model, plan.config, torch.device("cpu"))
    assert state.attack_view.folded
    state.lr.fill_(0.05)
    batch, losses = inputs(plan), []
    for _ in range(5):
        state.tally.sums.zero_()
        train_step(state, plan.main, batch)
        sums = state.tally.read()
        losses.append(sums["loss"] / sums["images"])
        assert plan.config.eps_low < sums["budget"] / sums["images"] < plan.config.eps
    assert losses[-1] < 0.98 * losses[0]
    assert not any(module._forward_hooks for module in state.model.modules())


@pytest.mark.parametrize("method", sorted(masks.MAPS))
@pytest.mark.parametrize("target", ["label", "predicted"])
def test_the_step_uses_the_map_of_the_public_function(method, target):
    plan = build_plan(config(mask={"source": method, "target": target}))
    state = TrainingState(plan.model, plan.config, torch.device("cpu"))
    batch = inputs(plan, 4)
    ours = current_maps(state, plan.main.mask, batch.images, batch.labels)
    expected = masks.cam(plan.model, batch.images, batch.labels if target == "label" else None, method=method)
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-7)


def test_a_map_that_does_not_fit_the_model_is_an_error_before_training():
    with pytest.raises(UserError, match=r"cam 'rollout' needs a transformer .*; for TinyCNN choose from gradcam"):
        build_plan(config(model="tiny-cnn", mask={"source": "rollout"}))
    with pytest.raises(UserError, match="layer 'blocks"):
        build_plan(config(mask={"source": "rollout", "layer": "blocks.1"}))
