"""The paper's 2-D toy: which changes of two pixels, each within its budget, make the square loss largest.

loss(d) = (r - w . d)^2 on |d_i| <= eps_i, where r = y - f(x) is the residual of the linear model f(x) = w . x + b at
the clean point. The Karush-Kuhn-Tucker conditions of its maximum, with rho = r - w . d the residual after the change:

    up_i - down_i = d loss / d d_i = -2 w_i rho,   up_i, down_i >= 0,
    up_i > 0 only where d_i = eps_i,  down_i > 0 only where d_i = -eps_i.

up_1, down_1, up_2, down_2 are lambda_1 to lambda_4 of the paper's appendix. Lemma 1's cases by the multipliers above 0:
(i) none; (ii) one of each pixel; (iii) exactly one.
"""

import itertools
from collections import Counter
from dataclasses import asdict, dataclass, replace

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
TOLERANCE = 1e-9


@dataclass(frozen=True)
class Toy:
    """A linear model at one point: residual y - f(x), weights and budgets of the two pixels."""

    residual: float
    weights: tuple[float, float]
    eps: tuple[float, float]

    @property
    def reach(self) -> float:
        """The largest change of the model's output: |w_1| eps_1 + |w_2| eps_2."""
        return float(np.abs(self.weights) @ np.array(self.eps))


@dataclass(frozen=True)
class Point:
    """A change of the two pixels, its loss, its multipliers, and what they say."""

    delta: tuple[float, float]
    loss: float
    multipliers: tuple[float, float, float, float]  # up_1, down_1, up_2, down_2
    inside: bool  # within the budgets
    kkt: bool  # satisfies the conditions of a maximum
    case: str  # of Lemma 1: i, ii or iii; empty unless kkt


def loss(toy: Toy, delta: Floats) -> Floats:
    """The square loss of changes (..., 2)."""
    return (toy.residual - delta @ np.array(toy.weights)) ** 2


def point(toy: Toy, delta: tuple[float, float]) -> Point:
    """The change with its loss, multipliers and case."""
    d, eps = np.array(delta), np.array(toy.eps)
    slope = -2 * np.array(toy.weights) * (toy.residual - d @ np.array(toy.weights))
    slope[np.abs(slope) < TOLERANCE] = 0.0
    up, down = np.maximum(slope, 0), np.maximum(-slope, 0)
    inside = bool((np.abs(d) <= eps + TOLERANCE).all())
    kkt = inside and bool((up * (eps - d) < TOLERANCE).all() and (down * (eps + d) < TOLERANCE).all())
    active = int((slope != 0).sum())
    case = ("i", "iii", "ii")[active] if kkt else ""
    return Point(delta, float(loss(toy, d)), (up[0], down[0], up[1], down[1]), inside, kkt, case)


def theorem_points(toy: Toy) -> list[Point]:
    """The four points that Theorem 1 calls optimal: one pixel at its bound, the other one set so that rho = 0."""
    (w1, w2), (e1, e2), r = toy.weights, toy.eps, toy.residual
    ends = [(s * e1, (r - w1 * s * e1) / w2) for s in (1, -1)] + [((r - w2 * s * e2) / w1, s * e2) for s in (1, -1)]
    return [point(toy, end) for end in ends]


def kkt_points(toy: Toy) -> list[Point]:
    """All points that satisfy the conditions, found by trying the nine choices of active bounds.

    Where a pixel is free its derivative must be 0, which with w_i != 0 means rho = 0. With both pixels free these are a
    line, of which one point is returned.
    """
    (w1, w2), (e1, e2), r = toy.weights, toy.eps, toy.residual
    found = []
    for s1, s2 in itertools.product((1, -1, 0), repeat=2):
        if s1 and s2:
            delta = (s1 * e1, s2 * e2)
        elif s1:
            delta = (s1 * e1, (r - w1 * s1 * e1) / w2)
        elif s2:
            delta = ((r - w2 * s2 * e2) / w1, s2 * e2)
        else:
            delta = (r * np.sign(w1) * e1 / toy.reach, r * np.sign(w2) * e2 / toy.reach)
        found.append(point(toy, delta))
    return [one for one in found if one.kkt]


