import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from pixelpart.attacks.apgd import TARGETED, apgd, apgd_search
from pixelpart.attacks.search import target_classes
from pixelpart.draws import hashed
from pixelpart.errors import UserError
from pixelpart.losses import dlr, margin, targeted_dlr
from walks import Watched, begun, walked

KINDS = {"ce": {"loss": "ce"}, "dlr": {"loss": "dlr"}, "dlr-targeted": {"targets": 1}}
quick = settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])


class Scripted:
    """Logits and gradients that depend on how often it was asked, not on the images; they are kept all the same."""

    def __init__(self, x, y, rising, *, steps):
        """From call to call the logit of y falls by 1/128, or stays, or rises by it; the others are 0, -1, -2, -3."""
        g = torch.Generator().manual_seed(0)
        moves = torch.rand(steps + 1, len(x), generator=g, dtype=x.dtype) < rising
        moves = torch.where(moves, 1.0, -torch.randint(2, moves.shape, generator=g, dtype=x.dtype))
        others = -torch.arange(5, dtype=x.dtype).expand(len(x), 5)
        others = others + (others < -y[:, None])  # one rank up behind y
        labelled = nn.functional.one_hot(y, 5).bool()
        walks = (moves.cumsum(0) - 20.5) / 128  # the loss takes the same values again, but no two logits are equal
        self.logits = [torch.where(labelled, -walk[:, None], others) for walk in walks]
        self.ways = torch.randn(steps + 1, *x.shape, generator=g, dtype=x.dtype)
        self.y, self.seen = y, []

    def __call__(self, x):
        number = len(self.seen)
        self.seen.append(x.detach().clone())
        slope = ((x - x.detach()) * self.ways[number]).flatten(1).sum(1)  # 0, with a gradient
        return self.logits[number] - slope[:, None] * nn.functional.one_hot(self.y, 5)


def reference(net, x, y, budget, state, *, kind, steps, start=True):
    """AutoAttack's own Auto-PGD, from the start of the state or from one that it draws."""
    autopgd = pytest.importorskip("pyautoattack.autopgd_base")
    made = autopgd.APGDAttack_targeted if kind == "dlr-targeted" else autopgd.APGDAttack
    attack = made(net, n_iter=steps, norm="Linf", eps=budget, device=x.device)
    attack.loss, attack.y_target = kind, state["target"]
    attack.init_hyperparam(x)
    kept = torch.get_default_dtype()
    torch.set_default_dtype(x.dtype)  # the type of its history
    try:
        return attack.attack_single_run(x, y, x_init=state["point"] if start else None)
    finally:
        torch.set_default_dtype(kept)


@pytest.mark.parametrize("shape", ["eps", "pixels"])
@pytest.mark.parametrize("steps", [1, 5, 20, 100])
@pytest.mark.parametrize("kind", KINDS)
def test_every_image_it_asks_about_is_the_reference_s(kind, steps, shape, make_net, make_batch):
    x, _, budget = make_batch(32, dtype=torch.float64)
    budget = budget if shape == "pixels" else 0.05
    ours, theirs = Watched(make_net(dtype=torch.float64)), Watched(make_net(dtype=torch.float64))
    for net in (ours.net, theirs.net):
        net.conv.weight.mul_(12)  # rough, so that samples differ in where they get stuck
    y = ours.net(x).argmax(1)
    search = apgd_search(steps=steps, **KINDS[kind])
    state = begun(search, ours.net, x, y, budget)
    x_best, right, best_loss, _ = reference(theirs, x, y, budget, state, kind=kind, steps=steps)
    state = walked(search, ours, state)

    torch.testing.assert_close(torch.stack(ours.seen), torch.stack(theirs.seen), atol=1e-12, rtol=0)
    torch.testing.assert_close(state["best"], x_best, atol=1e-12, rtol=0)
    torch.testing.assert_close(state["best_loss"], best_loss, atol=1e-12, rtol=1e-10)
    assert torch.equal(state["hit"], ~right)
    assert torch.equal(state["margin"] >= 0, ~right)
    if steps == 100:  # of several histories, or the test shows little
        assert len(state["scale"].unique()) >= 3
        assert 0 < state["hit"].sum() < 32


