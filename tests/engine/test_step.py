"""The step against a plain loop: no folding, no shortcut, no shared forward; maps one image at a time."""

import copy
import dataclasses
import itertools

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode

from pixelpart import draws, recipes
from pixelpart.data import augment
from pixelpart.engine.plan import build
from pixelpart.engine.state import Learner
from pixelpart.engine.step import StepInputs, train_step

METHODS = ["at", "trades", "mart", "part", "part-t", "part-m"]
EPS, LOW, STEP = 8 / 255, 7 / 255, 3 / 255


def plan_for(method, **overrides):
    return build(recipes.shapes(method, **({"burn_in": {"epochs": 0}, "ema": 0.9} | overrides)))


def some_inputs(n=6, start="uniform", seed=0, maps=None, kind="crop-flip"):
    g = draws.generator(seed, "test")
    images = torch.rand(n, 3, 32, 32, generator=g, dtype=torch.float64)
    noise = torch.rand(images.shape, generator=g, dtype=torch.float64) * 2 - 1
    if start == "normal":
        noise = torch.randn(images.shape, generator=g, dtype=torch.float64)
    labels = torch.randint(10, (n,), generator=g)
    return StepInputs(images, labels, augment.draw(kind, n, generator=g), noise, maps)


def learner_for(plan):
    model = copy.deepcopy(plan.model).double()
    learner = Learner(model, plan.config, torch.device("cpu"))
    learner.lr.fill_(0.05)
    # a model whose batch norm has seen something, so that folding it wrongly would show
    with torch.no_grad():
        for _ in range(3):
            learner.model(torch.rand(16, 3, 32, 32, dtype=torch.float64, generator=draws.generator(1, "warm")))
    return learner


# -- the plain loop


def move(image, top, left, flip, fill):
    padded = F.pad(image, (4, 4, 4, 4), value=fill)[:, top : top + 32, left : left + 32]
    return padded.flip(-1) if flip else padded


def framed(params, pictures, fill):
    """What is cut out or comes from the neighbour, pixel by pixel."""

    def holds(box, i, r, s):
        return abs(r + 0.5 - 32 * box.y[i]) < 16 * box.height[i] and abs(s + 0.5 - 32 * box.x[i]) < 16 * box.width[i]

    before, out = torch.stack(pictures), torch.stack(pictures)
    own = torch.ones(len(out), 32, 32)
    for i, r, s in itertools.product(range(len(out)), range(32), range(32)):
        if params.erase is not None and holds(params.erase, i, r, s):
            out[i, :, r, s] = fill
        if params.mix is not None and holds(params.mix.box, i, r, s):
            out[i, :, r, s] = before[i ^ 1, :, r, s]
            own[i, r, s] = 0
    return out, own.mean((1, 2)).double()


def moved(params, images, fill):
    """The images after crop, flip and boxes, and the share of each that is its own."""
    return framed(
        params, [move(i, *p, fill) for i, *p in zip(images, params.top, params.left, params.flip, strict=True)], fill
    )


def reference_budget(model, x, y, kind, predicted=True):
    """GradCAM by autograd, one image at a time, then `heat > mean keeps eps`."""
    rows = []
    for image, label in zip(x, y, strict=True):
        acts = model.features(image[None]).detach().requires_grad_()
        logits = model.head(acts)
        c = logits.argmax().item() if predicted else label
        (grads,) = torch.autograd.grad(logits[0, c], acts)
        cam = (grads.mean((2, 3), keepdim=True) * acts).sum(1).relu().detach()
        if cam.max() == cam.min():
            rows.append(torch.full((1, 32, 32), EPS, dtype=x.dtype))
            continue
        cam = (cam - cam.min()) / (cam.max() - cam.min())
        heat = F.interpolate(cam[None], (32, 32), mode="bicubic", antialias=True)[0].clamp(0, 1)
        rows.append(torch.where(heat > heat.mean(), EPS, LOW).to(x.dtype))
    return torch.stack(rows)


def cross_entropy(logits, target):
    return -(target * logits.log_softmax(1)).sum(1)


def reference_step(model, momentum, average, method, inputs, *, steps=5, smoothing=0.0):
    x, own = moved(inputs.augmentation, inputs.images, 0.0)
    own, labels = own[:, None], F.one_hot(inputs.labels, 10).double()
    shares = own * labels + (1 - own) * labels[[i ^ 1 for i in range(len(x))]]
    target, y = (1 - smoothing) * shares + smoothing / 10, shares.argmax(1)
    model.eval()
    budget = reference_budget(model, x, y, method) if method.startswith("part") else torch.full_like(x[:, :1], EPS)
    family = {"at": "at", "part": "at", "trades": "trades", "part-t": "trades", "mart": "mart", "part-m": "mart"}[
        method
    ]
    delta = budget * inputs.noise if family == "at" else 0.001 * inputs.noise
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
        for slow, live in zip(average.state_dict().values(), model.state_dict().values(), strict=True):
            slow.copy_(0.9 * slow + 0.1 * live if slow.is_floating_point() else live)
    return loss.item(), budget


RECIPES = [(method, "crop-flip", 0.0) for method in METHODS]
RECIPES += [(method, "crop-flip-cutmix", 0.1) for method in METHODS] + [("part", "crop-flip-cutout", 0.2)]


