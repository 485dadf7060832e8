"""The step against a plain loop: no folding, no shared forward pass; maps one image at a time."""

import copy
import dataclasses
import functools

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode

from pixelpart import draws, masks
from pixelpart.data import augment
from pixelpart.engine.state import TrainingState
from pixelpart.engine.step import train_step
from steps import METHODS, SIZE, batch_for, decay_at, plan_for, state_for

EPS, LOW, STEP = 8 / 255, 7 / 255, 3 / 255
OTHERS = ["gradient:2", "margin", "centre", "quadrant:ul", "blobs", "object"]  # sources besides the network's maps
NEIGHBOUR = [1, 0, 3, 2, 5, 4]  # the image that each of six is mixed with


def warm_state(plan):
    """A state whose batch norm has statistics of its own, so that wrong folding would show."""
    state = state_for(plan)
    with torch.no_grad():
        for _ in range(3):
            state.model(torch.rand(16, 3, SIZE, SIZE, dtype=torch.float64, generator=draws.generator(1, "warm")))
    return state


# -- the plain loop


def reference_augmentation(params, images, fill):
    """Images after crop, flip and boxes, and the share of each image's pixels that are its own."""
    rows = []
    for image, top, left, flip in zip(images, params.top, params.left, params.flip, strict=True):
        padded = F.pad(image, (4, 4, 4, 4), value=fill)[:, top : top + SIZE, left : left + SIZE]
        rows.append(padded.flip(-1) if flip else padded)
    out = torch.stack(rows)
    own = torch.ones(len(out), dtype=torch.float64)
    centre = torch.arange(SIZE) + 0.5

    def box(box, i):
        r = (centre - SIZE * box.y[i]).abs() < SIZE / 2 * box.height[i]
        c = (centre - SIZE * box.x[i]).abs() < SIZE / 2 * box.width[i]
        return r[:, None] & c

    before = out.clone()
    for i in range(len(out)):
        if params.erase is not None:
            out[i, :, box(params.erase, i)] = fill
        if params.mix is not None:
            inside = box(params.mix.box, i)
            out[i, :, inside] = before[i ^ 1][:, inside]
            own[i] = 1 - inside.float().mean()
    return out, own


def budget_of_map(cam):
    """Min-max scaled, bicubic to image size; eps where the heat is above its mean, also for a constant map."""
    if cam.max() == cam.min():
        return torch.full((1, SIZE, SIZE), EPS, dtype=cam.dtype)
    cam = (cam - cam.min()) / (cam.max() - cam.min())
    heat = F.interpolate(cam[None, None], (SIZE, SIZE), mode="bicubic", antialias=True)[0].clamp(0, 1)
    return torch.where(heat > heat.mean(), EPS, LOW).to(cam.dtype)


def reference_budget(model, x, y=None):
    """GradCAM by autograd, one image at a time, of the label y or of the predicted class."""
    rows = []
    for i, image in enumerate(x):
        acts = model.features(image[None]).detach().requires_grad_()
        logits = model.head(acts)
        (grads,) = torch.autograd.grad(logits[0, logits.argmax() if y is None else y[i]], acts)
        rows.append(budget_of_map((grads.mean((2, 3), keepdim=True) * acts).sum(1).relu().detach()[0]))
    return torch.stack(rows)


def cross_entropy(logits, target):
    return -(target * logits.log_softmax(1)).sum(1)


