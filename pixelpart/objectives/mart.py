"""MART (Wang et al. 2020), with log(1 - p) taken over the logits: no constants are needed to keep it finite."""

from jaxtyping import Float
from torch import Tensor

from pixelpart.losses import at_class, ce, kl, without
from pixelpart.types import Images, Labels, Logits, Model, PerSample


def mart(model: Model, x: Images, x_adv: Images, y: Labels, *, beta: float = 6.0) -> Float[Tensor, ""]:
    """mean[-log p_y(x_adv) - log(1 - max_{k != y} p_k(x_adv))] + beta mean[KL(p(x) || p(x_adv)) (1 - p_y(x))]."""
    # two forwards, clean first: one joint batch would mix their batch-norm statistics
    clean = model(x)
    adv = model(x_adv)
    unsure = -at_class(clean.log_softmax(1), y).expm1()
    return (ce(adv, y) + runner_up(adv, y)).mean() + beta * (kl(adv, clean) * unsure).mean()


def runner_up(logits: Logits, y: Labels) -> PerSample:
    """-log(1 - p_k) for the likeliest wrong class k, as logsumexp_j z_j - logsumexp_{j != k} z_j."""
    k = without(logits, y).argmax(1)
    return -without(logits.log_softmax(1), k).logsumexp(1)
