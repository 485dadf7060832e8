"""TRADES (Zhang et al. 2019)."""

from jaxtyping import Float
from torch import Tensor

from pixelpart.losses import ce, kl
from pixelpart.types import Images, Model, Targets


def trades(model: Model, x: Images, x_adv: Images, y: Targets, *, beta: float = 6.0) -> Float[Tensor, ""]:
    """mean[-log p_y(x)] + beta mean[KL(p(x) || p(x_adv))]; gradient flows through both predictions."""
    # two forwards, clean first: one joint batch would mix their batch-norm statistics
    clean = model(x)
    adv = model(x_adv)
    return ce(clean, y).mean() + beta * kl(adv, clean).mean()
