"""What every attack in the table keeps to; a new attack is tested by its line in the table."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from pixelpart.attacks import ATTACKS

STEPS = {"step_size": 2 / 255, "steps": 5}
pytestmark = pytest.mark.parametrize("attack", [pytest.param(entry.run, id=name) for name, entry in ATTACKS.items()])
quick = settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])


@quick
@given(
    seed=st.integers(0, 1000), channels=st.sampled_from([0, 1, 3]), steps=st.integers(0, 6), size=st.floats(0.001, 1)
)
def test_stays_inside_the_budget_and_the_image_range(attack, seed, channels, steps, size, make_net, make_batch):
    x, y, _ = make_batch(seed=seed)
    g = torch.Generator().manual_seed(seed)
    budget = size * torch.rand(4, channels, 4, 4, generator=g) if channels else size
    x_adv = attack(make_net(), x, y, budget, step_size=size, steps=steps, generator=g)
    assert x_adv.shape == x.shape
    assert x_adv.dtype == x.dtype
    assert ((x_adv - x).abs() - budget).max() <= 1e-6
    assert x_adv.min() >= 0
    assert x_adv.max() <= 1


@pytest.mark.parametrize("budget", [0.0, torch.zeros(4, 1, 4, 4), torch.zeros(4, 3, 4, 4)], ids=["float", "1", "3"])
def test_zero_budget_returns_x(attack, budget, make_net, make_batch):
    x, y, _ = make_batch()
    assert torch.equal(attack(make_net(), x, y, budget, **STEPS), x)


def test_a_pixel_without_budget_stays(attack, make_net, make_batch):
    x, y, budget = make_batch()
    budget[:, :, 1] = 0
    x_adv = attack(make_net(), x, y, budget, **STEPS)
    assert torch.equal(x_adv[:, :, 1], x[:, :, 1])
    assert not torch.equal(x_adv, x)


@pytest.mark.parametrize("seed", range(5))
def test_loss_does_not_fall(attack, seed, make_net, make_batch):
    net, (x, y, budget) = make_net().eval(), make_batch(16, seed=seed)
    x_adv = attack(net, x, y, budget, **STEPS)
    before, after = (nn.functional.cross_entropy(net(z), y) for z in (x, x_adv))
    assert after > before


@quick
@given(seed=st.integers(0, 1000))
def test_finds_the_worst_corner_of_a_linear_model(attack, seed, make_batch):
    """Two classes, logits linear in the pixels: the worst image is x + budget * sign(w_other - w_y), cut to [0, 1]."""
    x, y, budget = make_batch(classes=2, seed=seed)
    w = 0.1 * torch.randn(2, 48, generator=torch.Generator().manual_seed(seed))
    x_adv = attack(lambda z: z.flatten(1) @ w.T, x, y, budget, step_size=0.05, steps=5)
    towards = (w[1 - y] - w[y]).sign().reshape(x.shape)
    torch.testing.assert_close(x_adv, (x + budget * towards).clamp(0, 1), atol=1e-6, rtol=0)


def test_same_seed_same_bits_and_none_is_seed_zero(attack, make_net, make_batch):
    net, (x, y, budget) = make_net(), make_batch()

    def run(seed):
        return attack(net, x, y, budget, step_size=0.001, steps=2, generator=torch.Generator().manual_seed(seed))

    assert torch.equal(run(0), run(0))
    assert torch.equal(run(0), attack(net, x, y, budget, step_size=0.001, steps=2))
    assert not torch.equal(run(0), run(1))


def test_takes_as_many_start_images_as_its_entry_says_and_each_counts(attack, make_net, make_batch):
    net, (x, y, _) = make_net(), make_batch(16)
    (starts,) = (entry.starts for entry in ATTACKS.values() if entry.run is attack)
    noise = 0.2 * torch.rand(starts, *x.shape, generator=torch.Generator().manual_seed(1)) - 0.1

    def run(noise):
        start = x + noise
        return attack(net, x, y, 0.1, step_size=0.001, steps=2, start=start[0] if starts == 1 else start)

    assert torch.equal(run(noise), run(noise))
    for number in range(starts):
        other = noise.clone()
        other[number] = 0
        assert not torch.equal(run(other), run(noise))


def test_a_sample_does_not_depend_on_its_batch(attack, make_net, make_batch):
    net, (x, y, budget) = make_net(dtype=torch.float64), make_batch(dtype=torch.float64)
    alone = [attack(net, *(t[i : i + 1] for t in (x, y, budget)), start="none", **STEPS) for i in range(4)]
    torch.testing.assert_close(attack(net, x, y, budget, start="none", **STEPS), torch.cat(alone))


def test_attacks_the_model_in_eval_mode(attack, make_net, make_batch):
    x, y, budget = make_batch()
    training, evaluating = (attack(make_net().train(mode), x, y, budget, **STEPS) for mode in (True, False))
    assert torch.equal(training, evaluating)


class Fault(nn.Module):
    """Raises at its fourth call, if told to."""

    def __init__(self, armed):
        super().__init__()
        self.armed, self.calls = armed, 0

    def forward(self, x):
        self.calls += 1
        if self.armed and self.calls == 4:
            raise RuntimeError("fault")
        return x


@pytest.mark.parametrize("fails", [False, True], ids=["finishes", "raises"])
@pytest.mark.parametrize("grad", [True, False], ids=["grad", "no_grad"])
def test_leaves_no_trace(attack, fails, grad, make_net, make_batch):
    x, y, budget = make_batch()
    model = nn.Sequential(Fault(fails), make_net()).train()
    model[1].act.eval()
    model[1].conv.bias.requires_grad_(False)
    model[1].linear.weight.grad = torch.ones_like(model[1].linear.weight)
    model[1].norm.register_forward_hook(lambda *_: None)
    inputs, copies = (x, y, budget), [t.clone() for t in (x, y, budget)]

    def trace():
        return {
            "modes": [m.training for m in model.modules()],
            "hooks": [list(hooks) for m in model.modules() for hooks in (m._forward_hooks, m._forward_pre_hooks)],
            "backward hooks": [list(m._backward_hooks) for m in model.modules()],
            "flags": [p.requires_grad for p in model.parameters()],
            "grads": [None if p.grad is None else p.grad.tolist() for p in model.parameters()],
            "state": {name: tensor.tolist() for name, tensor in model.state_dict().items()},
            "rng": torch.get_rng_state().tolist(),
            "grad mode": torch.is_grad_enabled(),
        }

    with torch.set_grad_enabled(grad):
        before = trace()
        if fails:
            with pytest.raises(RuntimeError, match="fault"):
                attack(model, x, y, budget, **STEPS)
        else:
            attack(model, x, y, budget, **STEPS)
        assert trace() == before
    assert all(torch.equal(t, copy) and t.grad is None for t, copy in zip(inputs, copies, strict=True))


def test_result_has_no_history_and_needs_no_grad_mode(attack, make_net, make_batch):
    net, (x, y, budget) = make_net(), make_batch()
    x_adv = attack(net, x.requires_grad_(), y, budget.requires_grad_(), **STEPS)
    assert not x_adv.requires_grad
    assert x.grad is None
    with torch.no_grad():
        assert torch.equal(attack(net, x, y, budget, **STEPS), x_adv)


def test_a_plain_function_is_attacked_like_a_module(attack, make_net, make_batch):
    net, (x, y, budget) = make_net().eval(), make_batch()
    assert torch.equal(attack(lambda z: net(z), x, y, budget, **STEPS), attack(net, x, y, budget, **STEPS))
    assert all(p.grad is None for p in net.parameters())


@pytest.mark.parametrize("classes", [2, 200])
def test_few_and_many_classes(attack, classes, make_net, make_batch):
    net, (x, y, budget) = make_net(classes).eval(), make_batch(classes=classes)
    before, after = (nn.functional.cross_entropy(net(z), y) for z in (x, attack(net, x, y, budget, **STEPS)))
    assert after > before


def test_asks_no_tensor_for_its_value(attack, make_net):
    """Fake tensors have shapes and no values: what runs on them can be captured into a CUDA graph."""
    with FakeTensorMode():
        x, y, budget = torch.rand(4, 3, 4, 4), torch.zeros(4, dtype=torch.long), torch.rand(4, 1, 4, 4)
        net = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(64, 5))
        assert attack(net, x, y, budget, **STEPS).shape == x.shape
        with pytest.raises(DataDependentOutputException):
            attack(lambda z: net(z) * z.max().item(), x, y, budget, **STEPS)
