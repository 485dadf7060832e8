"""Batch norm folded into the convolutions of a traced network.

In eval mode batch norm is scale x + shift per channel: scale = gamma / sqrt(var + eps), shift = beta - scale mean.
After a convolution it becomes part of it: weight * scale and (bias - mean) * scale + beta. Elsewhere (after the
residual sum of a pre-activation network) it stays, as that affine map.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn


class Folds(NamedTuple):
    """What became of each batch norm."""

    convolutions: list[tuple[str, str, float]]  # convolution, the batch norm after it, its eps
    affines: list[tuple[str, float]]  # batch norm that became an affine map, its eps


def module_calls(network: fx.GraphModule) -> list[tuple[Any, nn.Module]]:
    """The nodes that call a module, with the module. (Typed Any: fx's types of a node are too wide to be of use.)"""
    modules = dict(network.named_modules())
    return [(node, modules[node.target]) for node in network.graph.nodes if node.op == "call_module"]


def fold_batch_norm(network: fx.GraphModule) -> Folds:
    """Removes batch norm from the graph; `folded_weights` computes the tensors that the graph needs then."""
    folds = Folds([], [])
    calls = module_calls(network)
    modules = dict(calls)
    uses = [node.target for node, _ in calls]
    # Modules whose tensors the forward pass also reads by name stay as they are.
    read = {str(node.target).rpartition(".")[0] for node in network.graph.nodes if node.op == "get_attr"}
    for node, norm in calls:
        if not isinstance(norm, nn.BatchNorm2d) or norm.running_var is None or node.target in read:
            continue
        source = node.args[0] if node.args else node.kwargs["input"]
        conv = modules.get(source)
        used_once = len(source.users) == 1 and uses.count(source.target) == 1 and uses.count(node.target) == 1
        if isinstance(conv, nn.Conv2d) and used_once and source.target not in read:
            if conv.bias is None:
                conv.bias = nn.Parameter(torch.empty(conv.out_channels, device="meta"))
            node.replace_all_uses_with(source)
            network.graph.erase_node(node)
            folds.convolutions.append((source.target, node.target, norm.eps))
        else:
            network.set_submodule(node.target, _Affine(norm.num_features))
            folds.affines.append((node.target, norm.eps))
    return folds


def folded_weights(folds: Folds, live: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of the folded convolutions and affine maps, from the tensors of the model."""
    made: dict[str, Tensor] = {}
    for conv, norm, eps in folds.convolutions:
        scale, shift = _scale_and_shift(live, norm, eps)
        made[f"{conv}.weight"] = live[f"{conv}.weight"] * scale[:, None, None, None]
        bias = live.get(f"{conv}.bias")
        made[f"{conv}.bias"] = shift if bias is None else bias * scale + shift
    for norm, eps in folds.affines:
        made[f"{norm}.scale"], made[f"{norm}.shift"] = _scale_and_shift(live, norm, eps)
    return made


def _scale_and_shift(live: dict[str, Tensor], norm: str, eps: float) -> tuple[Tensor, Tensor]:
    mean, var = live[f"{norm}.running_mean"], live[f"{norm}.running_var"]
    gamma = live.get(f"{norm}.weight", torch.ones_like(var))
    scale = gamma * torch.rsqrt(var + eps)
    return scale, live.get(f"{norm}.bias", torch.zeros_like(mean)) - scale * mean


class _Affine(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.empty(channels, device="meta"))
        self.shift = nn.Parameter(torch.empty(channels, device="meta"))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addcmul(self.shift[:, None, None], x, self.scale[:, None, None]).to(x.dtype)
