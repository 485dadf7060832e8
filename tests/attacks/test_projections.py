"""The projections onto the balls of l2 and l1 within [0, 1], and `inside`."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pixelpart.attacks.ball import inside, length, project_l1, project_l2, unit
from walks import NORMS

PROJECTIONS = {"l2": project_l2, "l1": project_l1}


def row(*values, dtype=torch.float64):
    return torch.tensor(values, dtype=dtype).reshape(1, 1, 1, -1)


def radii(*values):
    return torch.tensor(values, dtype=torch.float64).reshape(-1, 1, 1, 1)


def frame(b, n, seed, dtype=torch.float64):
    """Images of n pixels, a third of them at 0 or 1, and images up to 2 away, most of the changes small."""
    g = torch.Generator().manual_seed(seed)
    x = (3 * torch.rand(b, 1, 1, n, generator=g, dtype=dtype) - 1).clamp(0, 1)
    return x, x + 2 * (2 * torch.rand(x.shape, generator=g, dtype=dtype) - 1) ** 3


def test_the_l1_projection_by_hand():
    x = row(0.5, 0.5, 0.5, 0.0, 1.0)
    far = row(0.9, 0.3, 0.55, -0.5, 0.9)  # changes 0.4, -0.2, 0.05, one without room, -0.1
    torch.testing.assert_close(project_l1(far, x, 1.0), row(0.9, 0.3, 0.55, 0.0, 0.9))
    torch.testing.assert_close(project_l1(far, x, 0.4), row(0.8, 0.4, 0.5, 0.0, 1.0))  # each 0.1 less, down to 0
    torch.testing.assert_close(project_l1(far, x, 0.1), row(0.6, 0.5, 0.5, 0.0, 1.0))
    # both far outside [0, 1]: the first uses its room of 0.1, the second the rest of the radius
    torch.testing.assert_close(project_l1(row(2.0, 1.5), row(0.9, 0.2), 0.4), row(1.0, 0.5))


def test_the_l2_projection_by_hand():
    x = row(0.5, 0.5, 1.0)
    torch.testing.assert_close(project_l2(row(0.8, 0.1, 1.0), x, 0.25), row(0.65, 0.3, 1.0))
    torch.testing.assert_close(project_l2(row(0.8, 0.1, 2.2), x, 0.65), row(0.65, 0.3, 1.0))  # |d| is 1.3


@given(seed=st.integers(0, 10**6), radius=st.floats(0.01, 30))
@settings(deadline=None, max_examples=15)
def test_the_l1_projection_equals_that_of_the_reference(seed, radius):
    autopgd = pytest.importorskip("pyautoattack.autopgd_base")
    x, far = frame(4, 48, seed, torch.float32)
    expected = far + autopgd.L1_projection(x, far - x, radius)
    torch.testing.assert_close(project_l1(far, x, radius), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("norm", NORMS)
@given(
    seed=st.integers(0, 10**6),
    radius=st.floats(0, 30) | st.floats(0, 0.03),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
@settings(deadline=None, max_examples=20)
def test_a_projection_is_inside_and_leaves_what_is_inside(norm, seed, radius, dtype):
    x, far = frame(6, 300, seed, dtype)
    near = PROJECTIONS[norm](far, x, radius)
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
    assert inside(near, x, 0.5 - 0.9e-6, norm="l2").tolist() == [True, False, False, True, True]
    assert inside(near, x, 0.5 - 1.1e-6, norm="l2").tolist() == [False, False, False, False, True]
    assert inside(near, x, 0.0, norm="l1").tolist() == [False, False, False, False, True]
    assert inside(near, x, 0.5).tolist() == [True, True, False, True, True]


def test_a_unit_vector_does_not_depend_on_the_size_of_the_gradient():
    way = torch.randn(3, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    way[2] = 0
    for scale in (1, 1e-6, 1e-25, 1e20):
        torch.testing.assert_close(unit(scale * way)[:2], way[:2] / length(way[:2], "l2"))
        torch.testing.assert_close(unit(scale * way)[2], way[2])
