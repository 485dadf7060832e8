"""Views of a classifier: the network that an attack differentiates, and the training pass, in fp32 or bf16.

`Folding(model)` traces a classifier once; each call then returns a `FrozenView` of its current weights. A call consists
of tensor operations only, so it can be part of a compiled or captured training step. `TrainingView(model)` does the
same for the training pass: live weights, train mode.
"""

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn

from pixelpart.view.borrow import FilledModule, FrozenView, LinearWeights, tensors_of
from pixelpart.view.capture import compiled
from pixelpart.view.narrow import narrow, widen
from pixelpart.view.trace import Untraceable, module_calls, trace


class Traced:
    """One method of a classifier as a graph, and how to fill it with the classifier's weights."""

    def __init__(
        self,
        skeleton: nn.Module,
        method: str,
        *,
        fold: bool,
        dtype: torch.dtype | None = None,
        from_bf16: bool = False,
        fuse: bool = False,
        own_kernels: bool = False,
    ) -> None:
        self.structure = trace(copy.deepcopy(skeleton), method)  # a copy: folding changes its modules
        self._folds = fold_batch_norm(self.structure) if fold else Folds([], [])
        self._narrowed = narrow(self.structure, dtype) if dtype is not None else {}
        if from_bf16:
            widen(self.structure)
        if fuse or own_kernels:
            # late: `import pixelpart.attacks` loads no kernels
            from pixelpart.view.fuse import fuse_relus, own_convolutions

            if fuse:
                fuse_relus(self.structure)
            if own_kernels:
                own_convolutions(self.structure)
        self.structure.graph.lint()
        self.structure.delete_all_unused_submodules()
        self.structure.recompile()
        self._names = list(tensors_of(self.structure))

    def fill(self, live: dict[str, Tensor]) -> dict[str, Tensor]:
        """The tensors of the graph, from the tensors of the model."""
        made = folded_weights(self._folds, live)
        full = {name: made[name] if name in made else live[name] for name in self._names}
        return {name: tensor.to(self._narrowed.get(name, tensor.dtype)) for name, tensor in full.items()}


class Untraced:
    """One method of a classifier, called as it is on a copy without weights."""

    def __init__(self, skeleton: nn.Module, method: str) -> None:
        self.structure = _Method(skeleton, method)
        # without duplicates: a module with two names is filled once
        self._names = [name for name, _ in (*skeleton.named_parameters(), *skeleton.named_buffers())]

    def fill(self, live: dict[str, Tensor]) -> dict[str, Tensor]:
        return {f"model.{name}": live[name] for name in self._names}


class _Method(nn.Module):
    def __init__(self, model: nn.Module, method: str) -> None:
        super().__init__()
        self.model, self.method = model, method

    def forward(self, x: Tensor) -> Tensor:
        return getattr(self.model, self.method)(x)


class Folding:
    """Calling it returns the `FrozenView` of the model at its current weights.

    `folded` says whether torch.fx could trace the model, so that batch norm is folded. A model whose forward pass
    branches on its input, or one with hooks, is used as it is, in eval mode and its own precision: same numbers, but
    slower. With `fuse`, convolution and ReLU are one operation of pixelpart.kernels: fewer passes over memory, and
    gradients with respect to images only.
    """

    def __init__(self, model: nn.Module, *, dtype: torch.dtype | None = None, fuse: bool = False) -> None:
        self.model = model
        skeleton = copy.deepcopy(model).eval().to("meta")
        self._features: Traced | Untraced
        self._head: Traced | Untraced
        try:
            self._features = Traced(skeleton, "features", fold=True, dtype=dtype, fuse=fuse)
            self._head = Traced(skeleton, "head", fold=True, from_bf16=dtype is not None)
        except Untraceable:
            self._features, self._head = Untraced(skeleton, "features"), Untraced(skeleton, "head")
        self.folded = isinstance(self._features, Traced)
        self._fill: Callable[..., Any] = self._fill_both

    @torch.no_grad()
    def __call__(self, other: nn.Module | None = None) -> FrozenView:
        """The view of this model, or of another one with the same structure."""
        model = other or self.model
        features, head = self._fill({name: tensor.detach() for name, tensor in tensors_of(model).items()})
        linear = getattr(model, "pooled_linear", None)
        if linear is not None:
            linear = LinearWeights(linear.weight.detach(), None if linear.bias is None else linear.bias.detach())
        return FrozenView(
            FilledModule(self._features.structure, features), FilledModule(self._head.structure, head), linear
        )

    def _fill_both(self, live: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        return self._features.fill(live), self._head.fill(live)

    def compile(self) -> None:
        """Compiles the folding, so that it runs a few kernels in total instead of a few per layer."""

        def fill(live: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
            return self._fill_both(live)

        self._fill = compiled(fill)

    def interpret(self) -> None:
        """Undoes `compile`."""
        self._fill = self._fill_both


class TrainingView:
    """The logits of a classifier in train mode, computed in bf16 after the first convolution from its fp32 weights.

    Gradients reach the model's own parameters, and batch norm updates the model's own statistics. Raises Untraceable if
    torch.fx cannot trace the model. With `own_kernels`, convolutions are operations of pixelpart.kernels.
    """

    def __init__(self, model: nn.Module, *, dtype: torch.dtype, own_kernels: bool = False) -> None:
        self.model = model
        skeleton = copy.deepcopy(model).train().to("meta")
        self._features = Traced(skeleton, "features", fold=False, dtype=dtype, own_kernels=own_kernels)
        self._head = Traced(skeleton, "head", fold=False, from_bf16=True)

    def __call__(self, x: Tensor) -> Tensor:
        live = tensors_of(self.model)
        for part in (self._features, self._head):
            x = FilledModule(part.structure, part.fill(live))(x)
        return x


# -- batch norm folded into the convolutions of a traced network
#
# In eval mode batch norm is scale x + shift per channel: scale = gamma / sqrt(var + eps), shift = beta - scale mean.
# After a convolution it becomes part of it: weight * scale and (bias - mean) * scale + beta. Elsewhere (after the
# residual sum of a pre-activation network) it stays, as that affine map.


class Folds(NamedTuple):
    """What became of each batch norm."""

    convolutions: list[tuple[str, str, float]]  # convolution, the batch norm after it, its eps
    affines: list[tuple[str, float]]  # batch norm that became an affine map, its eps


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
