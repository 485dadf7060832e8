"""A model as the attack sees it: eval mode, batch norm folded into the convolutions, no weight gradients.

`frozen(model)` lends a caller's own model in eval mode and puts everything back. `Folding(model)` reads the structure
of a classifier once; each call of it then gives a `Frozen` view of the weights as they are now, made of tensor
operations alone, so that it can sit inside a compiled or captured training step.
"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.func import functional_call


@contextmanager
def frozen(model: Any) -> Iterator[Any]:
    """The model in eval mode without weight gradients; modes and flags are put back, also after an exception."""
    if isinstance(model, Frozen) or not isinstance(model, nn.Module):
        yield model
        return
    modes = [(module, module.training) for module in model.modules()]
    flags = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    try:
        for module, _ in modes:
            module.training = False
        for parameter, _ in flags:
            parameter.requires_grad_(False)
        yield model
    finally:
        for module, training in modes:
            module.training = training
        for parameter, requires_grad in flags:
            parameter.requires_grad_(requires_grad)


class Linear(NamedTuple):
    """The weights of a linear layer behind global average pooling."""

    weight: Tensor
    bias: Tensor | None


class Frozen(nn.Module):
    """A view of a classifier for the attack: features, head and logits; its tensors carry no gradient history."""

    def __init__(self, features: "Part", head: "Part", linear: Linear | None) -> None:
        super().__init__()
        self._features, self._head = features, head
        self.pooled_linear = linear

    def features(self, x: Tensor) -> Tensor:
        return self._features(x)

    def head(self, acts: Tensor) -> Tensor:
        return self._head(acts)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))


class Part(NamedTuple):
    """One half of a classifier: a structure, and the tensors that fill it."""

    structure: nn.Module
    weights: dict[str, Tensor]

    def __call__(self, x: Tensor) -> Tensor:
        return functional_call(self.structure, self.weights, (x,))


class Folding:
    """Calling it gives the model's `Frozen` view at its present weights.

    `folded` says whether the structure could be read (by torch.fx) and batch norm folded; a model whose forward pass
    branches on its input is used as it is, in eval mode: the same numbers, only slower.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        skeleton = copy.deepcopy(model).eval().to("meta")
        self._features: _Traced | _Called
        self._head: _Traced | _Called
        try:
            self._features, self._head = _Traced(skeleton, "features"), _Traced(skeleton, "head")
        except (fx.proxy.TraceError, TypeError, ValueError, NotImplementedError):
            self._features, self._head = _Called(skeleton, "features"), _Called(skeleton, "head")
        self.folded = isinstance(self._features, _Traced)

    @torch.no_grad()
    def __call__(self) -> Frozen:
        live = {name: tensor.detach() for name, tensor in self.model.named_parameters()} | dict(
            self.model.named_buffers()
        )
        linear = getattr(self.model, "pooled_linear", None)
        return Frozen(
            self._features.fill(live),
            self._head.fill(live),
            None
            if linear is None
            else Linear(linear.weight.detach(), None if linear.bias is None else linear.bias.detach()),
        )


def freeze(model: nn.Module) -> Frozen:
    """A `Frozen` view of a classifier at its present weights."""
    return Folding(model)()


class _Called:
    """One method of a classifier, run as it is on a copy without weights."""

    def __init__(self, skeleton: nn.Module, method: str) -> None:
        self.structure = _Method(skeleton, method)

    def fill(self, live: dict[str, Tensor]) -> Part:
        return Part(self.structure, {f"model.{name}": tensor for name, tensor in live.items()})


class _Method(nn.Module):
    def __init__(self, model: nn.Module, method: str) -> None:
        super().__init__()
        self.model, self.method = model, method

    def forward(self, x: Tensor) -> Tensor:
        return getattr(self.model, self.method)(x)


class _Traced:
    """One method of a classifier as a graph in which no batch norm is left.

    In eval mode batch norm is scale x + shift per channel: scale = gamma / sqrt(var + eps), shift = beta - scale mean.
    Behind a convolution it becomes part of it: weight * scale and (bias - mean) * scale + beta. Where it reads
    something else (the residual sum of a pre-activation net) it stays, as that affine map.
    """

    def __init__(self, skeleton: nn.Module, method: str) -> None:
        tracer = fx.Tracer()
        tracer.traced_func_name = method
        self.structure = fx.GraphModule(skeleton, tracer.trace(skeleton))
        self.folds: list[tuple[str, str, float]] = []  # convolution, batch norm behind it, its eps
        self.affines: list[tuple[str, float]] = []  # batch norm that stays, its eps
        self._fold()

    def _fold(self) -> None:
        graph, modules = self.structure.graph, dict(self.structure.named_modules())
        calls = [node for node in graph.nodes if node.op == "call_module"]
        uses = [node.target for node in calls]
        for node in calls:
            norm = modules[node.target]
            if not isinstance(norm, nn.BatchNorm2d) or norm.running_var is None:
                continue
            source = node.args[0]
            conv = modules.get(source.target) if source.op == "call_module" else None
            alone = len(source.users) == 1 and uses.count(source.target) == 1 and uses.count(node.target) == 1
            if isinstance(conv, nn.Conv2d) and alone:
                if conv.bias is None:
                    conv.bias = nn.Parameter(torch.empty(conv.out_channels, device="meta"))
                node.replace_all_uses_with(source)
                graph.erase_node(node)
                self.folds.append((source.target, node.target, norm.eps))
            else:
                self.structure.set_submodule(node.target, _Affine(norm.num_features))
                self.affines.append((node.target, norm.eps))
        self.structure.delete_all_unused_submodules()
        self.structure.recompile()
        self.names = [name for name, _ in (*self.structure.named_parameters(), *self.structure.named_buffers())]

    def fill(self, live: dict[str, Tensor]) -> Part:
        made: dict[str, Tensor] = {}
        for conv, norm, eps in self.folds:
            scale, shift = _scale_and_shift(live, norm, eps)
            made[f"{conv}.weight"] = live[f"{conv}.weight"] * scale[:, None, None, None]
            bias = live.get(f"{conv}.bias")
            made[f"{conv}.bias"] = shift if bias is None else bias * scale + shift
        for norm, eps in self.affines:
            made[f"{norm}.scale"], made[f"{norm}.shift"] = _scale_and_shift(live, norm, eps)
        return Part(self.structure, {name: made[name] if name in made else live[name] for name in self.names})


class _Affine(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.empty(channels, device="meta"))
        self.shift = nn.Parameter(torch.empty(channels, device="meta"))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addcmul(self.shift[:, None, None], x, self.scale[:, None, None])


def _scale_and_shift(live: dict[str, Tensor], norm: str, eps: float) -> tuple[Tensor, Tensor]:
    mean, var = live[f"{norm}.running_mean"], live[f"{norm}.running_var"]
    gamma = live.get(f"{norm}.weight", torch.ones_like(var))
    scale = gamma * torch.rsqrt(var + eps)
    return scale, live.get(f"{norm}.bias", torch.zeros_like(mean)) - scale * mean
