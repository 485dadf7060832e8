"""The public Python API, and the promise that no call changes the caller's model."""

import pytest
import torch
from torch import nn

import pixelpart as pp
from command_line import few
from pixelpart.runtime.progress import Screen


@pytest.fixture
def model():
    return pp.models.build("tiny-cnn", num_classes=10)


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(1)
    return torch.rand(4, 3, 32, 32, generator=generator), torch.randint(10, (4,), generator=generator)


def test_package_has_the_names_that_it_lists():
    for name in pp.__all__:
        assert getattr(pp, name) is not None
    for name in ("evaluate", "train", "check", "compare", "corruptions", "explain", "sweep"):
        assert callable(getattr(pp, name))
    with pytest.raises(AttributeError, match="no attribute 'nope'"):
        _ = pp.nope


def test_from_a_model_to_a_loss(model, batch):
    x, y = batch
    g = torch.Generator().manual_seed(0)
    model.eval()
    acts = model.features(x)
    assert torch.equal(model.head(acts), model(x))

    cam = pp.masks.cam(model, x, y, method="gradcam")
    by_hand = torch.einsum("bk,bkuv->buv", model.linear.weight[y], acts).relu() / acts[0, 0].numel()
    assert torch.allclose(cam, by_hand, atol=1e-6)

    heat = pp.masks.heatmap(model, x, method="gradcam", target=None)
    assert heat.shape == (4, 32, 32)
    assert (heat >= 0).all()
    assert (heat <= 1).all()

    budget = pp.masks.budget(heat, eps=8 / 255, eps_low=7 / 255, rule="mean")
    assert budget.shape == (4, 1, 32, 32)
    assert set(budget.unique().tolist()) <= {torch.tensor(level / 255).item() for level in (7, 8)}

    x_adv = pp.attacks.pgd(model, x, y, budget, step_size=2 / 255, steps=2, start="uniform", generator=g)
    assert ((x_adv - x).abs() <= budget + 1e-6).all()
    x_adv = pp.attacks.mma(model, x, y, budget, step_size=2 / 255, steps=2, targets=3, generator=g)
    assert ((x_adv - x).abs() <= budget + 1e-6).all()

    assert pp.objectives.at(model, x, x_adv, y) == nn.functional.cross_entropy(model(x_adv), y)
    for loss in (pp.objectives.trades, pp.objectives.mart):
        assert loss(model, x, x_adv, y, beta=6.0).isfinite()


def test_from_a_recipe_to_an_accuracy(tmp_path, monkeypatch):
    monkeypatch.setitem(pp.data.SETS, "shapes", few())
    config = pp.recipes.shapes_part(
        seed=0, epochs=2, batch_size=50, holdout=10, probe=16, burn_in={"epochs": 1}, attack={"steps": 1}
    )
    run = pp.train(config, out=tmp_path / "part", device="cpu", screen=Screen(quiet=True))
    assert isinstance(run, pp.Run)
    assert (run.dir, run.config) == (tmp_path / "part", config)
    assert [row["epoch"] for row in run.metrics] == [1, 2]
    assert not run.model.training

    result = pp.evaluate(run, attacks=["natural", "pgd2"], device="cpu")
    x, y = pp.data.load("shapes", split="test")
    assert (x.dtype, x.shape[1:], y.dtype) == (torch.uint8, (3, 32, 32), torch.int64)
    with torch.no_grad():
        right = run.model(x.float() / 255).argmax(1) == y
    assert result["natural"].accuracy == right.sum().item() / 160
    assert result["pgd2"].accuracy <= result["natural"].accuracy
    assert "natural" in str(result)


def test_any_module_on_unit_images_can_be_attacked_and_evaluated(batch):
    x, y = batch
    module = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 10))
    x_adv = pp.attacks.pgd(module, x, y, 8 / 255, step_size=8 / 255, steps=1, start="none")
    grad = torch.autograd.functional.jacobian(lambda v: nn.functional.cross_entropy(module(v), y), x)
    assert torch.allclose(x_adv, (x + 8 / 255 * grad.sign()).clamp(0, 1), atol=1e-6)
    assert pp.evaluate(module, attacks="natural", data=(x, y))["natural"].n == 4


# -- no call changes the caller's model


def state_of(model):
    return (
        [module.training for module in model.modules()],
        [(p.requires_grad, p.grad) for p in model.parameters()],
        [len(module._forward_hooks) + len(module._backward_hooks) for module in model.modules()],
        {name: tensor.clone() for name, tensor in model.state_dict().items()},
        torch.get_rng_state(),
        torch.is_grad_enabled(),
    )


def assert_same(a, b):
    assert a[:3] == b[:3]
    assert all(torch.equal(a[3][name], b[3][name]) for name in a[3])
    assert torch.equal(a[4], b[4])
    assert a[5] == b[5]


CALLS = {
    "cam": lambda model, x, y: pp.masks.cam(model, x, y),
    "cam of a layer": lambda model, x, y: pp.masks.cam(model, x, y, layer="layer2", method="layercam"),
    "heatmap": lambda model, x, y: pp.masks.heatmap(model, x),
    "pgd": lambda model, x, y: pp.attacks.pgd(model, x, y, 8 / 255, step_size=2 / 255, steps=2),
    "mma": lambda model, x, y: pp.attacks.mma(model, x, y, 8 / 255, step_size=2 / 255, steps=2),
    "evaluate": lambda model, x, y: pp.evaluate(model, attacks=["natural", "pgd2"], data=(x, y)),
    "wrap": lambda model, x, y: pp.models.wrap(model, features="layer4", head="linear"),
}


@pytest.mark.parametrize("name", CALLS)
def test_call_does_not_change_the_model(name, model, batch):
    model.train()
    model.layer3.bn.eval()
    model.layer1.requires_grad_(False)
    before = state_of(model)
    CALLS[name](model, *batch)
    assert_same(state_of(model), before)


@pytest.mark.parametrize("name", [name for name in CALLS if name != "wrap"])
def test_failing_call_does_not_change_the_model(name, model, batch, monkeypatch):
    model.train()
    before = state_of(model)

    def fail(acts):
        raise MemoryError("in the third layer")

    with monkeypatch.context() as patch:
        patch.setattr(model.layer3, "forward", fail)
        with pytest.raises(MemoryError):
            CALLS[name](model, *batch)
    assert_same(state_of(model), before)
