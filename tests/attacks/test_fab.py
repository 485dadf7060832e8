"""FAB beside the reference, with a budget that differs from pixel to pixel, and as a search."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from doubling import in_double
from pixelpart.attacks.fab import fab, fab_search
from pixelpart.attacks.search import budget_per_sample, keys_of_try, target_classes
from pixelpart.draws import hashed
from pixelpart.losses import margin

STEPS = 30


# beside the reference


class Recorded(nn.Module):
    """A model that notes which images it was asked about."""

    def __init__(self, net):
        super().__init__()
        self.net, self.asked = net, []

    def forward(self, x):
        self.asked.append(x.detach().clone())
        return self.net(x)


def scene(make_net, make_batch, classes=5, b=8, seed=0):
    net, (x, _, _) = make_net(classes, dtype=torch.float64).eval(), make_batch(b, dtype=torch.float64, seed=seed)
    return net, x, net(x).argmax(1)


def reference(net, x, y, eps, *, rank, monkeypatch, noise=None):
    """The images that FAB's authors' code asks the model about in its iterations, two in each, and what it returns."""
    FABAttack_PT = pytest.importorskip("pyautoattack.fab_pt").FABAttack_PT
    recorded = Recorded(net)
    attack = FABAttack_PT(recorded, norm="Linf", eps=eps, n_iter=STEPS, targeted=rank is not None, device=x.device)
    attack.target_class = None if rank is None else rank + 2
    with monkeypatch.context() as patch:
        in_double(patch)
        patch.setattr(torch, "rand", lambda *_: noise)
        x_adv = attack.attack_single_run(x, y, use_rand_start=noise is not None, is_targeted=rank is not None)
    return torch.stack(recorded.asked[-2 * STEPS :]), x_adv


def ours(net, x, y, budget, *, rank, keys=None, restarts=1):
    recorded = Recorded(net)
    search = fab_search(steps=STEPS, targets=0 if rank is None else 9, restarts=restarts)
    target = y if rank is None else target_classes(net(x), y, rank)
    state = search.begin(x, y, budget_per_sample(budget, x), torch.zeros_like(y) if keys is None else keys, target)
    for _ in range(STEPS):
        state = search.advance(recorded, state)
    return torch.stack(recorded.asked), state


def norm_of(change):
    return change.abs().flatten(-3).amax(-1)


@pytest.mark.parametrize("rank", [0, 1, 3, None], ids=["first", "second", "last", "untargeted"])
def test_goes_where_the_reference_goes(rank, make_net, make_batch, monkeypatch):
    net, x, y = scene(make_net, make_batch)
    expected, x_ref = reference(net, x, y, 0.1, rank=rank, monkeypatch=monkeypatch)
    asked, _ = ours(net, x, y, 0.1, rank=rank)
    torch.testing.assert_close(asked, expected, atol=1e-9, rtol=0)
    reached = asked[1::2]  # the first of each iteration's two is where it linearises
    errs = torch.stack([net(z).argmax(1) != y for z in reached])
    nearest = torch.where(errs, norm_of(reached - x), torch.inf).amin(0)
    found = norm_of(x_ref - x)
    assert (found > 0).any()
    torch.testing.assert_close(torch.where(nearest.isinf(), 0, nearest), found, atol=1e-9, rtol=0)


@pytest.mark.parametrize("rank", [0, None], ids=["targeted", "untargeted"])
def test_a_later_restart_begins_where_the_reference_would(rank, make_net, make_batch, monkeypatch):
    net, x, y = scene(make_net, make_batch)
    keys = keys_of_try(torch.arange(len(x)) * 1234567, 1, 2)
    noise = hashed(keys, x[0].numel()).double().reshape(x.shape)
    expected, _ = reference(net, x, y, 0.1, rank=rank, noise=noise, monkeypatch=monkeypatch)
    asked, _ = ours(net, x, y, 0.1, rank=rank, keys=keys, restarts=2)
    assert not torch.equal(asked[0], x)
    torch.testing.assert_close(asked, expected, atol=1e-9, rtol=0)


@pytest.mark.parametrize("rank", [0, None], ids=["targeted", "untargeted"])
def test_keeps_the_largest_margin_of_the_points_inside(rank, make_net, make_batch, monkeypatch):
    net, x, y = scene(make_net, make_batch, b=16)
    asked, x_ref = reference(net, x, y, 1.0, rank=rank, monkeypatch=monkeypatch)
    eps = float(norm_of(x_ref - x).median())
    inside = norm_of(asked - x) <= eps
    margins = torch.stack([margin(net(z), y) for z in asked]).masked_fill(~inside, -torch.inf)
    best, at = margins.max(0)
    x_adv = fab(net, x, y, eps, steps=STEPS, targets=0 if rank is None else 1)
    torch.testing.assert_close(x_adv, asked[at, torch.arange(len(x))], atol=1e-6, rtol=0)
    broken = net(x_adv).argmax(1) != y
    assert torch.equal(broken, best > 0)
    assert (broken >= (norm_of(x_ref - x) <= eps)).all()
    assert 0 < broken.sum() < len(x)


@pytest.mark.parametrize(("classes", "targets", "restarts"), [(10, 9, 1), (5, 0, 3)])
def test_breaks_what_the_reference_breaks(classes, targets, restarts, make_net, make_batch, monkeypatch):
    FABAttack_PT = pytest.importorskip("pyautoattack.fab_pt").FABAttack_PT
    net, x, y = scene(make_net, make_batch, classes, b=24)
    eps = 0.045
    attack = FABAttack_PT(
        net, norm="Linf", eps=eps, n_iter=10, n_restarts=restarts, targeted=targets > 0, device=x.device
    )
    with monkeypatch.context() as patch:
        in_double(patch)
        x_ref = attack.perturb(x, y)
    x_adv = fab(net, x, y, eps, steps=10, targets=targets, restarts=restarts)
    broken, expected = (net(z).argmax(1) != y for z in (x_adv, x_ref))
    assert 0 < expected.sum() < len(x)
    assert torch.equal(broken, expected)


# a budget that differs from pixel to pixel


def shares_like(x, seed=1):
    """Shares of the largest budget, some of them 0."""
    share = torch.rand(x.shape, generator=torch.Generator().manual_seed(seed), dtype=x.dtype)
    share[share < 0.2] = 0
    return share / share.amax((1, 2, 3), keepdim=True)


@pytest.mark.parametrize("rank", [0, None], ids=["targeted", "untargeted"])
@pytest.mark.parametrize("later", [False, True], ids=["from x", "from a random point"])
def test_unequal_budgets_are_the_reference_in_stretched_pixels(rank, later, make_net, make_batch, monkeypatch):
    """With delta = s u, the attack inside the budget eps s is the reference's inside eps, on the model of x + s u.

    The images are grey, so that no pixel gets to 0 or 1, where the two would part.
    """
    net, x, _ = scene(make_net, make_batch)
    x = 0.4 + 0.2 * x
    y, share = net(x).argmax(1), shares_like(x)
    keys = keys_of_try(torch.arange(len(x)), int(later), 2)
    noise = torch.where(share > 0, hashed(keys, x[0].numel()).double().reshape(x.shape), 0.5) if later else None

    def stretched(z):
        return net(x + share * (z - x))

    expected, _ = reference(stretched, x, y, 0.1, rank=rank, noise=noise, monkeypatch=monkeypatch)
    asked, _ = ours(net, x, y, 0.1 * share, rank=rank, keys=keys, restarts=2)
    change = share * (expected - x)
    assert (x + change).min() > 0
    assert (x + change).max() < 1
    torch.testing.assert_close(asked, x + change, atol=1e-9, rtol=0)
    assert torch.equal(asked[:, share == 0], x[share == 0].expand(2 * STEPS, -1))


@pytest.mark.parametrize("targets", [0, 9])
def test_a_linear_model_falls_where_the_weighted_sum_of_budgets_is_enough(targets, make_batch):
    """Two classes with lead m and weights w: an error needs sum_i b_i |w_i| > m, whichever pixels have more of it."""
    x = 0.4 + 0.2 * make_batch(16)[0].double()
    w = torch.randn(48, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    lead = (x.flatten(1) @ w).abs()

    def net(z):
        return torch.stack((z.flatten(1) @ w, torch.zeros(len(z), dtype=z.dtype)), 1)

    y = net(x).argmax(1)
    for low in (0.0, 0.5, 1.0):
        share = torch.ones_like(x)
        share[..., 2:] = low
        enough = lead / (share.flatten(1) * w.abs()).sum(1)
        for factor, falls in ((0.99, False), (1.02, True)):
            budget = (factor * enough)[:, None, None, None] * share
            assert budget.max() < 0.4
            x_adv = fab(net, x, y, budget, steps=5, targets=targets)
            assert ((net(x_adv).argmax(1) != y) == falls).all()


@pytest.mark.parametrize("restarts", [1, 3])
def test_pixels_without_budget_stay_and_without_any_all_do(restarts, make_net, make_batch):
    net, (x, y, budget) = make_net(), make_batch()
    assert torch.equal(fab(net, x, y, 0.0, steps=5, restarts=restarts), x)
    assert torch.equal(fab(net, x, y, torch.zeros_like(budget), steps=5, restarts=restarts), x)
    budget[:, :, 1] = 0
    x_adv = fab(net, x, y, budget, steps=5, restarts=restarts)
    assert torch.equal(x_adv[:, :, 1], x[:, :, 1])
    assert not torch.equal(x_adv, x)


def test_budgets_next_to_nothing_do_no_harm(make_net, make_batch):
    net, (x, y, budget) = make_net(), make_batch(8)
    budget[:, :, 1], budget[:, :, 2] = 1e-30, 1e-9
    budget[0], budget[1], budget[2] = 1e-20, 1e-44, 1e-42
    budget[2, :, 0, 0] = 0.1  # too little to reach a boundary with
    for targets in (0, 9):
        search = fab_search(targets=targets, restarts=2)
        state = search.begin(x, y, budget, keys_of_try(torch.arange(8), 1, 2), (y + 1) % 5)
        for _ in range(10):
            state = search.advance(net.eval(), state)
            assert state["point"].isfinite().all()
            assert state["margin"].isfinite().all()
        torch.testing.assert_close(state["x_adv"][:2], x[:2])


# as a search


@settings(max_examples=15)
@given(seed=st.integers(0, 1000), channels=st.sampled_from([0, 1, 3]), targets=st.sampled_from([0, 2]))
def test_stays_inside_and_the_margin_does_not_fall(seed, channels, targets):
    g = torch.Generator().manual_seed(seed)
    x, y = torch.rand(6, 3, 4, 4, generator=g), torch.randint(3, (6,), generator=g)  # right or wrong from the start
    w = torch.randn(3, 48, generator=g)

    def net(z):
        return z.flatten(1).sin() @ w.T

    budget = 0.1 * torch.rand(6, channels, 4, 4, generator=g) if channels else 0.1
    x_adv = fab(net, x, y, budget, steps=6, targets=targets, restarts=2)
    assert x_adv.dtype == x.dtype
    assert ((x_adv - x).abs() - budget).max() <= 1e-6
    assert x_adv.min() >= 0
    assert x_adv.max() <= 1
    assert (margin(net(x_adv), y) >= margin(net(x), y)).all()


@pytest.mark.parametrize("targets", [0, 9])
def test_rows_at_different_steps_go_on_as_if_alone(targets, make_net, make_batch):
    net, (x, y, budget) = make_net(dtype=torch.float64).eval(), make_batch(6, dtype=torch.float64)
    search = fab_search(targets=targets, restarts=3)
    keys = keys_of_try(torch.arange(6) * 99, torch.arange(6), 3)

    def after(steps, rows):
        state = search.begin(x[rows], y[rows], budget[rows], keys[rows], (y[rows] + 1) % 5)
        for _ in range(steps):
            state = search.advance(net, state)
        return state

    old, new = after(7, slice(0, 3)), after(0, slice(3, 6))
    mixed = {name: torch.cat((old[name], new[name])) for name in old}
    for _ in range(5):
        mixed = search.advance(net, mixed)
    for i in range(6):
        alone = after(12 if i < 3 else 5, slice(i, i + 1))
        for name in mixed:
            torch.testing.assert_close(mixed[name][i : i + 1], alone[name], atol=1e-12, rtol=0)


def test_with_two_classes_there_is_one_boundary(make_net, make_batch):
    net, (x, y, budget) = make_net(2), make_batch(classes=2)
    assert torch.equal(fab(net, x, y, budget, steps=5, targets=9), fab(net, x, y, budget, steps=5, targets=0))


def test_the_first_restart_begins_at_x_and_later_ones_within_half_of_the_budget(make_net, make_batch):
    x, y, budget = make_batch()
    net = Recorded(make_net())
    fab(net, x, y, budget, steps=2, targets=2, restarts=3)
    starts = net.asked[1::4]  # behind the clean images, two steps of two questions each
    assert len(starts) == 2 * 3
    for number, start in enumerate(starts):
        assert torch.equal(start, x) == (number % 3 == 0)
        assert ((start - x).abs() - budget / 2).max() <= 1e-6
    assert not torch.equal(starts[1], starts[2])
    assert not torch.equal(starts[1], starts[4])


@pytest.mark.parametrize("restarts", [1, 2, 5])
def test_a_key_tells_its_restart(restarts):
    keys = torch.tensor([-(2**61), -7, -1, 0, 3, 2**62])
    for number in range(2 * restarts):
        moved = keys_of_try(keys, number, restarts)
        assert (moved % restarts == number % restarts).all()
        assert (moved - keys).abs().max() < restarts


@pytest.mark.parametrize("targets", [0, 9])
def test_a_step_keeps_the_form_of_the_state_whatever_the_model_computes_in(targets, make_net, make_batch):
    net, (x, y, budget) = make_net().eval(), make_batch()
    search = fab_search(targets=targets)
    before = search.begin(x, y, budget, y, (y + 1) % 5)
    after = search.advance(lambda z: net(z).bfloat16(), before)
    assert {k: (v.shape, v.dtype) for k, v in before.items()} == {k: (v.shape, v.dtype) for k, v in after.items()}
    assert torch.equal(after["step"], before["step"] + 1)
    assert not any(v.requires_grad for v in after.values())


def test_a_step_asks_no_tensor_for_its_value():
    """Fake tensors have shapes and no values: what runs on them can be captured into a CUDA graph."""
    with FakeTensorMode():
        x, y, budget = torch.rand(4, 3, 4, 4), torch.zeros(4, dtype=torch.long), torch.rand(4, 1, 4, 4)
        net = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(64, 5)).eval()
        for targets in (0, 9):
            search = fab_search(targets=targets, restarts=2)
            state = search.advance(net, search.begin(x, y, budget, y, y))
            assert state["x_adv"].shape == x.shape
            with pytest.raises(DataDependentOutputException):
                search.advance(lambda z: net(z) * z.max().item(), state)
