"""Claims that every attack satisfies. A new attack is tested by its entry in ATTACKS, or in SEARCHES below."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from pixelpart.attacks import ATTACKS, Attack, mma, pgd
from pixelpart.attacks.apgd import apgd, apgd_search, mm3, mm3_search
from pixelpart.attacks.ball import default_generator, draw_noise, in_dtype_of, inside, start_point
from pixelpart.attacks.fab import fab, fab_search
from pixelpart.attacks.search import budget_per_sample, target_classes
from pixelpart.attacks.square import square, square_search
from pixelpart.losses import margin

STEPS = {"step_size": 2 / 255, "steps": 5}
KEYS = torch.tensor([31, 41, 59, 26])
quick = settings(deadline=None, max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture])


@dataclass(frozen=True)
class SearchAttack:
    """A search with the signature of an attack with a step size, which it ignores.

    In l2 and l1 it gets `scale` times the largest budget of the sample as its radius.
    """

    function: Callable
    make: Callable
    steps: Callable = lambda steps: {"steps": steps}
    fixed: tuple = ()
    norm: str = "linf"
    scale: float = 1

    def __call__(self, model, x, y, budget, *, steps, step_size=None, **given):
        return self.function(model, x, y, self.radius(budget), **self.steps(steps), **dict(self.fixed), **given)

    def search(self, steps):
        return self.make(**self.steps(steps), **dict(self.fixed))

    def radius(self, budget):
        if self.norm == "linf":
            return budget
        return self.scale * (budget.amax((1, 2, 3), keepdim=True) if isinstance(budget, Tensor) else budget)


@dataclass(frozen=True)
class StepAttack:
    """An entry of ATTACKS, called as training and evaluation call it: with start images, by default random ones."""

    entry: Attack

    def __call__(self, model, x, y, budget, *, step_size, steps, start=None, generator=None):
        if start is None:
            generator = generator or default_generator(x)
            noises = [draw_noise(x, kind="uniform", generator=generator) for _ in range(self.entry.starts)]
            starts = [start_point(x, in_dtype_of(x, budget), noise, kind="uniform").detach() for noise in noises]
            start = starts[0] if len(starts) == 1 else torch.stack(starts)
        return self.entry.run(model, x, y, budget, step_size=step_size, steps=steps, start=start)


SEARCHES = {
    "apgd": SearchAttack(apgd, apgd_search),
    "apgd-targeted": SearchAttack(apgd, apgd_search, fixed=(("targets", 3),)),
    "apgd-l2": SearchAttack(apgd, apgd_search, fixed=(("norm", "l2"),), norm="l2", scale=3),
    "apgd-l1": SearchAttack(apgd, apgd_search, fixed=(("norm", "l1"),), norm="l1", scale=12),
    "mm3": SearchAttack(mm3, mm3_search),
    "fab": SearchAttack(fab, fab_search, fixed=(("targets", 3), ("restarts", 2))),
    "square": SearchAttack(square, square_search, steps=lambda steps: {"queries": 5 * steps}),
}
STEPPING = {name: StepAttack(entry) for name, entry in ATTACKS.items()}
EVERY = STEPPING | SEARCHES
RADIUS = {"apgd-l2": "its budget is a radius", "apgd-l1": "its budget is a radius"}


def each(table, reasons=None):
    """The claim is made of each attack in the table except those named, each with the reason."""
    reasons = reasons or {}
    assert reasons.keys() <= table.keys()
    claimed = [pytest.param(attack, id=name) for name, attack in table.items() if name not in reasons]
    return pytest.mark.parametrize("attack", claimed)


def is_inside(attack, x_adv, x, budget):
    if isinstance(attack, SearchAttack):
        return bool(inside(x_adv, x, attack.radius(budget), norm=attack.norm).all())
    return bool(inside(x_adv, x, budget).all())


@each(EVERY)
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
    assert is_inside(attack, x_adv, x, budget)


@each(EVERY)
@pytest.mark.parametrize("budget", [0.0, torch.zeros(4, 1, 4, 4), torch.zeros(4, 3, 4, 4)], ids=["float", "1", "3"])
def test_zero_budget_returns_x(attack, budget, make_net, make_batch):
    x, y, _ = make_batch()
    assert torch.equal(attack(make_net(), x, y, budget, **STEPS), x)


@each(EVERY)
def test_the_dtype_of_the_budget_does_not_change_the_images(attack, make_net, make_batch):
    x, y, budget = make_batch()
    x_adv = attack(make_net(), x, y, budget.double(), **STEPS)
    assert x_adv.dtype == x.dtype
    assert torch.equal(x_adv, attack(make_net(), x, y, budget, **STEPS))


@each(EVERY, RADIUS)
def test_a_pixel_without_budget_does_not_change(attack, make_net, make_batch):
    x, y, budget = make_batch()
    budget[:, :, 1] = 0
    x_adv = attack(make_net(), x, y, budget, **STEPS)
    assert torch.equal(x_adv[:, :, 1], x[:, :, 1])
    assert not torch.equal(x_adv, x)


@each(EVERY)
@pytest.mark.parametrize("classes", [2, 5, 200])
def test_the_margin_does_not_fall(attack, classes, make_net, make_batch):
    net, (x, y, budget) = make_net(classes).eval().requires_grad_(False), make_batch(16, classes=classes)
    before, after = (margin(net(z), y) for z in (x, attack(net, x, y, budget, **STEPS)))
    assert after.mean() > before.mean()
    assert (after >= before).float().mean() > 0.9  # an attack may start elsewhere than at x


@each(EVERY, {"fab": "it looks for the smallest change that errs", "square": "it is random"} | RADIUS)
@quick
@given(seed=st.integers(0, 1000))
def test_finds_the_worst_corner_of_a_linear_model(attack, seed, make_batch):
    """With two classes the worst image is x + budget * sign(w_other - w_y), clamped to [0, 1]."""
    x, y, budget = make_batch(classes=2, seed=seed)
    w = 0.1 * torch.randn(2, 48, generator=torch.Generator().manual_seed(seed))
    x_adv = attack(lambda z: z.flatten(1) @ w.T, x, y, budget, step_size=0.05, steps=5)
    sign = (w[1 - y] - w[y]).sign().reshape(x.shape)
    torch.testing.assert_close(x_adv, (x + budget * sign).clamp(0, 1), atol=1e-6, rtol=0)


@each(EVERY)
def test_same_seed_gives_same_bits_and_the_default_seed_is_zero(attack, make_net, make_batch):
    net, (x, y, budget) = make_net(), make_batch()

    def run(seed):
        return attack(net, x, y, budget, step_size=0.001, steps=2, generator=torch.Generator().manual_seed(seed))

    assert torch.equal(run(0), run(0))
    assert torch.equal(run(0), attack(net, x, y, budget, step_size=0.001, steps=2))
    assert not torch.equal(run(0), run(1))


@pytest.mark.parametrize("attack", [pgd, mma])
def test_a_named_start_is_drawn_from_the_generator_and_the_default_seed_is_zero(attack, make_net, make_batch):
    net, (x, y, budget) = make_net(), make_batch()

    def run(**given):
        return attack(net, x, y, budget, step_size=0.001, steps=2, **given)

    zero, one = (torch.Generator().manual_seed(seed) for seed in (0, 1))
    assert torch.equal(run(), run(generator=zero, start="uniform"))
    assert not torch.equal(run(), run(generator=one))


@each(STEPPING)
def test_takes_the_number_of_start_images_in_its_entry_and_uses_each(attack, make_net, make_batch):
    net, (x, y, _) = make_net(), make_batch(16)
    starts = attack.entry.starts
    noise = 0.2 * torch.rand(starts, *x.shape, generator=torch.Generator().manual_seed(1)) - 0.1

    def run(noise):
        start = x + noise
        return attack(net, x, y, 0.1, step_size=0.001, steps=2, start=start[0] if starts == 1 else start)

    assert torch.equal(run(noise), run(noise))
    for number in range(starts):
        other = noise.clone()
        other[number] = 0
        assert not torch.equal(run(other), run(noise))


@each(STEPPING)
def test_a_sample_does_not_depend_on_its_batch(attack, make_net, make_batch):
    net, (x, y, budget) = make_net(dtype=torch.float64), make_batch(dtype=torch.float64)

    def run(x, y, budget):
        start = x.expand(attack.entry.starts, *x.shape)
        return attack(net, x, y, budget, start=start[0] if len(start) == 1 else start, **STEPS)

    alone = [run(*(t[i : i + 1] for t in (x, y, budget))) for i in range(4)]
    torch.testing.assert_close(run(x, y, budget), torch.cat(alone))


class Fault(nn.Module):
    """Raises at its fourth call, if armed."""

    def __init__(self, armed):
        super().__init__()
        self.armed, self.calls = armed, 0

    def forward(self, x):
        self.calls += 1
        if self.armed and self.calls == 4:
            raise RuntimeError("fault")
        return x


@each(EVERY)
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


@each(EVERY)
def test_train_mode_grad_mode_and_the_type_of_the_model_do_not_matter(attack, make_net, make_batch):
    net, (x, y, budget) = make_net().eval(), make_batch()
    expected = attack(net, x, y, budget, **STEPS)
    assert torch.equal(attack(net.train(), x, y, budget, **STEPS), expected)
    net.eval()
    assert torch.equal(attack(lambda z: net(z), x, y, budget, **STEPS), expected)
    assert all(p.grad is None for p in net.parameters())
    x_adv = attack(net, x.requires_grad_(), y, budget.requires_grad_(), **STEPS)
    assert not x_adv.requires_grad
    assert x.grad is None
    with torch.no_grad():
        assert torch.equal(attack(net, x, y, budget, **STEPS), x_adv)


@each(EVERY)
def test_reads_no_value_of_a_tensor(attack):
    """Fake tensors have shapes and no values: what runs on them can be captured into a CUDA graph."""
    short = STEPS | {"steps": 1}
    with FakeTensorMode():
        x, y, budget = torch.rand(4, 3, 4, 4), torch.zeros(4, dtype=torch.long), torch.rand(4, 1, 4, 4)
        net = nn.Sequential(nn.Flatten(), nn.Linear(48, 5))
        assert attack(net, x, y, budget, **short).shape == x.shape
        with pytest.raises(DataDependentOutputException):
            attack(lambda z: net(z) * z.max().item(), x, y, budget, **short)


# -- searches, step by step


def states_of(attack, net, x, y, budget, keys=KEYS, *, steps=6, run=None):
    """The states of a search: the initial one, and one after each step."""
    search = attack.search(steps)
    target = target_classes(net(x).detach(), y, 0) if search.targets else y
    states = [search.begin(x, y, budget_per_sample(attack.radius(budget), x), keys, target)]
    for _ in range(search.steps if run is None else run):
        states.append(search.advance(net, states[-1]))
    return states


@each(SEARCHES)
@pytest.mark.parametrize(
    ("images", "logits", "channels"),
    [(torch.float32, torch.float32, 0), (torch.float32, torch.bfloat16, 1), (torch.float64, torch.float64, 3)],
)
def test_a_step_makes_a_new_state_of_the_same_form(attack, images, logits, channels, make_net, make_batch):
    model, (x, y, _) = make_net(dtype=images).eval(), make_batch(dtype=images)
    budget = torch.full((4, channels, 4, 4), 0.1, dtype=images) if channels else 0.1

    def net(z):
        return model(z).to(logits)

    (begun,) = states_of(attack, net, x, y, budget, run=0)
    state, copies = begun, {name: tensor.clone() for name, tensor in begun.items()}
    for number in range(1, 5):
        last, state = state, attack.search(2).advance(net, state)
        for name, tensor in state.items():  # in a graph one may be overwritten before the next is read
            others = {other.data_ptr() for key, other in last.items() if key != name}
            assert tensor is last[name] or tensor.data_ptr() not in others
        assert {k: (t.shape, t.dtype) for k, t in state.items()} == {k: (t.shape, t.dtype) for k, t in begun.items()}
        assert state["step"].tolist() == [number] * 4
        assert not any(tensor.requires_grad for tensor in (*last.values(), *state.values()))
    assert all(len(tensor) == 4 for tensor in begun.values())
    assert all(torch.equal(tensor, copies[name]) for name, tensor in begun.items())


@each(SEARCHES)
def test_a_row_depends_neither_on_its_batch_nor_on_the_steps_of_the_others(attack, make_net, make_batch):
    model, (x, y, budget) = make_net().eval(), make_batch()

    def net(z):  # each image alone: its logits do not change with the batch, not even in the last bit
        return torch.cat([model(row[None]) for row in z])

    alone = [states_of(attack, net, *(t[i : i + 1] for t in (x, y, budget, KEYS)), steps=12) for i in range(4)]
    ahead = [0, 1, 3, 8]
    mixed = {name: torch.cat([alone[i][n][name] for i, n in enumerate(ahead)]) for name in alone[0][0]}
    for _ in range(4):
        mixed = attack.search(12).advance(net, mixed)
    for i, n in enumerate(ahead):
        assert [name for name in mixed if not torch.equal(mixed[name][i], alone[i][n + 4][name][0])] == []


@each(SEARCHES)
def test_the_margin_is_that_of_x_adv_and_never_falls(attack, make_net, make_batch):
    net, (x, y, budget) = make_net().eval().requires_grad_(False), make_batch(16)
    states = states_of(attack, net, x, y, 0.5 * budget, torch.arange(16))
    for last, state in pairwise(states):
        found = state["margin"] > -torch.inf  # in l1 the first points may be outside the ball
        torch.testing.assert_close(state["margin"][found], margin(net(state["x_adv"]), y)[found], atol=1e-4, rtol=0)
        assert (state["margin"] >= last["margin"]).all()
        assert torch.equal(state["hit"], state["margin"] >= 0)
    assert 0 < state["hit"].sum() < 16


@each(SEARCHES)
def test_steps_beyond_the_last_do_no_harm(attack, make_net, make_batch):
    net, (x, y, budget) = make_net().eval(), make_batch()
    *_, state = states_of(attack, net, x, y, budget, steps=3, run=20)
    assert all(tensor.isfinite().all() for tensor in state.values() if tensor.is_floating_point() and tensor.ndim == 4)
    assert is_inside(attack, state["x_adv"], x, budget)


@each(SEARCHES)
def test_the_draws_of_a_search_come_only_from_the_keys(attack, make_net, make_batch):
    net, (x, y, budget) = make_net().eval(), make_batch()

    def passed(keys, seed):
        """Every tensor of every state: different starts may lead to the same end."""
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        states = states_of(attack, net, x, y, budget, keys, steps=3)
        assert torch.equal(torch.get_rng_state(), before)
        return [tensor for state in states for name, tensor in state.items() if name != "key"]

    one, same, other = passed(KEYS, 0), passed(KEYS, 1), passed(KEYS + 2, 0)  # + 2: the same restart
    assert all(map(torch.equal, one, same))
    moved = [any(not torch.equal(a[i], b[i]) for a, b in zip(one, other, strict=True)) for i in range(4)]
    draws_nothing = KEYS % 2 == 0 if attack is SEARCHES["fab"] else KEYS < 0  # its first restart starts at x
    assert moved == (~draws_nothing).tolist()
