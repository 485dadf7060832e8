"""FAB's change to a hyperplane, within [0,1] and each pixel's share of the budget."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from doubling import in_double
from pixelpart.attacks.fab import ROUNDS, to_hyperplane


def hyperplanes(seed, *, rows=16, n=12, dtype=torch.float64, shares=True):
    """Points with pixels at 0 and 1, weights and shares with zeros, and heights from within reach to far beyond."""
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
    reach = (w.abs() * torch.where(sign[:, None] * w > 0, t, 1 - t)).sum(1)  # with shares of 0, some is out of reach
    return t, w, sign * scale * reach, share


def programmed(t, w, height, share):
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
@pytest.mark.parametrize("seed", range(4))
def test_the_change_to_a_hyperplane_is_what_a_linear_program_finds(seed, shares):
    t, w, height, share = hyperplanes(seed, shares=shares)
    d, norm = to_hyperplane(t, w, height, share)
    assert (t + d).min() >= -1e-15
    assert (t + d).max() <= 1 + 1e-15
    assert d[(w == 0) | (share == 0)].abs().max() == 0
    assert (d.abs() <= share * norm[:, None] + 1e-15).all()
    outcomes = set()
    for i in range(len(t)):
        least = programmed(*(row.numpy() for row in (t[i], w[i], height[i], share[i])))
        outcomes.add(least is None)
        if least is None:  # as near as can be: all the way in every pixel that helps
            helps = -torch.sign(height[i]) * w[i].sign() * (share[i] > 0)
            edge = torch.where(helps > 0, 1 - t[i], -t[i])
            torch.testing.assert_close(d[i], torch.where(helps != 0, edge, 0))
        else:
            torch.testing.assert_close((w[i] * d[i]).sum(), -height[i], atol=1e-12, rtol=0)
            assert float(norm[i]) == pytest.approx(least, abs=1e-9)
            torch.testing.assert_close(norm[i], (d[i].abs() / share[i])[share[i] > 0].amax(), atol=1e-12, rtol=0)
    assert outcomes == {False, True}


@settings(max_examples=50)
@given(seed=st.integers(0, 10_000), n=st.sampled_from([1, 2, 7, 300]))
def test_the_change_solves_its_equation_at_any_size(seed, n):
    """By bisection on the norm r, with sum_i |w_i| min(s_i r, room_i) = |height|."""
    t, w, height, share = hyperplanes(seed, n=n)
    share = share.nan_to_num()  # where all of the shares were 0
    _, norm = to_hyperplane(t, w, height, share)
    towards = -torch.where(height >= 0, 1, -1)[:, None] * w.sign()
    room = torch.where(towards > 0, 1 - t, t)
    low, high = torch.zeros_like(height), torch.where(share * w.abs() > 0, room / share, 0).amax(1)
    for _ in range(200):
        middle = (low + high) / 2
        short = (w.abs() * room.minimum(share * middle[:, None])).sum(1) < height.abs()
        low, high = torch.where(short, middle, low), torch.where(short, high, middle)
    torch.testing.assert_close(norm, high, atol=1e-8, rtol=1e-8)


@pytest.mark.parametrize(("dtype", "atol"), [(torch.float64, 1e-12), (torch.float32, 2e-5)])
def test_without_shares_it_is_the_reference_projection(dtype, atol, monkeypatch):
    projections = pytest.importorskip("pyautoattack.fab_projections")
    in_double(monkeypatch, dtype == torch.float64)
    t, w, height, share = hyperplanes(3, rows=60, n=40, dtype=dtype, shares=False)
    d, norm = to_hyperplane(t, w, height, share)
    expected = projections.projection_linf(t, w, (w * t).sum(1) - height)
    torch.testing.assert_close(d, expected, atol=atol, rtol=0)
    torch.testing.assert_close(norm, expected.abs().amax(1), atol=atol, rtol=0)


def test_a_hyperplane_without_a_direction_moves_nothing():
    zeros = torch.zeros(2, 5)
    d, norm = to_hyperplane(zeros + 0.5, zeros, torch.tensor([1.0, -1.0]), zeros + 1)
    assert not d.any()
    assert not norm.any()


def test_tiny_weights_and_rooms_stay_finite():
    t = torch.tensor([[0.0, 1.0, 0.5, 1e-30]])
    for size in (1e-44, 1e-30, 1e30):
        w = torch.tensor([[1.0, -1.0, 1.0, 1e-10]]) * size
        for height in (1e-30, -1e-30, 1e30, -1e30, 0.0):
            d, norm = to_hyperplane(t, w, torch.tensor([height]), torch.tensor([[1.0, 1e-6, 1e-6, 1.0]]))
            assert d.isfinite().all()
            assert norm.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rounds_that_would_move_nothing_are_left_out(dtype, monkeypatch):
    """The change is that of all rounds, to the bit, in rows that are reached at once and in such as never are."""
    t, w, height, share = hyperplanes(5, rows=60, n=40, dtype=dtype)
    height[:5] *= 1e3
    early = to_hyperplane(t, w, height, share)
    asked = []
    monkeypatch.setattr(torch, "equal", lambda a, b: asked.append(bool((a == b).all())))
    all_of_them = to_hyperplane(t, w, height, share)
    monkeypatch.undo()
    assert len(asked) == ROUNDS
    assert asked.index(True) < ROUNDS - 2
    assert all(torch.equal(a, b) for a, b in zip(early, all_of_them, strict=True))
