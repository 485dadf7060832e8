"""Attention maps of a transformer: how much each patch contributes to the output through all blocks.

The model has `attentions(x)`, which returns the attention weights of each block (b, heads, t, t), first block first,
and the logits; and `class_token`, whether the logits come from the first token or from the mean of the patch tokens.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from pixelpart import masks
from pixelpart.errors import UserError, choose
from pixelpart.types import Images, Labels, Map
from pixelpart.view.borrow import borrowed

Mixing = Float[Tensor, "b t t"]  # share of each token (column) in each token (row)


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
        # The parameters require no gradient here, so the graph must start at the pixels; gradients stop at the weights.
        weights, logits = model.attentions(x.detach().requires_grad_())
        target = logits.argmax(1) if target is None else target
        grads = torch.autograd.grad(logits.gather(1, target[:, None]).sum(), weights)
    mixed = torch.zeros_like(weights[0][:, 0])
    for grad, weight in zip(grads, weights, strict=True):
        layer = F.relu(grad * weight.detach()).mean(1)
        mixed = mixed + layer + layer @ mixed  # I is never added: next to it small entries would be rounded off
    return mixed


def attention_map(model: Any, x: Images, target: Labels | None = None, *, method: str) -> Map:
    """The map (b, u, v) on the grid of patches, detached; the model is left unchanged."""
    function = choose(masks.ROLLOUTS, method, "cam")
    with borrowed(model) as fixed:
        if not hasattr(fixed, "attentions"):
            raise UserError(
                f"cam {method!r} needs a transformer with `attentions`; for {type(model).__name__} choose from "
                f"{', '.join(sorted(masks.CAMS))}"
            )
        mixed = function(fixed, x, target)
        side = math.isqrt(mixed.shape[-1])  # tokens that are not patches come first
        patches = mixed[:, :, -side * side :]
        output = patches[:, 0] if fixed.class_token else patches[:, -side * side :].mean(1)
        return output.unflatten(1, (side, side))
