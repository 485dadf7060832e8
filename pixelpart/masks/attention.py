"""Maps of a transformer: from which patches the attention of all its blocks, one after another, gathers the answer.

Such a model gives `attentions(x)`: the weights of each block's attention (b, heads, t, t), first block first, and the
logits; and `class_token`: whether the logits are read off the first token, else off the mean over the patches' tokens.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from pixelpart import masks
from pixelpart.errors import UserError, choose
from pixelpart.types import Images, Labels, Map
from pixelpart.view.borrow import borrowed

Mixing = Float[Tensor, "b t t"]  # how much of each token (column) is in each token (row)


def rollout(model: Any, x: Images, target: Labels | None) -> Mixing:
    """A_L ... A_1 with A = (mean of the heads + I) / 2 (Abnar and Zuidema 2020); the same for every class."""
    with torch.no_grad():
        weights, _ = model.attentions(x)
        identity = torch.eye(weights[0].shape[-1], dtype=weights[0].dtype, device=x.device)
        mixed = identity.expand_as(weights[0][:, 0])
        for layer in weights:
            mixed = (layer.mean(1) + identity) / 2 @ mixed
    return mixed


def gradient_rollout(model: Any, x: Images, target: Labels | None) -> Mixing:
    """(I + A_L) ... (I + A_1) - I with A = mean over heads of relu(G W), W the attention's weights and G the gradient
    of the class score with respect to them (Chefer et al. 2021, "Generic attention-model explainability").
    """
    with torch.enable_grad():
        # Weights of the network carry no gradient here, so the graph begins at the pixels; it is not followed so far.
        weights, logits = model.attentions(x.detach().requires_grad_())
        target = logits.argmax(1) if target is None else target
        grads = torch.autograd.grad(logits.gather(1, target[:, None]).sum(), weights)
    return _accumulated([F.relu(g * w.detach()).mean(1) for g, w in zip(grads, weights, strict=True)])


def _accumulated(layers: Sequence[Tensor]) -> Tensor:
    """(I + A_L) ... (I + A_1) - I. Without the identity, beside which the small entries would be rounded off."""
    mixed = torch.zeros_like(layers[0])
    for layer in layers:
        mixed = mixed + layer + layer @ mixed
    return mixed


def attention_map(model: Any, x: Images, target: Labels | None = None, *, method: str) -> Map:
    """The map (b, u, v) at the size of the grid of patches, detached; the model is as before."""
    function = choose(masks.ROLLOUTS, method, "cam")
    with borrowed(model) as fixed:
        if not hasattr(fixed, "attentions"):
            suited = ", ".join(sorted(masks.CAMS))
            raise UserError(
                f"cam {method!r} needs a transformer, and {type(model).__name__} is none; choose from {suited}"
            )
        mixed = function(fixed, x, target)
        side = math.isqrt(mixed.shape[-1])  # tokens that are no patches stand before them
        patches = mixed[:, :, -side * side :]
        seen = patches[:, 0] if fixed.class_token else patches[:, -side * side :].mean(1)
        return seen.unflatten(1, (side, side))
