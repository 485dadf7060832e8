"""FAB against its authors' code, and with a budget that differs from pixel to pixel."""

import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from torch import nn

from doubling import in_double
from pixelpart.attacks.fab import fab, fab_search, to_hyperplane
from pixelpart.attacks.search import budget_per_sample, keys_of_try, target_classes
from pixelpart.draws import hashed
from pixelpart.losses import margin

STEPS = 30


# -- the authors' code


class Recorded(nn.Module):
    """A model that records the images it is called with."""

    def __init__(self, net):
        super().__init__()
        self.net, self.seen = net, []

    def forward(self, x):
        self.seen.append(x.detach().clone())
        return self.net(x)


def scene(make_net, make_batch, classes=5, b=8, seed=0):
    net, (x, _, _) = make_net(classes, dtype=torch.float64).eval(), make_batch(b, dtype=torch.float64, seed=seed)
    return net, x, net(x).argmax(1)


def reference(net, x, y, eps, *, rank, monkeypatch, noise=None):
    """The images that the authors' code visits, two per iteration, and what it returns."""
    FABAttack_PT = pytest.importorskip("pyautoattack.fab_pt").FABAttack_PT
    recorded = Recorded(net)
    attack = FABAttack_PT(recorded, norm="Linf", eps=eps, n_iter=STEPS, targeted=rank is not None, device=x.device)
    attack.target_class = None if rank is None else rank + 2
    with monkeypatch.context() as patch:
        in_double(patch)
        patch.setattr(torch, "rand", lambda *_: noise)
        x_adv = attack.attack_single_run(x, y, use_rand_start=noise is not None, is_targeted=rank is not None)
    return torch.stack(recorded.seen[-2 * STEPS :]), x_adv


def ours(net, x, y, budget, *, rank, keys=None, restarts=1):
    recorded = Recorded(net)
    search = fab_search(steps=STEPS, targets=0 if rank is None else 9, restarts=restarts)
    target = y if rank is None else target_classes(net(x), y, rank)
    state = search.begin(x, y, budget_per_sample(budget, x), torch.zeros_like(y) if keys is None else keys, target)
    for _ in range(STEPS):
        state = search.advance(recorded, state)
    return torch.stack(recorded.seen), state


def norm_of(change):
    return change.abs().flatten(-3).amax(-1)


@pytest.mark.parametrize("rank", [0, 1, 3, None], ids=["first", "second", "last", "untargeted"])
def test_visits_the_same_images_as_the_reference(rank, make_net, make_batch, monkeypatch):
    net, x, y = scene(make_net, make_batch)
    expected, x_ref = reference(net, x, y, 0.1, rank=rank, monkeypatch=monkeypatch)
    visited, _ = ours(net, x, y, 0.1, rank=rank)
    torch.testing.assert_close(visited, expected, atol=1e-9, rtol=0)
    reached = visited[1::2]  # the first of each iteration's two is where it linearises
    errs = torch.stack([net(z).argmax(1) != y for z in reached])
    nearest = torch.where(errs, norm_of(reached - x), torch.inf).amin(0)
    found = norm_of(x_ref - x)
    assert (found > 0).any()
    torch.testing.assert_close(torch.where(nearest.isinf(), 0, nearest), found, atol=1e-9, rtol=0)


@pytest.mark.parametrize("rank", [0, None], ids=["targeted", "untargeted"])
def test_a_later_restart_starts_where_the_reference_does(rank, make_net, make_batch, monkeypatch):
    net, x, y = scene(make_net, make_batch)
    keys = keys_of_try(torch.arange(len(x)) * 1234567, 1, 2)
    noise = hashed(keys, x[0].numel()).double().reshape(x.shape)
    expected, _ = reference(net, x, y, 0.1, rank=rank, noise=noise, monkeypatch=monkeypatch)
    visited, _ = ours(net, x, y, 0.1, rank=rank, keys=keys, restarts=2)
    assert not torch.equal(visited[0], x)
    torch.testing.assert_close(visited, expected, atol=1e-9, rtol=0)


