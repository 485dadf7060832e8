"""Fast adaptive boundary attack (Croce and Hein 2020): steps to the nearest linearised boundary, biased towards x.

It looks for the smallest change that makes the model err, in the norm max_i |delta_i| / s_i, s = budget / max(budget).
That is l_inf in u = delta / s, where a hyperplane w.delta = c is (s w).u = c, and a change is inside the budget if its
norm is at most max(budget). For a constant budget s is 1 and the norm is l_inf itself.
"""

from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from pixelpart.attacks.ball import inside, project
from pixelpart.attacks.search import Search, State, initial_state, keep_best, run_search
from pixelpart.draws import Keys, hashed
from pixelpart.losses import margin, targeted_margin
from pixelpart.types import Budget, Images, Labels, Logits, Model, PerSample

Rows = Float[Tensor, "b n"]

ALPHA_MAX, ETA, BETA = 0.1, 1.05, 0.9  # largest pull towards x, step beyond the boundary, step back after an error
ROUNDS = 14  # Newton steps to a hyperplane: 2 or 3 where it is near, up to 10 where it is almost out of reach
MIN_SHARE = 1e-6  # a pixel with a smaller share of the largest budget is not changed: its norm would overflow


def fab(
    model: Model,
    x: Images,
    y: Labels,
    budget: Budget,
    *,
    steps: int = 100,
    targets: int = 9,
    restarts: int = 1,
    generator: torch.Generator | None = None,
) -> Images:
    """The image inside the budget with the largest margin that FAB visits for each sample; see `fab_search`."""
    search = fab_search(steps=steps, targets=targets, restarts=restarts)
    return run_search(search, model, x, y, budget, generator=generator)


def fab_search(*, steps: int = 100, targets: int = 9, restarts: int = 1) -> Search:
    """FAB towards each of the `targets` most likely wrong classes, or with 0 to the nearest of all boundaries.

    The first restart starts at x, later ones at a random point within half of the budget.
    """
    begin = partial(_begin, restarts=restarts)
    return Search(begin, partial(_advance, targeted=targets > 0), steps=steps, targets=targets, restarts=restarts)


def _begin(x: Images, y: Labels, budget: Tensor, keys: Keys, target: Labels, *, restarts: int) -> State:
    point = x.clone()
    if restarts > 1:
        later = (keys % restarts > 0)[:, None, None, None]
        point = torch.where(later, _random_point(x, budget, keys), point)
    return {**initial_state(x, y, budget, keys, target), "point": point}


def _random_point(x: Images, budget: Tensor, keys: Keys) -> Images:
    """x + budget/2 * t / max|t| with t uniform in [-1, 1], clamped to [0, 1]."""
    t = (2 * hashed(keys, x[0].numel()) - 1).to(x.dtype).reshape(x.shape)
    t = torch.where(_share(budget) > 0, t, 0)
    largest = t.abs().amax((1, 2, 3), keepdim=True).clamp_min(1e-12)
    return (x + budget / 2 * t / largest).clamp(0, 1)


@torch.no_grad()
def _advance(net: Model, state: State, *, targeted: bool) -> State:
    """One iteration: linearise at the point, step over the boundary, and where the model errs there, step back a bit.

    With d_1 and d_0 the changes that take the point and x to the linearised boundary, and n_1 and n_0 their norms:
    point <- (1 - alpha) (point + eta d_1) + alpha (x + eta d_0), alpha = min(n_1 / (n_1 + n_0), alpha_max).
    """
    x, y, point, share = state["x"], state["y"], state["point"], _share(state["budget"])
    logits, lead, grad = _nearest_boundary(net, point, y, state["target"] if targeted else None, share)
    state = {**state, **_keep_inside(state, point, logits)}

    lead_at_x = lead + (grad * (x - point)).flatten(1).sum(1)
    moves, norms = to_hyperplane(
        torch.cat((point, x)).flatten(1),
        torch.cat((grad, grad)).flatten(1),
        torch.cat((lead, lead_at_x)),
        torch.cat((share, share)).expand(-1, *x.shape[1:]).flatten(1),
    )
    from_point, from_x = moves.reshape(2, *x.shape)
    norm, norm_from_x = norms.clamp_min(1e-8).chunk(2)
    alpha = (norm / (norm + norm_from_x)).clamp_max(ALPHA_MAX)[:, None, None, None]
    # written as a change of x, so that a pixel that does not move keeps its exact value
    over = (x + (1 - alpha) * (point - x + ETA * from_point) + alpha * ETA * from_x).clamp(0, 1)

    logits = net(over)
    errs = (margin(logits.to(x.dtype), y) >= 0)[:, None, None, None]
    return {
        **state,
        **_keep_inside(state, over, logits),
        "point": torch.where(errs, x + BETA * (over - x), over),
        "step": state["step"] + 1,
    }


