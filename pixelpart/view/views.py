"""Views of a classifier: the network that an attack differentiates, and the training pass, in fp32 or bf16.

`Folding(model)` traces a classifier once; each call then returns a `FrozenView` of its current weights. A call consists
of tensor operations only, so it can be part of a compiled or captured training step. `TrainingView(model)` does the
same for the training pass: live weights, train mode.
"""

import copy
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn

from pixelpart.view.borrow import FilledModule, FrozenView, LinearWeights
from pixelpart.view.capture import compiled
from pixelpart.view.fold import Folds, fold_batch_norm, folded_weights
from pixelpart.view.narrow import narrow, widen
from pixelpart.view.trace import Untraceable, tensors_of, trace


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


def search_view(model: Any, *, dtype: torch.dtype | None = None, fuse: bool = False) -> FrozenView | None:
    """The folded view of any module on images, at its current weights; None if torch.fx cannot trace it.

    With a dtype, everything but the first convolution and the last linear layer is computed in it.
    """
    if not isinstance(model, nn.Module):
        return None
    split = hasattr(model, "features") and hasattr(model, "head") and hasattr(model, "pooled_linear")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of torch, when it copies a module made by torch.export
            folding = Folding(model if split else _Unsplit(model), dtype=dtype, fuse=fuse)
    except Exception:  # a module that cannot be copied: it may hold a lock, or a tensor with gradient history
        return None
    if not folding.folded:
        return None
    view = folding()
    features = view.features.bound()
    assert isinstance(features.structure, fx.GraphModule)
    # The stem's output is channels last, and the convolutions after it are fastest if their weights are too.
    if fuse and any(node.target is torch.ops.pixelpart.stem.default for node in features.structure.graph.nodes):
        for module in features.structure.modules():
            if isinstance(module, nn.Conv2d):
                module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return FrozenView(features, view.head.bound(), view.pooled_linear)


class _Unsplit(nn.Module):
    """A module without features and head, as a classifier whose features are its logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def features(self, x: Tensor) -> Tensor:
        return self.model(x)

    def head(self, logits: Tensor) -> Tensor:
        return logits


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
