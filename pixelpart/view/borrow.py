"""A model borrowed by an attack: eval mode, no weight gradients, and no trace left on it."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.func import functional_call


@contextmanager
def borrowed(model: Any) -> Iterator[Any]:
    """The model in eval mode without weight gradients; modes and flags are restored, also after an exception."""
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


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers; a shared tensor is listed under each of its names."""
    return dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers(remove_duplicate=False))


class LinearWeights(NamedTuple):
    """The weights of a linear layer after global average pooling."""

    weight: Tensor
    bias: Tensor | None


class FilledModule(NamedTuple):
    """Features or head of a classifier: a module, and the tensors to call it with."""

    structure: nn.Module
    weights: dict[str, Tensor]

    def __call__(self, x: Tensor) -> Tensor:
        return functional_call(self.structure, self.weights, (x,)) if self.weights else self.structure(x)

    def bound(self) -> "FilledModule":
        """The same with the weights stored in a copy of the module, which is faster to call."""
        structure = copy.deepcopy(self.structure)
        structure.load_state_dict(self.weights, strict=False, assign=True)
        return FilledModule(structure.requires_grad_(False), {})


@dataclass(frozen=True)
class FrozenView:
    """A classifier as an attack sees it: features, head and logits; its tensors have no gradient history.

    Attacks do not check their inputs if the model is a view: whoever made it has, and the training step must not wait
    for the device.
    """

    features: FilledModule
    head: FilledModule
    pooled_linear: LinearWeights | None

    def __call__(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))