def reference_step(model, momentum, average, method, batch, *, decay, steps=2, smoothing=0.0):
    x, own = reference_augmentation(batch.augmentation, batch.images, 0.0)
    own, labels = own[:, None], F.one_hot(batch.labels, 10).double()
    shares = own * labels + (1 - own) * labels[NEIGHBOUR]
    target, y = (1 - smoothing) * shares + smoothing / 10, shares.argmax(1)
    model.eval()
    budget = reference_budget(model, x) if method.startswith("part") else torch.full_like(x[:, :1], EPS)
    family = {"part": "at", "part-t": "trades", "part-m": "mart"}.get(method, method)
    delta = budget * batch.start_noise if family == "at" else 0.001 * batch.start_noise
    x_adv = (x + torch.clamp(delta, -budget, budget)).clamp(0, 1)
    for _ in range(steps):
        x_adv = x_adv.detach().requires_grad_()
        if family == "trades":
            loss = F.kl_div(F.log_softmax(model(x_adv), 1), F.softmax(model(x), 1), reduction="sum")
        else:
            loss = cross_entropy(model(x_adv), shares).sum()
        loss.backward()
        delta = torch.clamp(x_adv.detach() + STEP * x_adv.grad.sign() - x, -budget, budget)
        x_adv = (x + delta).clamp(0, 1)
    model.train()
    model.zero_grad()
    if family == "at":
        loss = cross_entropy(model(x_adv), target).mean()
    else:
        clean, adv = model(x), model(x_adv)
        p, q = clean.softmax(1), adv.softmax(1)
        kl = (p * (p.log() - q.log())).sum(1)
        if family == "trades":
            loss = cross_entropy(clean, target).mean() + 6 * kl.mean()
        else:
            other = q.masked_fill(F.one_hot(y, 10).bool(), 0).max(1).values
            certain = (target * p).sum(1)
            loss = (cross_entropy(adv, target) - (1 - other).log()).mean() + 6 * (kl * (1 - certain)).mean()
    loss.backward()
    with torch.no_grad():
        for parameter, buffer in zip(model.parameters(), momentum, strict=True):
            buffer.mul_(0.9).add_(parameter.grad + 5e-4 * parameter)
            parameter -= 0.05 * buffer
        for averaged, live in zip(average.state_dict().values(), model.state_dict().values(), strict=True):
            averaged.copy_(decay * averaged + (1 - decay) * live if averaged.is_floating_point() else live)
    return loss.item(), budget


CASES = [(method, "crop-flip", 0.0) for method in METHODS]
CASES += [(method, "crop-flip-cutmix", 0.1) for method in METHODS] + [("part", "crop-flip-cutout", 0.2)]


@pytest.mark.parametrize(("method", "kind", "smoothing"), CASES)
def test_three_steps_equal_a_plain_loop(method, kind, smoothing):
    plan = plan_for(method, objective={"smoothing": smoothing})
    state = warm_state(plan)
    model, average = copy.deepcopy(state.model), copy.deepcopy(state.average.model)
    momentum = [torch.zeros_like(p) for p in model.parameters()]
    losses, budgets = [], []
    for i in range(3):
        batch = batch_for(plan.main, seed=i, kind=kind)
        t = 100 * i  # as if later in a run
        state.average.set_step(t)
        train_step(state, plan.main, batch)
        decay = decay_at(t, 0.9)
        loss, budget = reference_step(model, momentum, average, method, batch, decay=decay, smoothing=smoothing)
        losses.append(loss)
        budgets.append(budget)
    for mine, theirs in ((state.model, model), (state.average.model, average)):
        for (name, a), b in zip(mine.state_dict().items(), theirs.state_dict().values(), strict=True):
            assert torch.allclose(a, b, rtol=1e-7, atol=1e-9), name
    sums = state.tally.read()
    assert sums["images"] == 18
    assert sums["loss"] / 18 == pytest.approx(sum(losses) / 3, rel=1e-7)
    assert sums["budget"] / 18 == pytest.approx(torch.cat(budgets).mean().item(), rel=1e-6)
    if method.startswith("part"):
        assert 0.05 < sums["high"] / 18 < 0.95


def attacked(state, phase, batch):
    """What the attack was given: its target and its budget."""
    seen = {}

    def spy(model, x, target, budget, **rest):
        seen.update(target=target, budget=budget)
        return phase.attack(model, x, target, budget, **rest)

    train_step(state, dataclasses.replace(phase, attack=spy), batch)
    return seen["target"], seen["budget"]


def test_for_mixed_images_mma_and_the_map_of_the_label_use_the_class_with_more_pixels():
    attack = {"name": "mma", "steps": 1, "step_size": "3/255"}
    plan = plan_for(attack=attack, mask={"rule": "mean", "target": "label"})
    state, batch = warm_state(plan), batch_for(plan.main, kind="crop-flip-cutmix", seed=2)
    model = copy.deepcopy(state.model).eval()
    target, budget = attacked(state, plan.main, batch)
    x, own = reference_augmentation(batch.augmentation, batch.images, 0.0)
    larger = torch.where(own > 0.5, batch.labels, batch.labels[NEIGHBOUR])
    assert torch.equal(target, larger)
    assert not torch.equal(larger, batch.labels)
    assert torch.allclose(budget.double(), reference_budget(model, x, larger.tolist()), atol=1e-7)


