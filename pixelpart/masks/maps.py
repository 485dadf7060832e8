"""Maps of a network: which positions of an image raise the score of a class.

A class activation map is a formula over an activation A (b, f, u, v) and the gradient G of the class score with respect
to it; tokens (b, t, f) are arranged on their grid of patches.

An attention map is how much each patch of a transformer contributes to the output through all blocks. The transformer
has `attentions(x)`, which returns the attention weights of each block (b, heads, t, t), first block first, and the
logits; and `class_token`, whether the logits come from the first token or from the mean of the patch tokens.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from pixelpart.errors import UserError, choose
from pixelpart.types import Activations, Heatmap, Images, Labels, Map, dtype_name
from pixelpart.view.borrow import borrowed

Tokens = Float[Tensor, "b t f"]
Mixing = Float[Tensor, "b t t"]  # weight of each token (column) in each token (row)


def gradcam(acts: Activations, grads: Activations) -> Map:
    """relu(sum_k w_k A_k), w_k the mean of G_k over positions (Selvaraju et al. 2017)."""
    weights = grads.mean((2, 3), keepdim=True)
    return F.relu((weights * acts).sum(1))


def xgradcam(acts: Activations, grads: Activations) -> Map:
    """relu(sum_k w_k A_k), w_k = sum(G_k A_k) / sum(A_k) over positions (Fu et al. 2020); 0/0 counts as 0."""
    total = acts.sum((2, 3), keepdim=True)
    weights = (grads * acts).sum((2, 3), keepdim=True) / torch.where(total == 0, 1, total)
    return F.relu((weights * acts).sum(1))


def layercam(acts: Activations, grads: Activations) -> Map:
    """relu(sum_k relu(G_k) A_k) at each position (Jiang et al. 2021)."""
    return F.relu((F.relu(grads) * acts).sum(1))


CAMS: dict[str, Callable[[Activations, Activations], Map]] = {
    "gradcam": gradcam,
    "layercam": layercam,
    "xgradcam": xgradcam,
}


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


ROLLOUTS: dict[str, Callable[[Any, Images, Labels | None], Mixing]] = {
    "gradient-rollout": gradient_rollout,
    "rollout": rollout,
}
MAPS: dict[str, Callable[..., Tensor]] = {**CAMS, **ROLLOUTS}


def pooled_cam(acts: Activations, weight: Float[Tensor, "k f"], target: Labels, *, method: str = "gradcam") -> Map:
    """The map at `features` without a backward pass, exact if average pooling and a linear layer of this weight follow.

    Then dscore/dA_k = weight[target, k] / (u v) at every position.
    """
    with torch.no_grad():
        grads = (weight[target] / acts[0, 0].numel())[:, :, None, None].expand_as(acts)
        return choose(CAMS, method, "cam")(acts, grads)


def features_cam(model: Any, acts: Activations | Tokens, target: Labels, *, method: str = "gradcam") -> Map:
    """The map at `features`, given its output.

    By `pooled_cam` if the head is average pooling and a linear layer, as in resnet18, wrn, tiny-cnn; else by autograd.
    """
    linear = getattr(model, "pooled_linear", None)
    if linear is not None:
        return pooled_cam(acts, linear.weight, target, method=method)
    with borrowed(model) as fixed, torch.enable_grad():
        leaf = _leaf(acts, "features")
        logits = fixed.head(leaf.clone())  # the head may work in place, which a leaf forbids
        return _explain(logits, leaf, target, method)


def attention_map(model: Any, x: Images, target: Labels | None = None, *, method: str) -> Map:
    """The map (b, u, v) on the grid of patches, detached; the model is left unchanged."""
    function = choose(ROLLOUTS, method, "cam")
    with borrowed(model) as fixed:
        if not hasattr(fixed, "attentions"):
            raise UserError(
                f"cam {method!r} needs a transformer with `attentions`; for {type(model).__name__} choose from "
                f"{', '.join(sorted(CAMS))}"
            )
        mixed = function(fixed, x, target)
        side = math.isqrt(mixed.shape[-1])  # tokens that are not patches come first
        patches = mixed[:, :, -side * side :]
        output = patches[:, 0] if fixed.class_token else patches[:, -side * side :].mean(1)
        return output.unflatten(1, (side, side))


def cam(
    model: Any, x: Images, target: Labels | None = None, *, method: str = "gradcam", layer: str = "features"
) -> Map:
    """The raw map (b, u, v) of class target[i] in image i (default: the predicted class), detached.

    layer: "features", or the name of a submodule whose output is an activation. The model is left unchanged.
    """
    choose(MAPS, method, "cam")
    if method in ROLLOUTS:
        if layer != "features":
            raise UserError(f"cam {method!r} reads all blocks; layer {layer!r} does not apply to it")
        return attention_map(model, x, target, method=method)
    with borrowed(model) as fixed:
        if layer != "features":
            with torch.enable_grad():
                leaf, logits = _run_with_leaf(fixed, x, layer)
                return _explain(logits, leaf, logits.argmax(1) if target is None else target, method)
        if not (hasattr(fixed, "features") and hasattr(fixed, "head")):
            raise UserError(f"{type(model).__name__} has no features and head; pixelpart.models.wrap(model) adds them")
        if reason := getattr(fixed, "no_maps", None):
            raise UserError(reason)
        with torch.no_grad():
            acts = fixed.features(x)
            target = fixed.head(acts).argmax(1) if target is None else target
        return features_cam(fixed, acts, target, method=method)


def heatmap(
    model: Any, x: Images, *, method: str = "gradcam", target: Labels | None = None, layer: str = "features"
) -> Heatmap:
    """The map of `cam` at image size, min-max scaled to [0,1] per image; a constant map becomes zero."""
    if x.ndim != 4 or not x.is_floating_point() or not bool(((x >= 0) & (x <= 1)).all()):
        values = f"in [{float(x.min()):g}, {float(x.max()):g}]"
        raise UserError(
            f"images are {dtype_name(x)} {tuple(x.shape)} {values}; they must be float (b, c, h, w) in [0, 1]"
        )
    h, w = x.shape[-2:]
    return upscale(cam(model, x, target, method=method, layer=layer), (h, w))


def upscale(cam: Map, size: tuple[int, int]) -> Heatmap:
    """(cam - min) / (max - min) per image, bicubic to size, clipped to [0,1]; a constant map becomes zeros."""
    low, high = cam.amin((1, 2), keepdim=True), cam.amax((1, 2), keepdim=True)
    scaled = torch.where(high > low, (cam - low) / (high - low), 0)
    # With antialias, PyTorch's bicubic kernel is that of PIL; it overshoots [0,1].
    return F.interpolate(scaled[:, None], size, mode="bicubic", antialias=True)[:, 0].clamp(0, 1)


def _explain(logits: Tensor, leaf: Tensor, target: Tensor, method: str) -> Tensor:
    """The map of the target's score; in eval mode images do not interact, so the scores can be summed."""
    score = logits.gather(1, target[:, None]).sum()
    (grads,) = torch.autograd.grad(score, leaf)
    grads = grads.to(logits.dtype)  # the type of the head: a bf16 map would make bf16 budgets
    return choose(CAMS, method, "cam")(on_grid(leaf.detach()), on_grid(grads))


