"""Auto-PGD in l2 and l1, whose budget is a radius; in l_inf it is tested in test_apgd.py and by the harness."""

import math

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from pixelpart.attacks import SEARCHES, TOGETHER
from pixelpart.attacks.apgd import apgd, apgd_search
from pixelpart.attacks.autoattack import all_tries, hunt
from pixelpart.attacks.ball import inside, length, project_l1, project_l2, unit
from pixelpart.attacks.norms import Balls
from pixelpart.attacks.search import Search, keep, opening, spread, targets_of
from pixelpart.draws import hashed_normal
from pixelpart.errors import UserError
from pixelpart.losses import margin

NORMS = ["l2", "l1"]
RADII = {"l2": 0.1, "l1": 0.4}
KINDS = {"ce": {}, "dlr-targeted": {"targets": 1}}
PROJECTIONS = {"l2": project_l2, "l1": project_l1}
quick = settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])


def row(*values, dtype=torch.float64):
    return torch.tensor(values, dtype=dtype).reshape(1, 1, 1, -1)


def radii(*values):
    return torch.tensor(values, dtype=torch.float64).reshape(-1, 1, 1, 1)


def frame(b, n, seed, dtype=torch.float64):
    """Images of n pixels, a third of them at 0 or 1, and others as far as 2 away, most of the changes small."""
    g = torch.Generator().manual_seed(seed)
    x = (3 * torch.rand(b, 1, 1, n, generator=g, dtype=dtype) - 1).clamp(0, 1)
    return x, x + 2 * (2 * torch.rand(x.shape, generator=g, dtype=dtype) - 1) ** 3


# projections


def test_the_l1_projection_by_hand():
    x = row(0.5, 0.5, 0.5, 0.0, 1.0)
    far = row(0.9, 0.3, 0.55, -0.5, 0.9)  # changes 0.4, -0.2, 0.05, none there is room for, -0.1
    torch.testing.assert_close(project_l1(far, x, 1.0), row(0.9, 0.3, 0.55, 0.0, 0.9))
    torch.testing.assert_close(project_l1(far, x, 0.4), row(0.8, 0.4, 0.5, 0.0, 1.0))  # each 0.1 less, down to 0
    torch.testing.assert_close(project_l1(far, x, 0.1), row(0.6, 0.5, 0.5, 0.0, 1.0))
    # both far out of the box: 0.1 of room goes first, and the other has what is left of the radius
    torch.testing.assert_close(project_l1(row(2.0, 1.5), row(0.9, 0.2), 0.4), row(1.0, 0.5))


def test_the_l2_projection_by_hand():
    x = row(0.5, 0.5, 1.0)
    torch.testing.assert_close(project_l2(row(0.8, 0.1, 1.0), x, 0.25), row(0.65, 0.3, 1.0))
    torch.testing.assert_close(project_l2(row(0.8, 0.1, 2.2), x, 0.65), row(0.65, 0.3, 1.0))  # |d| is 1.3


@given(seed=st.integers(0, 10**6), n=st.integers(1, 6), radius=st.floats(0.01, 4))
@settings(deadline=None, max_examples=40)
def test_the_l1_projection_is_what_an_optimiser_finds(seed, n, radius):
    x, far = frame(1, n, seed)
    found = project_l1(far, x, radius).flatten().numpy()
    x, far = x.flatten().numpy(), far.flatten().numpy()
    assert np.abs(found - x).sum() <= radius + 1e-12
    # the changes up and down are variables of their own, so that the norm is linear in them
    bounds = [(0, 1 - value) for value in x] + [(0, value) for value in x]
    best = minimize(
        lambda d: ((x + d[:n] - d[n:] - far) ** 2).sum(),
        np.zeros(2 * n),
        jac=lambda d: 2 * (x + d[:n] - d[n:] - far) @ np.hstack([np.eye(n), -np.eye(n)]),
        bounds=bounds,
        constraints={"type": "ineq", "fun": lambda d: radius - d.sum(), "jac": lambda d: -np.ones(2 * n)},
        options={"ftol": 1e-12, "maxiter": 300},
    )
    assert ((found - far) ** 2).sum() <= best.fun + 1e-6