@pytest.mark.parametrize("rank", [0, None], ids=["targeted", "untargeted"])
def test_keeps_the_largest_margin_of_the_points_inside(rank, make_net, make_batch, monkeypatch):
    net, x, y = scene(make_net, make_batch, b=16)
    visited, x_ref = reference(net, x, y, 1.0, rank=rank, monkeypatch=monkeypatch)
    eps = float(norm_of(x_ref - x).median())
    inside = norm_of(visited - x) <= eps
    margins = torch.stack([margin(net(z), y) for z in visited]).masked_fill(~inside, -torch.inf)
    best, at = margins.max(0)
    x_adv = fab(net, x, y, eps, steps=STEPS, targets=0 if rank is None else 1)
    torch.testing.assert_close(x_adv, visited[at, torch.arange(len(x))], atol=1e-6, rtol=0)
    broken = net(x_adv).argmax(1) != y
    assert torch.equal(broken, best > 0)
    assert (broken >= (norm_of(x_ref - x) <= eps)).all()
    assert 0 < broken.sum() < len(x)


# -- a budget that differs from pixel to pixel


def shares_like(x, seed=1):
    """Shares of the largest budget, some of them 0."""
    share = torch.rand(x.shape, generator=torch.Generator().manual_seed(seed), dtype=x.dtype)
    share[share < 0.2] = 0
    return share / share.amax((1, 2, 3), keepdim=True)


@pytest.mark.parametrize(("rank", "later"), [(0, True), (None, False)], ids=["targeted", "untargeted"])
def test_unequal_budgets_are_the_reference_in_stretched_pixels(rank, later, make_net, make_batch, monkeypatch):
    """With delta = s u, the attack inside the budget eps s is the reference's inside eps, on the model of x + s u.

    The images are grey, so that no pixel reaches 0 or 1, where the two would differ.
    """
    net, x, _ = scene(make_net, make_batch)
    x = 0.4 + 0.2 * x
    y, share = net(x).argmax(1), shares_like(x)
    keys = keys_of_try(torch.arange(len(x)), int(later), 2)
    noise = torch.where(share > 0, hashed(keys, x[0].numel()).double().reshape(x.shape), 0.5) if later else None

    def stretched(z):
        return net(x + share * (z - x))

    expected, _ = reference(stretched, x, y, 0.1, rank=rank, noise=noise, monkeypatch=monkeypatch)
    visited, _ = ours(net, x, y, 0.1 * share, rank=rank, keys=keys, restarts=2)
    change = share * (expected - x)
    assert (x + change).min() > 0
    assert (x + change).max() < 1
    torch.testing.assert_close(visited, x + change, atol=1e-9, rtol=0)
    assert torch.equal(visited[:, share == 0], x[share == 0].expand(2 * STEPS, -1))


@pytest.mark.parametrize("targets", [0, 9])
def test_a_linear_model_is_broken_if_the_weighted_sum_of_budgets_suffices(targets, make_batch):
    """Two classes with lead m and weights w: an error needs sum_i b_i |w_i| > m, however the budget is distributed."""
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
        for factor, breaks in ((0.99, False), (1.02, True)):
            budget = (factor * enough)[:, None, None, None] * share
            assert budget.max() < 0.4
            x_adv = fab(net, x, y, budget, steps=5, targets=targets)
            assert ((net(x_adv).argmax(1) != y) == breaks).all()


def test_tiny_budgets_stay_finite(make_net, make_batch):
    net, (x, y, budget) = make_net(), make_batch(8)
    budget[:, :, 1], budget[:, :, 2] = 1e-30, 1e-9
    budget[0], budget[1], budget[2] = 1e-20, 1e-44, 1e-42
    budget[2, :, 0, 0] = 0.1  # too small to reach a boundary
    for targets in (0, 9):
        search = fab_search(targets=targets, restarts=2)
        state = search.begin(x, y, budget, keys_of_try(torch.arange(8), 1, 2), (y + 1) % 5)
        for _ in range(10):
            state = search.advance(net.eval(), state)
            assert state["point"].isfinite().all()
            assert state["margin"].isfinite().all()
        torch.testing.assert_close(state["x_adv"][:2], x[:2])