def maximisers(toy: Toy) -> list[Point]:
    """The corners with the largest loss, (|r| + |w_1| eps_1 + |w_2| eps_2)^2: d_i = -sign(r) sign(w_i) eps_i.

    Two if r = 0. Their multipliers, 2 |w_i| (|r| + reach), are the derivatives of that loss with respect to eps_i: what
    a unit of budget is worth at each pixel.
    """
    signs = [1.0, -1.0] if toy.residual == 0 else [-float(np.sign(toy.residual))]
    w, eps = np.sign(toy.weights), np.array(toy.eps)
    return [point(toy, tuple((sign * w * eps).tolist())) for sign in signs]


@dataclass(frozen=True)
class GridSearch:
    """What a search over a grid of changes finds: extremes, and where the local maxima lie."""

    largest: float
    argmax: tuple[float, float]
    smallest: float
    corners: int  # local maxima at corners,
    edges: int  # on edges,
    interior: int  # and inside


def grid_search(toy: Toy, n: int = 201) -> GridSearch:
    """The loss on n x n points; a local maximum is a point that no neighbour reaches."""
    axes = [np.linspace(-e, e, n) for e in toy.eps]
    values = loss(toy, np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1))
    around = np.pad(values, 1, constant_values=-np.inf)
    shifts = [(i, j) for i, j in itertools.product(range(3), repeat=2) if (i, j) != (1, 1)]
    peak = np.all([values > around[i : i + n, j : j + n] for i, j in shifts], axis=0)
    end = np.isin(np.arange(n), (0, n - 1))
    bounds = end[:, None].astype(int) + end[None]
    i, j = np.unravel_index(values.argmax(), values.shape)
    count = [int((peak & (bounds == k)).sum()) for k in (2, 1, 0)]
    return GridSearch(float(values.max()), (float(axes[0][i]), float(axes[1][j])), float(values.min()), *count)


def facts(toy: Toy) -> dict[str, object]:
    """All points of a toy, and what a search over a grid finds."""
    listed = {"theorem": theorem_points(toy), "kkt": kkt_points(toy), "maximisers": maximisers(toy)}
    points = {name: [asdict(point) for point in points] for name, points in listed.items()}
    return {"toy": asdict(toy), "reach": toy.reach, **points, "grid": asdict(grid_search(toy))}


def random_toys(n: int, seed: int = 0) -> list[Toy]:
    """n toys whose weights differ in size and sign, and whose residuals lie inside and outside the reach."""
    draw = np.random.default_rng(seed)
    weights = draw.uniform(0.2, 2, (n, 2)) * draw.choice((-1.0, 1.0), (n, 2))
    eps = draw.uniform(0.2, 1, (n, 2))
    residual = draw.uniform(-2, 2, n) * (np.abs(weights) * eps).sum(1)
    return [Toy(float(r), tuple(w.tolist()), tuple(e.tolist())) for r, w, e in zip(residual, weights, eps, strict=True)]


def random_study(n: int) -> dict[str, object]:
    """Counts of KKT points by case, and the largest deviations from a grid search and from finite differences."""
    cases: Counter[str] = Counter()
    apart, edge, theorem, price = [], [], [], []
    for toy in random_toys(n):
        best, grid = maximisers(toy)[0], grid_search(toy, n=41)
        cases.update(point.case for point in kkt_points(toy))
        apart.append(abs(grid.largest / best.loss - 1))
        edge.append(grid.edges + grid.interior)
        theorem += [point.loss for point in theorem_points(toy)]
        price += [abs(worth(best)[i] - _slope_in_eps(toy, i)) for i in range(2)]
    checks = {
        "largest loss at Theorem 1's points": max(theorem),
        "largest relative difference of the maximum from a grid search": max(apart),
        "local maxima of the grid that are not corners": float(sum(edge)),
        "largest difference of a multiplier from d(max loss)/d(eps)": max(price),
    }
    return {"toys": n, "kkt_points": dict(cases), "checks": checks}


def worth(point: Point) -> tuple[float, float]:
    """The multiplier of each pixel's bound, whichever of the two it is."""
    up1, down1, up2, down2 = point.multipliers
    return up1 + down1, up2 + down2


def _slope_in_eps(toy: Toy, pixel: int, h: float = 1e-5) -> float:
    ends = []
    for sign in (1, -1):
        eps = list(toy.eps)
        eps[pixel] += sign * h
        ends.append(maximisers(replace(toy, eps=(eps[0], eps[1])))[0].loss)
    return (ends[0] - ends[1]) / (2 * h)
