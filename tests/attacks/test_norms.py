"""Auto-PGD in l2 and l1, whose budget is a radius; in l_inf it is tested in test_apgd.py and by the harness."""

import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from pixelpart.attacks.apgd import apgd, apgd_search
from pixelpart.attacks.ball import inside, length, project_l1
from pixelpart.attacks.norms import Balls
from pixelpart.draws import hashed_normal
from pixelpart.losses import margin
from walks import NORMS, RADII, Watched, begun, walked

KINDS = {"ce": {}, "dlr-targeted": {"targets": 1}}
quick = settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])


# the reference


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
    assert balls.of_step(steps, balls.first_steps).tolist() == [0, 0, 2, 2, 4, 4, 4, 4]
    assert balls.is_first(steps).tolist() == [True, False, True, False, True, False, False, False]


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