# -- classes and restarts


def test_the_first_restart_starts_at_x_and_later_ones_within_half_of_the_budget(make_net, make_batch):
    x, y, budget = make_batch()
    net = Recorded(make_net())
    fab(net, x, y, budget, steps=2, targets=2, restarts=3)
    starts = net.seen[1::4]  # after the clean images, two steps of two calls each
    assert len(starts) == 2 * 3
    for number, start in enumerate(starts):
        assert torch.equal(start, x) == (number % 3 == 0)
        assert ((start - x).abs() - budget / 2).max() <= 1e-6
    assert not torch.equal(starts[1], starts[2])
    assert not torch.equal(starts[1], starts[4])


# -- the change to a hyperplane, within [0, 1] and the share of each pixel


def hyperplanes(seed, *, rows=16, n=12, dtype=torch.float64, shares=True):
    """Points with pixels at 0 and 1, weights and shares with zeros, heights within reach and far beyond."""
    g = torch.Generator().manual_seed(seed)
    t = (1.4 * torch.rand(rows, n, generator=g, dtype=dtype) - 0.2).clamp(0, 1)
    w = torch.randn(rows, n, generator=g, dtype=dtype)
    w[torch.rand(rows, n, generator=g) < 0.2] = 0
    share = torch.rand(rows, n, generator=g, dtype=dtype) if shares else torch.ones(rows, n, dtype=dtype)
    if shares:
        share[torch.rand(rows, n, generator=g) < 0.2] = 0
        share = share / share.amax(1, keepdim=True)
    scale = torch.tensor([0.0, 0.01, 0.3, 0.7, 1.3, 10.0], dtype=dtype)[torch.arange(rows) % 6]
    sign = 2.0 * torch.randint(2, (rows,), generator=g) - 1
    reach = (w.abs() * torch.where(sign[:, None] * w > 0, t, 1 - t)).sum(1)
    return t, w, sign * scale * reach, share


def least_norm(t, w, height, share):
    """The least norm with |d_i| <= s_i norm, by a linear program in (d, norm); None where there is no such d."""
    n = len(t)
    eye = np.eye(n)
    solved = linprog(
        np.r_[np.zeros(n), 1.0],
        A_ub=np.block([[eye, -share[:, None]], [-eye, -share[:, None]]]),
        b_ub=np.zeros(2 * n),
        A_eq=np.r_[w, 0.0][None],
        b_eq=[-height],
        bounds=[(-v, 1 - v) for v in t] + [(0, None)],
    )
    return solved.fun if solved.status == 0 else None


@pytest.mark.parametrize("shares", [False, True])
@pytest.mark.parametrize("seed", range(2))
def test_the_change_to_a_hyperplane_equals_that_of_a_linear_program(seed, shares):
    t, w, height, share = hyperplanes(seed, shares=shares)
    d, norm = to_hyperplane(t, w, height, share)
    assert (t + d).min() >= -1e-15
    assert (t + d).max() <= 1 + 1e-15
    assert d[(w == 0) | (share == 0)].abs().max() == 0
    assert (d.abs() <= share * norm[:, None] + 1e-15).all()
    outcomes = set()
    for i in range(len(t)):
        least = least_norm(*(row.numpy() for row in (t[i], w[i], height[i], share[i])))
        outcomes.add(least is None)
        if least is None:  # the nearest: every pixel that helps is at its end
            helps = -torch.sign(height[i]) * w[i].sign() * (share[i] > 0)
            edge = torch.where(helps > 0, 1 - t[i], -t[i])
            torch.testing.assert_close(d[i], torch.where(helps != 0, edge, 0))
        else:
            torch.testing.assert_close((w[i] * d[i]).sum(), -height[i], atol=1e-12, rtol=0)
            assert float(norm[i]) == pytest.approx(least, abs=1e-9)
            torch.testing.assert_close(norm[i], (d[i].abs() / share[i])[share[i] > 0].amax(), atol=1e-12, rtol=0)
    assert outcomes == {False, True}
