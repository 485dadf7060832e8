"""Adversarial training (Madry et al. 2018)."""

from jaxtyping import Float
from torch import Tensor

from pixelpart.losses import ce
from pixelpart.types import Images, Model, Targets


def at(model: Model, x: Images, x_adv: Images, y: Targets) -> Float[Tensor, ""]:
    """Mean cross-entropy on the adversarial images: mean[-log p_y(x_adv)]; x is not used."""
    return ce(model(x_adv), y).mean()
