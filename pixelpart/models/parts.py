"""The two halves of a user's own network: where its features come from, and what makes logits of them.

They hold names, not modules, so that a copy of a wrapped model runs on its own weights.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from pixelpart.errors import UserError

Function = Callable[[Tensor], Tensor]


def submodule(module: nn.Module, name: str) -> Any:
    return module.get_submodule(name)


@dataclass(frozen=True)
class Until:
    """Runs the module up to the output of one submodule."""

    name: str

    def __call__(self, module: nn.Module, x: Tensor) -> Tensor:
        def stop(_module: nn.Module, _inputs: Any, output: Tensor) -> None:
            raise Reached(output)

        handle = submodule(module, self.name).register_forward_hook(stop)
        try:
            module(x)
        except Reached as reached:
            return reached.output
        finally:
            handle.remove()
        raise UserError(f"features {self.name!r} takes no part in the forward pass of {type(module).__name__}")


@dataclass(frozen=True)
class Call:
    """Calls a submodule or a method."""

    name: str

    def __call__(self, module: nn.Module, x: Tensor) -> Tensor:
        owner, _, attribute = self.name.rpartition(".")
        return getattr(submodule(module, owner), attribute)(x)


@dataclass(frozen=True)
class PooledLinear:
    """Global average pooling and one linear layer."""

    name: str

    def __call__(self, module: nn.Module, acts: Tensor) -> Tensor:
        return submodule(module, self.name)(acts.mean((2, 3)))


@dataclass(frozen=True)
class LastBlock:
    """What timm's transformers do from the last block on."""

    def __call__(self, module: Any, tokens: Tensor) -> Tensor:
        return module.forward_head(module.norm(module.blocks[-1](tokens)))


@dataclass(frozen=True)
class Plain:
    """A function that may hold on to the module it was made for."""

    function: Function

    def __call__(self, module: nn.Module, x: Tensor) -> Tensor:
        return self.function(x)

    def __deepcopy__(self, memo: Any) -> "Plain":
        name = getattr(self.function, "__name__", repr(self.function))
        raise UserError(
            f"a model wrapped with the function {name} cannot be copied, as the copy would run on the old weights; "
            "give wrap the name of a submodule or a method"
        )


Part = Until | Call | PooledLinear | LastBlock | Plain


class Reached(Exception):
    def __init__(self, output: Tensor) -> None:
        self.output = output
