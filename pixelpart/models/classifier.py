"""The base class of all models: features, then a head, with normalisation inside."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from pixelpart.errors import UserError


class Classifier(nn.Module, ABC):
    """Pixels in [0,1] to logits: `model(x) == model.head(model.features(x))`.

    A subclass has `trunk` (from normalised pixels to the last activation before pooling, after its ReLU) and either
    `pooled_linear` (then the head is global average pooling and that layer) or its own `head`. `other_names` maps
    prefixes of weight names in other code to ours; None: such weights are not used.
    """

    other_names: ClassVar[dict[str, str | None]] = {}
    no_maps: str | None = None  # why `features` is not an activation to read maps from
    mean: Tensor
    std: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.set_scaling((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))

    def set_scaling(self, mean: Sequence[float], std: Sequence[float]) -> None:
        """Sets the mean and deviation per channel by which `features` normalises its pixels."""
        if len(mean) != len(std) or not all(map(math.isfinite, (*mean, *std))) or min(std) <= 0:
            raise UserError(f"mean {tuple(mean)}, std {tuple(std)}: need one finite number per channel, std above 0")
        for name, values in (("mean", mean), ("std", std)):
            tensor = torch.tensor(tuple(values), dtype=torch.float32, device="cpu").view(1, -1, 1, 1)
            self.register_buffer(name, tensor, persistent=False)
        self.scaled = any(mean) or any(value != 1 for value in std)

    @torch.no_grad()
    def draw_weights(self, generator: torch.Generator) -> None:
        """Initialises all weights by PyTorch's default rule: uniform within 1/sqrt(fan in)."""
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                bound = module.weight[0].numel() ** -0.5
                module.weight.uniform_(-bound, bound, generator=generator)
                if module.bias is not None:
                    module.bias.uniform_(-bound, bound, generator=generator)
            elif isinstance(module, nn.BatchNorm2d):
                module.reset_parameters()

    @property
    def pooled_linear(self) -> nn.Linear | None:
        """The linear layer, if the head is only global average pooling and that layer; else None."""
        return None

    @abstractmethod
    def trunk(self, x: Tensor) -> Tensor:
        """The last activation before pooling, of normalised pixels."""

    def features(self, x: Tensor) -> Tensor:
        """The last activation before pooling, after its ReLU: (b, f, u, v), or (b, t, f) with a class token."""
        return self.trunk(self.normalised(x))

    def normalised(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.std if self.scaled else x

    def head(self, acts: Tensor) -> Tensor:
        """The logits of features."""
        linear = self.pooled_linear
        assert linear is not None, f"{type(self).__name__} has neither pooled_linear nor head"
        return linear(acts.mean((2, 3)))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))
