"""A model lent to an attack: eval mode and no weight gradients inside, everything as before on leaving."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.func import functional_call


@contextmanager
def borrowed(model: Any) -> Iterator[Any]:
    """The model in eval mode without weight gradients; modes and flags are put back, also after an exception."""
    if isinstance(model, FrozenView) or not isinstance(model, nn.Module):
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


class PooledLinear(NamedTuple):
    """The weights of a linear layer behind global average pooling."""

    weight: Tensor
    bias: Tensor | None


class Stage(NamedTuple):
    """One half of a classifier: a structure, and the tensors that fill it."""

    structure: nn.Module
    weights: dict[str, Tensor]

    def __call__(self, x: Tensor) -> Tensor:
        return functional_call(self.structure, self.weights, (x,)) if self.weights else self.structure(x)

    def bound(self) -> "Stage":
        """The same with its weights in the structure itself: a call need not put them there, and they stay as now."""
        structure = copy.deepcopy(self.structure)
        structure.load_state_dict(self.weights, strict=False, assign=True)
        return Stage(structure.requires_grad_(False), {})


@dataclass(frozen=True)
class FrozenView:
    """A view of a classifier for the attack: features, head and logits; its tensors carry no gradient history."""

    features: Stage
    head: Stage
    pooled_linear: PooledLinear | None

    def __call__(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))