@pytest.mark.parametrize("kind", ["crop-flip", "crop-flip-cutout", "crop-flip-cutmix"])
def test_a_stored_map_moves_with_its_image_and_pixels_outside_of_it_get_eps(kind):
    plan = plan_for(mask={"rule": "mean", "every": 1})
    batch = batch_for(plan.main, maps=(8, 8), kind=kind)
    _, budget = attacked(warm_state(plan), plan.main, batch)
    expected, _ = reference_augmentation(batch.augmentation, [budget_of_map(cam) for cam in batch.stored_maps], EPS)
    assert torch.allclose(budget.double(), expected, atol=1e-7)


@pytest.mark.parametrize("kind", augment.AUGMENTS)
@pytest.mark.parametrize("control", ["none", "inverted"])
def test_an_object_mask_moves_with_its_image_pixel_by_pixel(kind, control):
    """The mask is also painted into the image, in its first channel; there it must be where the budget is eps."""
    plan = plan_for(mask={"source": "object", "rule": "mean", "control": control})
    batch = batch_for(plan.main, kind=kind)
    objects = torch.zeros(6, SIZE, SIZE, dtype=torch.float64)
    for i in range(6):
        objects[i, 2 + i : 9 + i, 3:12] = 1
    painted = torch.stack((objects, torch.ones_like(objects), objects), 1)  # the second channel: where an image is
    augmentation = dataclasses.replace(batch.augmentation, colour=None)
    batch = dataclasses.replace(batch, augmentation=augmentation, objects=objects)
    _, budget = attacked(warm_state(plan), plan.main, batch)
    moved = augment.apply_to_images(augmentation, painted)
    high = (moved[:, :1] == 1) | (moved[:, 1:2] == 0)
    assert torch.equal(budget == EPS, high if control == "none" else ~high)
    assert 0 < high.float().mean() < 1


def test_dead_maps_get_eps_and_are_counted():
    plan = plan_for(mask={"rule": "mean", "every": 1})
    state, batch = state_for(plan), batch_for(plan.main, maps=(8, 8), kind="none")
    batch.stored_maps[1], batch.stored_maps[4] = 0, 3
    _, budget = attacked(state, plan.main, batch)
    assert (budget[[1, 4]] == EPS).all()
    assert (budget[[0, 2, 3, 5]] < EPS).any((1, 2, 3)).all()
    assert round(state.tally.read()["dead"]) == 2


@pytest.mark.parametrize(
    ("method", "overrides", "kind"),
    [(method, {}, "crop-flip") for method in METHODS]
    + [("part-m", {}, kind) for kind in augment.AUGMENTS]
    + [("part", {"mask": {"source": source, "rule": "rank", "mean": "8/255"}}, "crop-flip") for source in OTHERS]
    + [("part", {"mask": {"control": control}}, "crop-flip") for control in masks.CONTROLS]
    + [("part", {"awp": {"gamma": 0.01}, "optim": {"name": "adamw", "clip": 1.0}}, "none")],
)
def test_a_step_never_waits_for_the_device(method, overrides, kind):
    """Fake tensors have no values: reading one, or branching on one, raises."""
    plan = plan_for(method, objective={"smoothing": 0.1}, **overrides)
    state = TrainingState(plan.model, plan.config, torch.device("cpu"), shape=(3, SIZE, SIZE))
    maps = (SIZE, SIZE) if plan.config.mask.source == "object" else None
    with FakeTensorMode(allow_non_fake_inputs=True):
        train_step(state, plan.phase(0), batch_for(plan.main, kind=kind, dtype=torch.float32, maps=maps))


@pytest.mark.parametrize("method", METHODS)
def test_without_a_budget_no_attack_step_is_taken_and_the_weights_are_the_same(method):
    plan = plan_for(method, burn_in={"epochs": 1, "eps": 0})
    attack, batch = plan.burn_in.attack, batch_for(plan.burn_in)
    assert (attack.keywords["steps"], plan.main.attack.keywords["steps"]) == (0, 2)
    searched = functools.partial(attack, steps=2)
    ends = []
    for phase in (plan.burn_in, dataclasses.replace(plan.burn_in, attack=searched)):
        state = state_for(plan_for(method))
        train_step(state, phase, batch)
        ends.append([*state.weights().values()])
    assert all(map(torch.equal, *ends))
    assert plan_for("at", eps=0).main.attack.keywords["steps"] == 0


def test_a_step_does_not_use_the_global_generator():
    plan = plan_for("part")
    state, batch = state_for(plan), batch_for(plan.main)
    before = torch.get_rng_state()
    train_step(state, plan.main, batch)
    assert torch.equal(before, torch.get_rng_state())