@given(seed=st.integers(0, 10**6), n=st.integers(1, 60), radius=st.floats(0, 20), twice=st.booleans())
@settings(deadline=None, max_examples=60)
def test_the_l1_projection_takes_as_much_off_every_pixel_that_is_free(seed, n, radius, twice):
    x, far = frame(5, n, seed)
    if twice:  # pixels alike, so that many reach their ends at once
        x, far = x.repeat(1, 1, 1, 2), far.repeat(1, 1, 1, 2)
    near = project_l1(far, x, radius)
    wished, left = (far - x).flatten(1), (near - x).flatten(1)
    assert ((left == 0) | (left.sign() == wished.sign())).all()
    assert ((near >= 0) & (near <= 1)).all()
    room = torch.where(wished > 0, 1 - x.flatten(1), x.flatten(1))
    reach = room.minimum(wished.abs())
    torch.testing.assert_close(left.abs().sum(1), reach.sum(1).clamp(max=radius), atol=1e-12, rtol=1e-12)
    taken = wished.abs() - left.abs()
    free = (left.abs() > 1e-9) & (left.abs() < room - 1e-9)
    gone, full = (((edge - left.abs()).abs() <= 1e-9) & (room > 1e-9) for edge in (torch.zeros_like(room), room))
    for i in free.any(1).nonzero()[:, 0]:
        level = taken[i, free[i]]
        assert level.max() - level.min() < 1e-9
        assert (taken[i, gone[i]] <= level.max() + 1e-9).all()  # it had no more to give
        assert (taken[i, full[i]] >= level.min() - 1e-9).all()  # it would have gone further