def on_grid(acts: Activations | Tokens) -> Activations:
    """Tokens (b, t, f) as (b, f, u, u): the last u*u of them, with u as large as possible; class tokens come first."""
    if acts.ndim == 4:
        return acts
    side = math.isqrt(acts.shape[1])
    return acts[:, -side * side :].transpose(1, 2).unflatten(2, (side, side))


def _leaf(acts: Any, layer: str) -> Tensor:
    if not isinstance(acts, Tensor) or acts.ndim not in (3, 4):
        shape = tuple(getattr(acts, "shape", ())) or type(acts).__name__
        raise UserError(f"layer {layer!r} gives {shape}; a map needs (batch, channels, height, width) or tokens "
                        "(batch, tokens, channels)")  # fmt: skip
    return acts.detach().requires_grad_()


def _run_with_leaf(model: Any, x: Tensor, layer: str) -> tuple[Tensor, Tensor]:
    """The output of a layer, as a leaf of the autograd graph, and the logits computed from it."""
    modules = dict(model.named_modules()) if isinstance(model, nn.Module) else {}
    if not layer or layer not in modules:
        top = ", ".join(sorted({name.partition(".")[0] for name in modules if name} | {"features"}))
        raise UserError(f"unknown layer {layer!r}; choose from {top}, or a module inside them")
    leaves: list[Tensor] = []

    def cut(_module: nn.Module, _inputs: Any, output: Tensor) -> Tensor:
        leaves.append(_leaf(output, layer))
        return leaves[-1].clone()

    handle = modules[layer].register_forward_hook(cut)
    try:
        logits = model(x)
    finally:
        handle.remove()
    if len(leaves) != 1:
        raise UserError(f"layer {layer!r} runs {len(leaves)} times in a forward pass; choose a layer that runs once")
    return leaves[0], logits