def _nearest_boundary(
    net: Model, point: Images, y: Labels, target: Labels | None, share: Tensor
) -> tuple[Logits, PerSample, Images]:
    """The logits, and the lead z_k - z_y with its gradient for the target k, or for the k with the nearest boundary.

    For a linear model the distance of the boundary is |z_k - z_y| / sum_i s_i |gradient_i|.
    """
    with torch.enable_grad():
        leaf = point.detach().requires_grad_()
        logits = net(leaf)
        z = logits.to(point.dtype)
        wrong = torch.arange(z.shape[1] - 1, device=y.device)[:, None]
        others = target[None] if target is not None else wrong + (wrong >= y)  # row i: the i-th wrong class
        leads = [targeted_margin(z, y, other) for other in others]
        totals = [lead.sum() for lead in leads]
    lead, grad, distance = z.new_zeros(len(z)), torch.zeros_like(point), z.new_full((len(z),), torch.inf)
    for number, (candidate, total) in enumerate(zip(leads, totals, strict=True)):
        (slope,) = torch.autograd.grad(total, leaf, retain_graph=number + 1 < len(leads))
        length = candidate.detach().abs() / ((share * slope).abs().flatten(1).sum(1) + 1e-12)
        nearer = length < distance
        lead = torch.where(nearer, candidate.detach(), lead)
        grad = torch.where(nearer[:, None, None, None], slope, grad)
        distance = torch.where(nearer, length, distance)
    return logits.detach(), lead, grad


def to_hyperplane(t: Rows, w: Rows, height: PerSample, share: Rows) -> tuple[Rows, PerSample]:
    """The change d with w.d = -height and t + d in [0, 1] of the smallest norm max_i |d_i| / s_i, and that norm.

    If the plane is out of reach, the change that comes nearest. A pixel with s_i = 0 or w_i = 0 does not move. At norm
    r pixel i has moved by min(s_i r, room_i), so w.d = -height means f(r) = sum_i |w_i| min(s_i r, room_i) = |height|.
    f is concave and piecewise linear: Newton's steps from the left rise to the root, and reach it with its piece.
    """
    towards = torch.where(height >= 0, -1, 1)[:, None] * w.sign()
    room = torch.where(towards > 0, 1 - t, t)
    speed = w.abs() * share
    edge = torch.where(speed > 0, room / share, 0)  # the norm at which a pixel reaches 0 or 1
    end, at_edge = edge.amax(1, keepdim=True), speed * edge
    height = height.abs()[:, None]
    norm = torch.zeros_like(height)
    for _ in range(ROUNDS):
        free = edge > norm
        rate = torch.where(free, speed, 0).sum(1, keepdim=True)
        left = height - torch.where(free, 0, at_edge).sum(1, keepdim=True)
        # if the plane is out of reach, all pixels end at their edge
        before, norm = norm, torch.where(rate > 0, left / rate, end).maximum(norm).minimum(end)
        # a norm that did not change is final; on a GPU this check would cost more than the rounds
        if type(norm) is Tensor and norm.device.type == "cpu" and torch.equal(norm, before):
            break
    return torch.where(speed > 0, towards, 0) * room.minimum(norm * share), norm.squeeze(1)


def _keep_inside(state: State, point: Images, logits: Logits) -> State:
    """`keep_best` for points that may be outside the budget."""
    x, budget = state["x"], state["budget"]
    return keep_best(state, project(point, x, budget), logits, inside(point, x, budget))


def _share(budget: Tensor) -> Tensor:
    """s = budget / max(budget) of each sample, 0 where that is negligible."""
    share = budget / budget.amax((1, 2, 3), keepdim=True).clamp_min(1e-12)
    return torch.where(share < MIN_SHARE, 0, share)