@given(seed=st.integers(0, 10**6), radius=st.floats(0.01, 30))
@settings(deadline=None, max_examples=30)
def test_the_l1_projection_is_the_reference_s(seed, radius):
    autopgd = pytest.importorskip("pyautoattack.autopgd_base")
    x, far = frame(4, 48, seed, torch.float32)
    expected = far + autopgd.L1_projection(x, far - x, radius)
    torch.testing.assert_close(project_l1(far, x, radius), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("norm", NORMS)
@given(seed=st.integers(0, 10**6), radius=st.floats(0, 30), dtype=st.sampled_from([torch.float32, torch.float64]))
@settings(deadline=None, max_examples=40)
def test_a_projection_lies_inside_and_what_lies_inside_stays(norm, seed, radius, dtype):
    x, far = frame(6, 300, seed, dtype)
    near = PROJECTIONS[norm](far, x, radius)
    if radius > 5 or dtype is torch.float64:  # rounding of 300 fp32 pixels adds up to more than 1e-6 of a smaller one
        assert inside(near, x, radius, norm=norm).all()
    within = x + 0.9 * (near - x)
    within = torch.where(inside(within, x, 0.95 * radius, norm=norm)[:, None, None, None], within, x)
    assert torch.allclose(PROJECTIONS[norm](within, x, radius), within, atol=1e-7, rtol=0)
    assert torch.equal(PROJECTIONS[norm](x, x, radius), x)


@pytest.mark.parametrize("norm", NORMS)
def test_every_sample_has_its_own_radius(norm):
    x, far = frame(3, 20, 0)
    together = PROJECTIONS[norm](far, x, radii(0.0, 0.5, 3.0))
    for i, radius in enumerate((0.0, 0.5, 3.0)):
        torch.testing.assert_close(together[i : i + 1], PROJECTIONS[norm](far[i : i + 1], x[i : i + 1], radius))
    assert torch.equal(together[0], x[0])
    assert inside(together, x, radii(0.0, 0.5, 3.0), norm=norm).all()
    assert inside(together, x, 0.5, norm=norm).tolist() == [True, True, False]


def test_inside_by_hand():
    x = row(0.5, 0.5, 0.0).expand(5, 1, 1, 3)
    near = torch.cat([row(0.8, 0.9, 0.0), row(0.8, 0.9, 3e-3), row(0.8, 0.9, -1e-9), row(0.5, 0.0, 0.0), x[:1]])
    assert inside(near, x, 0.5, norm="l2").tolist() == [True, False, False, True, True]
    assert inside(near, x, 0.7, norm="l1").tolist() == [True, False, False, True, True]
    assert inside(near, x, 0.5 / (1 + 0.9e-6), norm="l2").tolist() == [True, False, False, True, True]
    assert inside(near, x, 0.5 / (1 + 1.1e-6), norm="l2").tolist() == [False, False, False, False, True]
    assert inside(near, x, 0.0, norm="l1").tolist() == [False, False, False, False, True]
    assert inside(near, x, 0.5).tolist() == [True, True, False, True, True]


def test_a_unit_vector_does_not_depend_on_how_small_the_gradient_is():
    way = torch.randn(3, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    way[2] = 0
    for scale in (1, 1e-6, 1e-25, 1e20):
        torch.testing.assert_close(unit(scale * way)[:2], way[:2] / length(way[:2], "l2"))
        torch.testing.assert_close(unit(scale * way)[2], way[2])


# the reference


class Watched:
    """A model that keeps the images it is asked about."""

    def __init__(self, net):
        self.net, self.seen = net.eval().requires_grad_(False), []

    def __call__(self, x):
        self.seen.append(x.detach().clone())
        return self.net(x)


def begun(search, net, x, y, radius, keys=None):
    """The state of a search before its first step; the target is the likeliest wrong class."""
    keys = torch.arange(len(x)) if keys is None else keys
    return search.begin(x, y, spread(radius, x), keys, targets_of(net.eval()(x).detach(), y, 0))


@torch.no_grad()
def walked(search, net, state, steps=None):
    for _ in range(search.steps if steps is None else steps):
        state = search.advance(net, state)
    return state


@pytest.fixture
def reference(monkeypatch):
    """AutoAttack's own Auto-PGD in float64, from the start of a state or one that it draws itself.

    In l1 it counts the pixels that a point changes. Here, as in ours, those do not count that rounding alone has moved.
    """
    autopgd = pytest.importorskip("pyautoattack.autopgd_base")
    kept = torch.get_default_dtype()

    def run(net, x, y, radius, state, *, norm, kind, steps):
        made = autopgd.APGDAttack_targeted if kind == "dlr-targeted" else autopgd.APGDAttack
        attack = made(net, n_iter=steps, norm=norm.upper(), eps=radius, device=x.device)
        attack.loss, attack.y_target = kind, state["target"]
        attack.init_hyperparam(x)
        with monkeypatch.context() as patch:
            patch.setattr(torch.Tensor, "float", torch.Tensor.double)
            patch.setattr(autopgd, "L0_norm", lambda change: (change.abs() > 1e-6).flatten(1).sum(1))
            torch.set_default_dtype(torch.float64)  # the type of its history
            if norm == "l2" or steps < 3:
                return attack.attack_single_run(x, y, x_init=state["point"])
            patch.setattr(torch, "randn_like", lambda _: state["point"] - x)
            early = math.ceil(0.3 * steps)
            moves = [early, early, steps - 2 * early]
            return attack.decr_eps_pgd(x, y, [3 * radius, 2 * radius, 1 * radius], moves)

    yield run
    torch.set_default_dtype(kept)


@pytest.mark.parametrize("steps", [1, 3, 7, 20, 100])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("norm", NORMS)
def test_every_image_it_asks_about_is_the_reference_s(norm, kind, steps, make_net, make_batch, reference):
    x, _, _ = make_batch(32, dtype=torch.float64)
    radius = RADII[norm]
    ours, theirs = Watched(make_net(dtype=torch.float64)), Watched(make_net(dtype=torch.float64))
    for net in (ours.net, theirs.net):
        net.conv.weight.mul_(12)  # rough, so that samples differ in where they get stuck
    y = ours.net(x).argmax(1)
    search = apgd_search(steps=steps, norm=norm, **KINDS[kind])
    state = begun(search, ours.net, x, y, radius)
    x_best, right, best_loss, _ = reference(theirs, x, y, radius, state, norm=norm, kind=kind, steps=steps)
    state = walked(search, ours, state)

    tolerance = {"l2": 1e-9, "l1": 1e-12}[norm]  # in l2 it adds 1e-12 to every length that it divides by
    torch.testing.assert_close(torch.stack(ours.seen), torch.stack(theirs.seen), atol=tolerance, rtol=0)
    torch.testing.assert_close(state["best"], x_best, atol=tolerance, rtol=0)
    torch.testing.assert_close(state["best_loss"], best_loss, atol=tolerance, rtol=1e-7)
    assert not (~right & ~state["hit"]).any()  # in l1 ours also counts what it meets in a wider ball
    assert torch.equal(state["hit"], state["margin"] >= 0)
    if steps >= 20:  # of several histories, or the test shows little
        assert len(state["scale"].unique()) >= 2 + (norm == "l2")
        assert 0 < state["hit"].sum() < 32


def test_the_l2_start_is_the_reference_s_for_the_same_normal_numbers(make_net, make_batch, monkeypatch):
    autopgd = pytest.importorskip("pyautoattack.autopgd_base")
    x, y, _ = make_batch(dtype=torch.float64)
    net, keys = Watched(make_net(dtype=torch.float64)), torch.tensor([5, 0, -3, 2**62])
    state = begun(apgd_search(norm="l2"), net.net, x, y, 0.5, keys)
    monkeypatch.setattr(torch, "randn", lambda shape: hashed_normal(keys, 48).double().view_as(x))
    attack = autopgd.APGDAttack(net, n_iter=1, norm="L2", eps=0.5, device=x.device)
    attack.init_hyperparam(x)
    attack.attack_single_run(x, y)
    torch.testing.assert_close(state["point"], net.seen[0], atol=1e-12, rtol=0)


def test_the_l1_start_is_a_projection_of_normal_noise_onto_the_widest_ball(make_net, make_batch):
    x, y, _ = make_batch(dtype=torch.float64)
    keys = torch.tensor([5, 0, -3, 2**62])
    point = begun(apgd_search(norm="l1"), make_net(dtype=torch.float64), x, y, 1.5, keys)["point"]
    torch.testing.assert_close(point, project_l1(x + hashed_normal(keys, 48).double().view_as(x), x, 4.5))
    torch.testing.assert_close(length(point - x, "l1"), torch.full((4, 1, 1, 1), 4.5, dtype=torch.float64))


def test_the_balls_of_l1_by_hand():
    assert Balls.of(100) == Balls(103, (0, 31, 62), (3.0, 2.0, 1.0), (1, 1, 1))
    assert Balls.of(1000) == Balls(1003, (0, 301, 602), (3.0, 2.0, 1.0), (12, 12, 16))
    assert Balls.of(3) == Balls(6, (0, 2, 4), (3.0, 2.0, 1.0), (1, 1, 1))
    assert Balls.of(2) == Balls(3, (0,), (1.0,), (1,))
    assert Balls.of(0) == Balls(1, (0,), (1.0,), (1,))
    balls, steps = Balls.of(3), torch.arange(8)
    assert balls.of_step(steps, balls.begins).tolist() == [0, 0, 2, 2, 4, 4, 4, 4]
    assert balls.opens(steps).tolist() == [True, False, True, False, True, False, False, False]


# the protocol of searches


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("norm", NORMS)
def test_rows_at_different_steps_go_on_as_if_alone(norm, kind, make_net, make_batch):
    x, y, _ = make_batch(6, dtype=torch.float64)
    net = make_net(dtype=torch.float64).eval().requires_grad_(False)
    search = apgd_search(steps=40, norm=norm, **KINDS[kind])
    first = begun(search, net, x, y, RADII[norm] * torch.rand(6, 1, 1, 1, dtype=torch.float64))
    lags = [0, 1, 11, 12, 13, 22]  # in l1 a ball begins at 13 and at 26
    rows = [{name: value[i : i + 1] for name, value in first.items()} for i in range(6)]
    rows = [walked(search, net, one, lag) for one, lag in zip(rows, lags, strict=True)]
    state = walked(search, net, {name: torch.cat([one[name] for one in rows]) for name in first}, 20)
    assert state["step"].tolist() == [20 + lag for lag in lags]
    for i, lag in enumerate(lags):
        alone = walked(search, net, {name: value[i : i + 1] for name, value in first.items()}, lag + 20)
        for name, value in alone.items():
            torch.testing.assert_close(state[name][i : i + 1], value, atol=1e-12, rtol=1e-10, msg=name)


@pytest.mark.parametrize("norm", NORMS)
@quick
@given(seed=st.integers(0, 1000), kind=st.sampled_from([*KINDS]), size=st.floats(0.05, 3), steps=st.integers(0, 12))
def test_stays_inside_and_what_it_keeps_never_gets_worse(norm, seed, kind, size, steps, make_net, make_batch):
    net, (x, y, _) = make_net().eval().requires_grad_(False), make_batch(seed=seed)
    radius = size * torch.rand(4, 1, 1, 1, generator=torch.Generator().manual_seed(seed))
    search = apgd_search(steps=steps, norm=norm, **KINDS[kind])
    state = begun(search, net, x, y, radius)
    for number in range(search.steps):
        new = walked(search, net, state, 1)
        assert inside(new["x_adv"], x, radius, norm=norm).all()
        for name in ("point", "best"):
            assert inside(new[name], x, radius * (3 if norm == "l1" else 1) + 1e-6, norm=norm).all()
        assert (new["margin"] >= state["margin"]).all()
        torch.testing.assert_close(margin(net(new["x_adv"]), y)[new["margin"] > -torch.inf],
                                   new["margin"][new["margin"] > -torch.inf])  # fmt: skip
        assert (new["step"] == number + 1).all()
        state = new
    assert inside(state["best"], x, radius + 1e-6, norm=norm).all()  # the last ball is that of the budget


@pytest.mark.parametrize("logits", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("norm", NORMS)
def test_a_step_makes_a_new_state_like_the_one_before(norm, logits, make_net, make_batch):
    model, (x, y, _) = make_net().eval(), make_batch()
    search = apgd_search(steps=4, norm=norm)
    first = state = begun(search, model, x, y, RADII[norm])
    copies = {name: value.clone() for name, value in first.items()}
    for _ in range(search.steps + 3):  # steps beyond the last do no harm
        last, state = state, search.advance(lambda z: model(z).to(logits), state)
        for name, tensor in state.items():  # one may be written over its old self before the next is read
            others = {other.data_ptr() for key, other in last.items() if key != name}
            assert tensor is last[name] or tensor.data_ptr() not in others
        assert {k: (t.shape, t.dtype) for k, t in state.items()} == {k: (t.shape, t.dtype) for k, t in first.items()}
        assert not any(tensor.requires_grad for tensor in state.values())
    assert all(torch.equal(first[name], copy) for name, copy in copies.items())
    assert inside(state["x_adv"], x, RADII[norm], norm=norm).all()


@pytest.mark.parametrize("norm", NORMS)
def test_asks_no_tensor_for_its_value(norm):
    with FakeTensorMode():
        x, y = torch.rand(4, 3, 4, 4), torch.zeros(4, dtype=torch.long)
        net = nn.Sequential(nn.Flatten(), nn.Linear(48, 5)).requires_grad_(False)
        search = apgd_search(steps=5, norm=norm, targets=2)
        state = search.begin(x, y, torch.rand(4, 1, 1, 1), torch.zeros_like(y), y)
        assert walked(search, net, state)["x_adv"].shape == x.shape
        assert apgd(net, x, y, 0.5, steps=5, norm=norm).shape == x.shape


@pytest.mark.parametrize("norm", NORMS)
def test_what_it_draws_comes_from_the_keys_alone(norm, make_net, make_batch):
    net, (x, y, _) = make_net(), make_batch()
    search = apgd_search(steps=3, norm=norm)
    keys = torch.tensor([31, 41, 59, 26])
    torch.manual_seed(0)
    one = begun(search, net, x, y, 0.5, keys)["point"]
    torch.manual_seed(1)
    same, other = (begun(search, net, x, y, 0.5, keys + moved)["point"] for moved in (0, 1))
    assert torch.equal(one, same)
    assert (one != other).flatten(1).any(1).all()
    reversed_ = begun(search, net, x.flip(0), y, 0.5, keys.flip(0))["point"]
    torch.testing.assert_close(reversed_.flip(0), one)


# as attacks


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("radius", [0.0, torch.zeros(4, 1, 1, 1)], ids=["float", "tensor"])
def test_zero_radius_returns_x_and_finds_what_was_misclassified(norm, radius, make_net, make_batch):
    net, (x, y, _) = make_net().eval(), make_batch()
    y[:2] = net(x[:2]).argmax(1)
    y[2:] = (net(x[2:]).argmax(1) + 1) % 5
    for kind in KINDS.values():
        assert torch.equal(apgd(net, x, y, radius, steps=5, norm=norm, **kind), x)
        search = apgd_search(steps=5, norm=norm, **kind)
        assert walked(search, net, begun(search, net, x, y, radius), 1)["hit"].tolist() == [False, False, True, True]


@pytest.mark.parametrize("kind", [{"loss": "ce"}, {"targets": 1}, {"loss": "margin", "targets": 1}])
@pytest.mark.parametrize("norm", NORMS)
def test_finds_the_worst_image_of_a_linear_model_where_the_box_does_not_bind(norm, kind):
    """By Hoelder: radius w / |w|_2 in l2, and in l1 all of it at the largest |w|; w the difference of two classes."""
    g = torch.Generator().manual_seed(0)
    x, y = 0.4 + 0.2 * torch.rand(6, 3, 4, 4, generator=g), torch.arange(6) % 2
    w = torch.randn(2, 48, generator=g)
    lead = (w[1 - y] - w[y]).view_as(x)
    worst = {
        "l2": 0.3 * lead / length(lead, "l2"),
        "l1": 0.3 * lead.sign() * (lead.abs() == lead.abs().amax((1, 2, 3), keepdim=True)),
    }[norm]
    x_adv = apgd(lambda z: z.flatten(1) @ w.T, x, y, 0.3, steps=50, norm=norm, **kind)
    gained, best = ((change * lead).flatten(1).sum(1) for change in (x_adv - x, worst))
    assert (gained <= best * (1 + 1e-5)).all()
    if norm == "l2":
        assert (gained >= best * (1 - 1e-5)).all()
    else:  # from two pixels on a step changes both, as in the reference
        second = lead.abs().flatten(1).sort(dim=1).values[:, -2]
        assert (gained >= 0.3 * second * (1 - 1e-5)).all()


def test_finds_the_worst_image_of_a_linear_model_in_the_l1_ball_and_the_box():
    """Pixels go all the way to 0 or 1 in the order of |w|, until the radius is used up."""
    g = torch.Generator().manual_seed(0)
    x, y = (1.2 * torch.rand(6, 3, 4, 4, generator=g) - 0.1).clamp(0, 1), torch.arange(6) % 2
    w = torch.randn(2, 48, generator=g)
    lead = (w[1 - y] - w[y]).view_as(x)
    room = torch.where(lead > 0, 1 - x, x).flatten(1)
    order = lead.abs().flatten(1).argsort(dim=1, descending=True)
    spent = room.gather(1, order).cumsum(1)
    used = (room.gather(1, order) - (spent - 2.5).clamp(min=0)).clamp(min=0)
    best = (used * lead.abs().flatten(1).gather(1, order)).sum(1)

    x_adv = apgd(lambda z: z.flatten(1) @ w.T, x, y, 2.5, steps=100, norm="l1")
    gained = ((x_adv - x) * lead).flatten(1).sum(1)
    assert (gained <= best + 1e-4).all()
    assert (gained >= 0.97 * best).all()
    assert (gained / best).mean() > 0.99


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("classes", [2, 3, 200])
def test_few_and_many_classes(norm, classes, make_net, make_batch):
    net, (x, _, _) = make_net(classes).eval(), make_batch(classes=classes)
    y = net(x).argmax(1)
    for kind in ({}, {"targets": 9}):
        x_adv = apgd(net, x, y, RADII[norm], steps=10, norm=norm, **kind)
        assert (margin(net(x_adv), y) > margin(net(x), y)).all()


@pytest.mark.parametrize("norm", NORMS)
def test_same_seed_same_bits_and_no_trace(norm, make_net, make_batch):
    net, (x, y, _) = make_net().train(), make_batch()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    copies, rng = (x.clone(), y.clone()), torch.get_rng_state()

    def run(seed):
        return apgd(net, x, y, 0.3, steps=3, norm=norm, generator=torch.Generator().manual_seed(seed))

    first, again, other = run(0), run(0), run(1)
    assert torch.equal(first, again)
    assert torch.equal(first, apgd(net.eval(), x, y, 0.3, steps=3, norm=norm))
    assert not torch.equal(first, other)
    assert not first.requires_grad
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert all(p.grad is None and p.requires_grad for p in net.parameters())
    assert torch.equal(x, copies[0])
    assert torch.equal(y, copies[1])
    assert torch.equal(torch.get_rng_state(), rng)


@pytest.mark.parametrize("norm", NORMS)
def test_goes_on_where_the_gradient_is_all_but_zero(norm, make_batch):
    """A network that is sure of itself has gradients whose squares are 0 in fp32."""
    x, y, _ = make_batch(classes=2)
    w = 1e-25 * torch.randn(2, 48, generator=torch.Generator().manual_seed(0))
    x_adv = apgd(lambda z: z.flatten(1) @ w.T, x, y, 0.5, steps=20, norm=norm)
    assert (length(x_adv - x, norm) > 0.45).all()


def test_where_the_gradient_is_zero_it_stays_at_its_start_and_finite(make_batch):
    x, y, _ = make_batch(classes=3)
    for norm in NORMS:
        x_adv = apgd(lambda z: 0 * z.flatten(1)[:, :3], x, y, 0.5, steps=5, norm=norm)
        assert x_adv.isfinite().all()
        assert inside(x_adv, x, 0.5, norm=norm).all()


@pytest.mark.parametrize(
    ("radius", "message"),
    [
        (-0.1, "negative"),
        (math.nan, "negative"),
        (math.inf, "not finite"),
        (torch.full((4, 1, 1, 1), -1.0), "negative"),
        (torch.zeros(4, 1, 4, 4), r"one number for each image, \(b, 1, 1, 1\), not \(4, 1, 4, 4\)"),
    ],
)
def test_a_radius_that_is_none_is_refused(radius, message, make_net, make_batch):
    x, y, _ = make_batch()
    with pytest.raises(UserError, match=message):
        apgd(make_net(), x, y, radius, norm="l1")


def test_a_norm_that_is_none_is_refused():
    with pytest.raises(UserError, match="unknown norm 'l0'; choose from l1, l2, linf"):
        apgd_search(norm="l0")


# hunting


def test_the_searches_of_a_norm_go_by_their_names():
    norms = {name: search.norm for name, search in SEARCHES.items() if search.norm != "linf"}
    assert norms == {"apgd-ce-l2": "l2", "apgd-t-l2": "l2", "apgd-ce-l1": "l1", "apgd-t-l1": "l1"}
    assert {name: [*parts] for name, parts in TOGETHER.items()} == {
        "apgd-l2": ["apgd-ce-l2", "apgd-t-l2"],
        "apgd-l1": ["apgd-ce-l1", "apgd-t-l1"],
    }
    assert [SEARCHES[f"apgd-t-{norm}"].targets for norm in NORMS] == [9, 9]


@pytest.mark.parametrize(("norm", "broken"), [("linf", {0, 1, 2}), ("l2", {1, 2}), ("l1", {2})])
def test_an_error_counts_only_inside_the_ball_of_the_search_s_norm(norm, broken):
    """Changes of 0.5 at 16, at 4 and at 1 of 16 pixels, and a budget of 1."""
    changes = torch.zeros(3, 1, 4, 4)
    for i, pixels in enumerate((16, 4, 1)):
        changes[i].view(-1)[:pixels] = 0.5

    def advance(net, state):
        x_new = state["x"] + changes[state["y"]]
        return state | keep(state, x_new, net(x_new)) | {"step": state["step"] + 1}

    search = Search(opening, advance, 1, norm=norm)
    x, y = torch.zeros(3, 1, 4, 4), torch.arange(3)

    def errs_when_changed(z):
        changed = (z.flatten(1).amax(1, keepdim=True) > 0).float()
        return nn.functional.one_hot(torch.arange(3), 3)[: len(z)] * (0.5 - changed)

    def take(samples):
        return x[samples], y[samples], torch.ones(len(samples), 1, 1, 1)

    clean = errs_when_changed(x)
    tries = all_tries(search, [0, 1, 2], 3)
    assert hunt("jump", search, errs_when_changed, errs_when_changed, take, clean, tries, seed=0, slots=3) == broken


@pytest.mark.parametrize("norm", NORMS)
def test_hunting_breaks_what_the_attack_breaks(norm, make_net, make_batch):
    net, (x, _, _) = make_net().eval().requires_grad_(False), make_batch(24)
    y = net(x).argmax(1)

    def take(samples):
        return x[samples], y[samples], spread(RADII[norm] / 3, x[samples])

    search = apgd_search(steps=20, norm=norm, targets=4)
    with torch.no_grad():
        tries = all_tries(search, [*range(24)], 5)
        broken = hunt("apgd-t", search, net, net, take, net(x), tries, seed=0, slots=7)
    errs = net(apgd(net, x, y, RADII[norm] / 3, steps=20, norm=norm, targets=4)).argmax(1) != y
    assert 0 < len(broken) < 24
    assert abs(len(broken) - int(errs.sum())) <= 1


@pytest.mark.gpu
@pytest.mark.parametrize("norm", NORMS)
def test_on_a_gpu_a_step_is_captured_and_the_same_samples_fall(norm, make_net, make_batch):
    net, (x, _, _) = make_net().eval().requires_grad_(False), make_batch(24)
    y = net(x).argmax(1)
    search, said, broken = apgd_search(steps=20, norm=norm, targets=4), [], {}
    for device in ("cpu", "cuda"):
        images, labels, model = x.to(device), y.to(device), net.to(device)

        def take(samples, images=images, labels=labels):
            return images[samples], labels[samples], spread(RADII[norm] / 3, images[samples])

        with torch.no_grad():
            tries = all_tries(search, [*range(24)], 5)
            clean = model(images)
            broken[device] = hunt("a", search, model, model, take, clean, tries, seed=0, slots=7, say=said.append)
    assert said == []  # it says so where it cannot be captured
    assert len(broken["cpu"] ^ broken["cuda"]) <= 1
