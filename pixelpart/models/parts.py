"""The two parts of a wrapped network: `features` and `head`, each a function of (module, input).

They refer to submodules by name, so that a copy of a wrapped model uses its own weights.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from pixelpart.errors import UserError

Function = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class OutputOf:
    """Runs the module up to the output of a submodule, and returns that output."""

    name: str

    def __call__(self, module: nn.Module, x: Tensor) -> Tensor:
        def stop(_module: nn.Module, _inputs: Any, output: Tensor) -> None:
            raise _Reached(output)

        handle = module.get_submodule(self.name).register_forward_hook(stop)
        try:
            module(x)
        except _Reached as reached:
            return reached.output
        finally:
            handle.remove()
        raise UserError(f"features {self.name!r} is not used in the forward pass of {type(module).__name__}")


class _Reached(Exception):
    def __init__(self, output: Tensor) -> None:
        self.output = output


@dataclass(frozen=True)
class CallByName:
    """Calls a submodule or a method."""

    name: str

    def __call__(self, module: nn.Module, x: Tensor) -> Tensor:
        owner, _, attribute = self.name.rpartition(".")
        return getattr(module.get_submodule(owner), attribute)(x)


@dataclass(frozen=True)
class PooledLinear:
    """Global average pooling and a linear layer."""

    name: str

    def __call__(self, module: nn.Module, acts: Tensor) -> Tensor:
        return module.get_submodule(self.name)(acts.mean((2, 3)))


@dataclass(frozen=True)
class TimmLastBlock:
    """The last block, the norm and the head of timm's transformers."""

    def __call__(self, module: Any, tokens: Tensor) -> Tensor:
        return module.forward_head(module.norm(module.blocks[-1](tokens)))


@dataclass(frozen=True)
class PlainFunction:
    """A function of the input, which may hold a reference to the module."""

    function: Function

    def __call__(self, module: nn.Module, x: Tensor) -> Tensor:
        return self.function(x)

    def __deepcopy__(self, memo: Any) -> "PlainFunction":
        name = getattr(self.function, "__name__", repr(self.function))
        raise UserError(
            f"a model wrapped with the function {name} cannot be copied, because the copy would use the old weights; "
            "pass wrap the name of a submodule or of a method"
        )


ModelPart = OutputOf | CallByName | PooledLinear | TimmLastBlock | PlainFunction
