"""x, x_adv, y -> loss: AT, TRADES and MART. An objective also names the loss and the start of its inner attack."""

from collections.abc import Callable
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from pixelpart.losses import at_class, ce, kl, likeliest, without
from pixelpart.types import Images, Labels, Logits, Model, PerSample, Targets

__all__ = ["OBJECTIVES", "Objective", "at", "mart", "trades"]


def at(model: Model, x: Images, x_adv: Images, y: Targets) -> Float[Tensor, ""]:
    """mean[-log p_y(x_adv)], x is not used: adversarial training (Madry et al. 2018)."""
    return ce(model(x_adv), y).mean()


def trades(model: Model, x: Images, x_adv: Images, y: Targets, *, beta: float = 6.0) -> Float[Tensor, ""]:
    """mean[-log p_y(x)] + beta mean[KL(p(x) || p(x_adv))], with gradients of both predictions (Zhang et al. 2019)."""
    # here and in MART two forwards, clean first: one joint batch would mix their batch-norm statistics
    clean = model(x)
    adv = model(x_adv)
    return ce(clean, y).mean() + beta * kl(adv, clean).mean()


def mart(model: Model, x: Images, x_adv: Images, y: Targets, *, beta: float = 6.0) -> Float[Tensor, ""]:
    """mean[-log p_y(x_adv) - log(1 - max_{k != y} p_k(x_adv))] + beta mean[KL(p(x) || p(x_adv)) (1 - p_y(x))].

    MART (Wang et al. 2020), with log(1 - p) computed from the logits, so that it is finite without added constants. If
    y are probabilities: -sum_k y_k log p_k, sum_k y_k p_k, and the classes other than the most likely of y.
    """
    clean = model(x)
    adv = model(x_adv)
    return (ce(adv, y) + runner_up(adv, likeliest(y))).mean() + beta * (kl(adv, clean) * unsure(clean, y)).mean()


def unsure(logits: Logits, y: Targets) -> PerSample:
    """1 - p_y, or sum_k y_k (1 - p_k), accurate also where p is close to 1."""
    log_p = logits.log_softmax(1)
    return -(y * log_p.expm1()).sum(1) if y.is_floating_point() else -at_class(log_p, y).expm1()


def runner_up(logits: Logits, y: Labels) -> PerSample:
    """-log(1 - p_k) for the most likely wrong class k, as logsumexp_j z_j - logsumexp_{j != k} z_j."""
    k = without(logits, y).argmax(1)
    return -without(logits.log_softmax(1), k).logsumexp(1)


@dataclass(frozen=True)
class Objective:
    loss: Callable[..., Tensor]  # loss(model, x, x_adv, y), with y labels or probabilities, and beta=... if weighted
    inner: str  # the inner attack's loss, a name in losses.LOSSES
    start: str  # the inner attack's start
    weighted: bool = True  # whether the loss takes a beta


OBJECTIVES = {
    "at": Objective(at, inner="ce", start="uniform", weighted=False),
    "trades": Objective(trades, inner="kl", start="normal"),
    "mart": Objective(mart, inner="ce", start="normal"),
}


def __dir__() -> list[str]:
    return __all__