@pytest.mark.parametrize("steps", [7, 20, 50, 100])
@pytest.mark.parametrize("kind", KINDS)
def test_checkpoints_are_the_reference_s_whatever_the_loss_does(kind, steps, make_batch):
    x, y, budget = make_batch(64, dtype=torch.float64)
    rising = torch.linspace(0.5, 1, 64)
    ours, theirs = (Scripted(x, y, rising, steps=steps) for _ in range(2))
    search = apgd_search(steps=steps, **KINDS[kind])
    state = search.begin(x, y, budget, torch.arange(64), (y + 1) % 5)
    reference(theirs, x, y, budget, state, kind=kind, steps=steps)
    reached = walked(search, ours, state)
    torch.testing.assert_close(torch.stack(ours.seen), torch.stack(theirs.seen), atol=1e-12, rtol=0)
    if steps > 20:
        assert len(reached["scale"].unique()) >= 3


def test_the_start_is_the_reference_s_for_the_same_uniform_numbers(make_net, make_batch, monkeypatch):
    x, y, budget = make_batch(dtype=torch.float64)
    net, keys = Watched(make_net(dtype=torch.float64)), torch.tensor([5, 0, -3, 2**62])
    state = begun(apgd_search(), net.net, x, y, budget, keys)
    u = hashed(keys, 48).double().view_as(x)
    monkeypatch.setattr(torch, "rand", lambda shape: u)
    reference(net, x, y, budget, state, kind="ce", steps=1, start=False)
    torch.testing.assert_close(state["point"], net.seen[0], atol=1e-15, rtol=0)
    assert (state["point"][0] - state["point"][1]).abs().min() > 0


@pytest.mark.parametrize("kind", KINDS)
def test_rows_at_different_steps_go_on_as_if_alone(kind, make_net, make_batch):
    x, y, budget = make_batch(8, dtype=torch.float64)
    net = make_net(dtype=torch.float64).eval().requires_grad_(False)
    search = apgd_search(steps=50, **KINDS[kind])
    first = begun(search, net, x, y, 4 * budget)
    lags = [0, 1, 2, 5, 11, 12, 20, 30]
    rows = [{name: value[i : i + 1] for name, value in first.items()} for i in range(8)]
    rows = [walked(search, net, row, lag) for row, lag in zip(rows, lags, strict=True)]
    state = walked(search, net, {name: torch.cat([row[name] for row in rows]) for name in first}, 20)
    assert state["step"].tolist() == [20 + lag for lag in lags]
    for i, lag in enumerate(lags):
        alone = walked(search, net, {name: value[i : i + 1] for name, value in first.items()}, lag + 20)
        for name, value in alone.items():
            torch.testing.assert_close(state[name][i : i + 1], value, atol=1e-12, rtol=1e-10, msg=name)


@quick
@given(seed=st.integers(0, 1000), kind=st.sampled_from([*KINDS]), channels=st.sampled_from([0, 1, 3]))
def test_stays_inside_and_what_it_keeps_never_gets_worse(seed, kind, channels, make_net, make_batch):
    net, (x, y, _) = make_net().eval().requires_grad_(False), make_batch(seed=seed)
    g = torch.Generator().manual_seed(seed)
    budget = torch.rand(4, channels, 4, 4, generator=g).pow(4) if channels else float(torch.rand((), generator=g))
    search = apgd_search(steps=12, **KINDS[kind])
    state = begun(search, net, x, y, budget)
    for number in range(search.steps):
        new = walked(search, net, state, 1)
        for name in ("point", "best", "x_adv"):
            assert ((new[name] - x).abs() - budget).max() <= 1e-6
            assert new[name].min() >= 0
            assert new[name].max() <= 1
        assert (new["best_loss"] >= state["best_loss"]).all()
        assert (new["margin"] >= state["margin"]).all()
        assert (new["hit"] | ~state["hit"]).all()
        torch.testing.assert_close(margin(net(new["x_adv"]), y), new["margin"])
        assert (new["step"] == number + 1).all()
        state = new


