"""Class activation maps: which positions of an image raise the score of a class.

Each method is a formula over an activation A (b, f, u, v) and the gradient G of the class score with respect to it.
Tokens (b, t, f) are arranged on their grid of patches.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from pixelpart import masks
from pixelpart.errors import UserError, choose
from pixelpart.masks.attention import attention_map
from pixelpart.masks.sources import SourceInputs
from pixelpart.types import Activations, Heatmap, Images, Labels, Map
from pixelpart.view.borrow import borrowed

Tokens = Float[Tensor, "b t f"]


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


def pooled_cam(acts: Activations, weight: Float[Tensor, "k f"], target: Labels, *, method: str = "gradcam") -> Map:
    """The map at `features` without a backward pass, exact if average pooling and a linear layer of this weight follow.

    Then dscore/dA_k = weight[target, k] / (u v) at every position.
    """
    with torch.no_grad():
        grads = (weight[target] / acts[0, 0].numel())[:, :, None, None].expand_as(acts)
        return choose(masks.CAMS, method, "cam")(acts, grads)


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


def cam(
    model: Any, x: Images, target: Labels | None = None, *, method: str = "gradcam", layer: str = "features"
) -> Map:
    """The raw map (b, u, v) of class target[i] in image i (default: the predicted class), detached.

    layer: "features", or the name of a submodule whose output is an activation. The model is left unchanged.
    """
    choose(masks.MAPS, method, "cam")
    if method in masks.ROLLOUTS:
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


def model_map(inputs: SourceInputs, *, method: str) -> Map:
    """The raw class activation map or attention map.

    At the layer "features" a class activation map reads the clean pass; other layers and attention maps take a pass of
    their own through `model`.
    """
    if inputs.layer == "features" and method in masks.CAMS and inputs.acts is not None:
        assert inputs.target is not None
        return features_cam(inputs.view, inputs.acts, inputs.target, method=method)
    return cam(inputs.model, inputs.x, inputs.target, method=method, layer=inputs.layer)


def heatmap(
    model: Any, x: Images, *, method: str = "gradcam", target: Labels | None = None, layer: str = "features"
) -> Heatmap:
    """The map of `cam` at image size, min-max scaled to [0,1] per image; a constant map becomes zero."""
    if x.ndim != 4 or not x.is_floating_point() or not bool(((x >= 0) & (x <= 1)).all()):
        dtype, values = str(x.dtype).removeprefix("torch."), f"in [{float(x.min()):g}, {float(x.max()):g}]"
        raise UserError(f"images are {dtype} {tuple(x.shape)} {values}; they must be float (b, c, h, w) in [0, 1]")
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
    return choose(masks.CAMS, method, "cam")(on_grid(leaf.detach()), on_grid(grads))


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
