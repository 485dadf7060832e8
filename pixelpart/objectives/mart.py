"""MART (Wang et al. 2020), with log(1 - p) computed from the logits, so that it is finite without added constants."""

from jaxtyping import Float
from torch import Tensor

from pixelpart.losses import at_class, ce, kl, likeliest, without
from pixelpart.types import Images, Labels, Logits, Model, PerSample, Targets


def mart(model: Model, x: Images, x_adv: Images, y: Targets, *, beta: float = 6.0) -> Float[Tensor, ""]:
    """mean[-log p_y(x_adv) - log(1 - max_{k != y} p_k(x_adv))] + beta mean[KL(p(x) || p(x_adv)) (1 - p_y(x))].

    If y are probabilities: -sum_k y_k log p_k, sum_k y_k p_k, and the classes other than the most likely of y.
    """
    # two forwards, clean first: one joint batch would mix their batch-norm statistics
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