def test_a_state_keeps_its_keys_shapes_and_types_and_is_not_written_to(make_net, make_batch):
    net, (x, y, budget) = make_net().eval(), make_batch()
    for kind in KINDS.values():
        search = apgd_search(steps=5, **kind)
        state = begun(search, net, x, y, budget)
        for _ in range(3):
            copies = {name: value.clone() for name, value in state.items()}
            after = search.advance(lambda z: net(z).bfloat16(), state)
            assert all(torch.equal(state[name], copy) for name, copy in copies.items())
            assert {n: (v.shape, v.dtype) for n, v in after.items()} == {
                n: (v.shape, v.dtype) for n, v in state.items()
            }
            assert not any(value.requires_grad for value in after.values())
            state = after


def test_losses_of_narrow_logits_are_computed_in_full_precision(make_net, make_batch):
    net, (x, y, budget) = make_net().eval(), make_batch()
    search = apgd_search()
    state = begun(search, net, x, y, budget)
    loss = search.advance(lambda z: net(z).bfloat16(), state)["best_loss"]
    expected = nn.functional.cross_entropy(net(state["point"]).bfloat16().float(), y, reduction="none")
    torch.testing.assert_close(loss, expected)


@pytest.mark.parametrize("budget", [0.0, torch.zeros(4, 1, 4, 4), torch.zeros(4, 3, 4, 4)], ids=["float", "1", "3"])
def test_zero_budget_returns_x_and_finds_what_was_misclassified(budget, make_net, make_batch):
    net, (x, y, _) = make_net().eval(), make_batch()
    y[:2] = net(x[:2]).argmax(1)
    y[2:] = (net(x[2:]).argmax(1) + 1) % 5
    for kind in KINDS.values():
        assert torch.equal(apgd(net, x, y, budget, steps=5, **kind), x)
        search = apgd_search(steps=5, **kind)
        assert walked(search, net, begun(search, net, x, y, budget), 1)["hit"].tolist() == [False, False, True, True]


def test_a_pixel_without_budget_stays(make_net, make_batch):
    x, y, budget = make_batch()
    budget[:, :, 1] = 0
    x_adv = apgd(make_net(), x, y, budget, steps=5)
    assert torch.equal(x_adv[:, :, 1], x[:, :, 1])
    assert not torch.equal(x_adv, x)


def test_targeted_dlr_by_hand():
    logits = torch.tensor([[5.0, 1.0, 4.0, 2.0, -7.0]]).expand(3, 5)
    y, target = torch.tensor([0, 0, 1]), torch.tensor([2, 4, 0])
    expected = torch.tensor([-1.0, -12.0, 4.0]) / 3.5  # 5 - (2 + 1) / 2
    torch.testing.assert_close(targeted_dlr(logits, y, target), expected)
    three = torch.tensor([[5.0, 1.0, 3.0]])
    torch.testing.assert_close(targeted_dlr(three, torch.tensor([0]), torch.tensor([1])), torch.tensor([-4 / 4]))
    two = torch.tensor([[5.0, 1.0]])
    torch.testing.assert_close(targeted_dlr(two, torch.tensor([0]), torch.tensor([1])), torch.tensor([-4.0]))


def test_with_three_classes_dlr_towards_the_likelier_wrong_class_is_dlr():
    logits = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
    y = torch.arange(50) % 3
    torch.testing.assert_close(targeted_dlr(logits, y, target_classes(logits, y, 0)), dlr(logits, y))