@pytest.mark.parametrize(("method", "kind", "smoothing"), RECIPES)
def test_three_steps_equal_a_plain_loop(method, kind, smoothing):
    plan = plan_for(method, objective={"smoothing": smoothing})
    learner = learner_for(plan)
    model, average = copy.deepcopy(learner.model), copy.deepcopy(learner.average.model)
    momentum = [torch.zeros_like(p) for p in model.parameters()]
    losses, budgets = [], []
    for i in range(3):
        inputs = some_inputs(start=plan.main.start, seed=i, kind=kind)
        train_step(learner, plan.main, inputs)
        loss, budget = reference_step(model, momentum, average, method, inputs, smoothing=smoothing)
        losses.append(loss)
        budgets.append(budget)
    for mine, theirs in ((learner.model, model), (learner.average.model, average)):
        for (name, a), b in zip(mine.state_dict().items(), theirs.state_dict().values(), strict=True):
            assert torch.allclose(a, b, rtol=1e-7, atol=1e-9), name
    sums = learner.tally.read()
    assert sums["images"] == 18
    assert sums["loss"] / 18 == pytest.approx(sum(losses) / 3, rel=1e-7)
    assert sums["budget"] / 18 == pytest.approx(torch.cat(budgets).mean().item(), rel=1e-6)
    if method.startswith("part"):
        assert 0.05 < sums["high"] / 18 < 0.95


def test_label_as_target_changes_the_budget_of_misclassified_images():
    plan = plan_for("part", mask={"rule": "mean", "target": "label"})
    learner, model = learner_for(plan), None
    model = copy.deepcopy(learner.model)
    inputs = some_inputs(kind="none")
    train_step(learner, plan.main, inputs)
    model.eval()
    expected = reference_budget(model, inputs.images, inputs.labels.tolist(), "part", predicted=False).mean().item()
    assert learner.tally.read()["budget"] / 6 == pytest.approx(expected, rel=1e-6)


def attacked(learner, phase, inputs):
    """What the attack was given: its target and its budget."""
    seen = {}

    def spy(model, x, target, budget, **rest):
        seen.update(target=target, budget=budget)
        return phase.attack(model, x, target, budget, **rest)

    train_step(learner, dataclasses.replace(phase, attack=spy), inputs)
    return seen["target"], seen["budget"]


def test_of_mixed_images_an_attack_on_margins_and_the_map_of_the_label_see_the_larger_parts_class():
    overrides = {"mask": {"rule": "mean", "target": "label"}}
    plan = plan_for("part", attack={"name": "mma", "steps": 1, "step_size": "3/255"}, **overrides)
    learner, inputs = learner_for(plan), some_inputs(kind="crop-flip-cutmix", seed=3)
    model = copy.deepcopy(learner.model).eval()
    noise = torch.stack([inputs.noise] * 3)
    target, budget = attacked(learner, plan.main, dataclasses.replace(inputs, noise=noise))
    x, own = moved(inputs.augmentation, inputs.images, 0.0)
    larger = torch.where(own > 0.5, inputs.labels, inputs.labels[[1, 0, 3, 2, 5, 4]])
    assert torch.equal(target, larger)
    assert not torch.equal(larger, inputs.labels)
    expected = reference_budget(model, x, larger.tolist(), "part", predicted=False)
    assert torch.allclose(budget.double(), expected, atol=1e-7)


@pytest.mark.parametrize("kind", ["crop-flip", "crop-flip-cutout", "crop-flip-cutmix"])
def test_a_stored_map_moves_with_its_image_and_what_it_does_not_know_gets_eps(kind):
    plan = plan_for("part", mask={"rule": "mean", "every": 1})
    learner = learner_for(plan)
    maps = torch.rand(6, 8, 8, generator=draws.generator(5, "maps")).double()
    inputs = some_inputs(maps=maps, kind=kind)
    _, budget = attacked(learner, plan.main, inputs)
    still = []
    for i in range(6):
        low, high = maps[i].min(), maps[i].max()
        heat = F.interpolate(((maps[i] - low) / (high - low))[None, None], (32, 32), mode="bicubic", antialias=True)[
            0
        ].clamp(0, 1)
        still.append(torch.where(heat > heat.mean(), EPS, LOW).double())
    expected, _ = moved(inputs.augmentation, still, EPS)
    assert torch.allclose(budget.double(), expected, atol=1e-7)


def test_dead_maps_get_eps_and_are_counted():
    plan = plan_for("part", mask={"rule": "mean", "every": 1})
    learner = learner_for(plan)
    maps = torch.rand(6, 8, 8, generator=draws.generator(5, "maps")).double()
    maps[1], maps[4] = 0, 3
    train_step(learner, plan.main, some_inputs(maps=maps, kind="none"))
    sums = learner.tally.read()
    assert round(sums["dead"]) == 2
    assert sums["high"] / 6 > 2 / 6


def test_another_layer_than_the_last_gives_a_finer_map():
    plan = plan_for("part", mask={"rule": "mean", "layer": "layer1"})
    learner = learner_for(plan)
    train_step(learner, plan.main, some_inputs())
    assert learner.model.training
    assert all(p.requires_grad for p in learner.model.parameters())
    assert 0 < learner.tally.read()["high"] / 6 < 1


@pytest.mark.parametrize(
    ("method", "kind"), [(m, "crop-flip") for m in METHODS] + [("part-m", kind) for kind in augment.AUGMENTS]
)
def test_step_never_waits_for_the_device(method, kind):
    """Fake tensors have no values: reading one, or branching on one, raises."""
    plan = plan_for(method, objective={"smoothing": 0.1})
    learner = Learner(plan.model, plan.config, torch.device("cpu"))
    inputs = some_inputs(start=plan.main.start, kind=kind)
    inputs = StepInputs(inputs.images.float(), inputs.labels, inputs.augmentation, inputs.noise.float())
    with FakeTensorMode(allow_non_fake_inputs=True):
        train_step(learner, plan.main, inputs)


def test_step_leaves_the_global_generator_alone():
    plan = plan_for("part")
    learner = learner_for(plan)
    before = torch.get_rng_state()
    train_step(learner, plan.main, some_inputs())
    assert torch.equal(before, torch.get_rng_state())
