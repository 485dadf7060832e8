"""What holds at every step of Square."""

from itertools import pairwise

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from pixelpart.attacks.search import run_search
from pixelpart.attacks.square import square, square_search
from pixelpart.errors import UserError
from squares import KEYS, one_by_one, trail


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 1000), channels=st.sampled_from([0, 1, 3]), size=st.floats(0.001, 1))
def test_every_image_asked_about_lies_inside_and_pixels_without_budget_stay(seed, channels, size, make_net, make_batch):
    x, y, _ = make_batch(seed=seed)
    g = torch.Generator().manual_seed(seed)
    budget = size * torch.rand(4, channels or 1, 4 if channels else 1, 4 if channels else 1, generator=g)
    if channels:
        budget[:, :, 1] = 0
    net, asked = make_net().eval(), []
    trail(lambda z: asked.append(z) or net(z), x, y, budget, KEYS[:4], 20)
    for x_new in asked:
        assert ((x_new - x).abs() - budget).max() <= 1e-6
        assert x_new.min() >= 0
        assert x_new.max() <= 1
        if channels:
            assert torch.equal(x_new[:, :, 1], x[:, :, 1])


def test_rows_at_different_steps_give_the_same_as_alone(make_net, make_batch):
    net, (x, y, budget) = one_by_one(make_net(size=8)), make_batch(4, size=8)
    alone = [trail(net, *(t[i : i + 1] for t in (x, y, budget, KEYS[:4])), 80) for i in range(4)]
    ahead = [0, 3, 11, 57]
    search = square_search(80)
    mixed = {name: torch.cat([alone[i][n][name] for i, n in enumerate(ahead)]) for name in alone[0][0]}
    for _ in range(20):
        mixed = search.advance(net, mixed)
    for i, n in enumerate(ahead):
        for name, tensor in mixed.items():
            assert torch.equal(tensor[i], alone[i][n + 20][name][0]), name


@pytest.mark.parametrize("ahead", [2, 3, 16, 200])
def test_leaps_lead_through_the_states_of_single_steps(make_net, make_batch, ahead):
    """Every row is where its own steps would have brought it, and leaps no further than the first image it keeps."""
    net, (x, y, budget) = one_by_one(make_net(size=8)), make_batch(4, size=8)
    steps = trail(net, x, y, budget, KEYS[:4], 80)
    search, leaps = square_search(80), 0
    state = {name: torch.stack([steps[n][name][i] for i, n in enumerate((0, 3, 11, 57))]) for name in steps[0]}
    while (state["step"] < search.steps).any():
        before, state, leaps = state, search.leap(net, state, ahead), leaps + 1
        for i, n in enumerate(state["step"].tolist()):
            for name, tensor in state.items():
                assert torch.equal(tensor[i], steps[n][name][i]), name
            went = n - int(before["step"][i])
            kept = not torch.equal(state["x_adv"][i], before["x_adv"][i])
            assert went <= ahead
            assert kept or went == min(ahead, search.steps - int(before["step"][i]))
    assert leaps < 81
    after = search.leap(net, state, ahead)
    assert all(torch.equal(after[name], state[name]) for name in state)  # at its end a row stays


def test_a_leap_asks_the_model_once(make_net, make_batch):
    net, (x, y, budget), asked = make_net().eval(), make_batch(), []
    search = square_search(10)
    search.leap(lambda z: asked.append(len(z)) or net(z), search.begin(x, y, budget, KEYS[:4], y), 5)
    assert asked == [20]


def test_a_state_keeps_its_names_shapes_and_types(make_net, make_batch):
    net, (x, y, budget) = make_net(), make_batch()
    before, *_, after = trail(net, x, y, budget, KEYS[:4], 3)
    assert {k: (t.shape, t.dtype) for k, t in before.items()} == {k: (t.shape, t.dtype) for k, t in after.items()}
    assert after["step"].tolist() == [4] * 4


def test_the_margin_rises_with_the_image_and_only_with_it(make_net, make_batch):
    net, (x, y, budget) = make_net().eval(), make_batch(16)
    states = trail(net, x, y, budget, torch.arange(16), 40)
    for last, this in pairwise(states):
        rises = this["margin"] > last["margin"]
        assert torch.equal(rises | (this["margin"] == last["margin"]), torch.ones_like(rises))
        changes = (this["x_adv"] != last["x_adv"]).flatten(1).any(1)
        assert not (changes & ~rises).any()


def test_what_does_not_raise_the_margin_is_not_kept(make_batch):
    x, y, budget = make_batch()
    states = trail(lambda z: torch.zeros(len(z), 5), x, y, budget, KEYS[:4], 10)
    assert torch.equal(states[-1]["x_adv"], states[0]["x_adv"])
    assert not torch.equal(states[0]["x_adv"], x)


@pytest.mark.parametrize("grad", [True, False])
def test_asks_for_no_gradient_and_for_one_forward_pass_a_query(grad, make_net, make_batch):
    net, (x, y, budget), calls = make_net().eval(), make_batch(), []

    def strict(z):
        assert not torch.is_grad_enabled()
        assert not z.requires_grad
        calls.append(len(z))
        return net(z)

    with torch.set_grad_enabled(grad):
        square(strict, x, y, budget, queries=7)
        assert calls == [4] * 9  # the clean images, the stripes, seven squares
        trail(strict, x, y, budget, KEYS[:4], 7)
        assert torch.is_grad_enabled() == grad


def test_a_step_asks_no_tensor_for_its_value():
    with FakeTensorMode():
        x, y = torch.rand(4, 3, 4, 4), torch.zeros(4, dtype=torch.long)
        net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 5))
        assert trail(net, x, y, torch.rand(4, 1, 4, 4), torch.zeros_like(y), 3)[-1]["x_adv"].shape == x.shape


def test_more_queries_never_make_it_weaker(make_net, make_batch):
    net, (x, y, budget) = make_net().eval(), make_batch(24)

    def reached(queries):
        z = net(square(net, x, y, budget, queries=queries)).detach()
        return z.scatter(1, y[:, None], -torch.inf).amax(1) - z.gather(1, y[:, None])[:, 0]

    none, few, many = reached(0), reached(10), reached(60)
    assert (few >= none).all()
    assert (many >= few).all()
    assert (many > few).any()


def test_a_float_budget_equals_the_same_budget_everywhere(make_net, make_batch):
    net, (x, y, _) = make_net(), make_batch()
    results = [
        square(net, x, y, budget, queries=20)
        for budget in (8 / 255, torch.full((4, 1, 4, 4), 8 / 255), torch.full_like(x, 8 / 255))
    ]
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_the_function_runs_the_search(make_net, make_batch):
    net, (x, y, budget) = make_net(), make_batch(16)
    plain, rescaled = (run_search(square_search(40, rescale=rescale), net, x, y, budget) for rescale in (False, True))
    assert torch.equal(square(net, x, y, budget, queries=40), plain)
    assert torch.equal(square(net, x, y, budget, queries=40, rescale=True), rescaled)
    assert not torch.equal(plain, rescaled)


def test_negative_queries_are_refused(make_net, make_batch):
    with pytest.raises(UserError, match="queries -1 must not be negative"):
        square(make_net(), *make_batch(), queries=-1)