@pytest.mark.parametrize("classes", [2, 3, 4, 200])
@pytest.mark.parametrize("kind", [{"loss": "ce"}, {"targets": 9}, {"loss": "margin", "targets": 9}])
def test_few_and_many_classes(kind, classes, make_net, make_batch):
    net, (x, y, budget) = make_net(classes).eval(), make_batch(classes=classes)
    y = net(x).argmax(1)
    x_adv = apgd(net, x, y, budget, steps=10, **kind)
    assert (margin(net(x_adv), y) > margin(net(x), y)).all()


def test_finds_the_worst_corner_of_a_linear_model(make_batch):
    x, y, budget = make_batch(classes=2)
    w = 0.1 * torch.randn(2, 48, generator=torch.Generator().manual_seed(0))
    towards = (w[1 - y] - w[y]).sign().reshape(x.shape)
    for kind in ({"loss": "ce"}, {"targets": 1}):
        x_adv = apgd(lambda z: z.flatten(1) @ w.T, x, y, budget, steps=20, **kind)
        torch.testing.assert_close(x_adv, (x + budget * towards).clamp(0, 1), atol=1e-6, rtol=0)


def test_more_targets_and_restarts_never_make_it_weaker(make_net, make_batch):
    net, (x, y, budget) = make_net().eval(), make_batch(24)

    def reached(**settings):
        return margin(net(apgd(net, x, y, budget, steps=3, **settings)), y).detach()

    one, all_four, beyond, again = (reached(targets=n) for n in (1, 4, 9, 4))
    assert (all_four >= one).all()
    assert (all_four > one).any()
    assert torch.equal(all_four, beyond)
    assert torch.equal(all_four, again)
    once, twice = (reached(restarts=n) for n in (1, 2))
    assert (twice >= once).all()
    assert (twice > once).any()


def test_no_moves_give_the_start(make_net, make_batch):
    net, (x, y, budget) = make_net(), make_batch()
    keys = torch.randint(2**62, (4,), generator=torch.Generator().manual_seed(0))
    assert torch.equal(apgd(net, x, y, budget, steps=0), begun(apgd_search(), net, x, y, budget, keys)["point"])


def test_the_default_losses_are_ce_and_with_targets_dlr(make_net, make_batch):
    net, (x, y, budget) = make_net(), make_batch()
    assert torch.equal(apgd(net, x, y, budget, steps=5), apgd(net, x, y, budget, steps=5, loss="ce"))
    named = apgd(net, x, y, budget, steps=5, targets=2, loss="dlr")
    assert torch.equal(apgd(net, x, y, budget, steps=5, targets=2), named)
    assert TARGETED["dlr"] is targeted_dlr


def test_mistakes_are_told_in_words(make_net, make_batch):
    net, (x, y, budget) = make_net(2), make_batch(classes=2)
    with pytest.raises(UserError, match="unknown loss 'cw'; choose from ce, dlr"):
        apgd(net, x, y, budget, loss="cw")
    with pytest.raises(UserError, match="unknown loss with targets 'ce'; choose from dlr, margin"):
        apgd(net, x, y, budget, loss="ce", targets=9)
    with pytest.raises(UserError, match="steps -1 must not be negative"):
        apgd(net, x, y, budget, steps=-1)
    with pytest.raises(UserError, match="dlr needs at least 3 classes, not 2"):
        apgd(net, x, y, budget, loss="dlr")


@pytest.mark.parametrize("kind", KINDS)
def test_asks_no_tensor_for_its_value(kind):
    with FakeTensorMode():
        x, y = torch.rand(4, 3, 4, 4), torch.zeros(4, dtype=torch.long)
        net = nn.Sequential(nn.Flatten(), nn.Linear(48, 5)).requires_grad_(False)
        search = apgd_search(steps=5, **KINDS[kind])
        state = search.begin(x, y, torch.rand(4, 1, 4, 4), torch.zeros_like(y), y)
        assert walked(search, net, state)["x_adv"].shape == x.shape
