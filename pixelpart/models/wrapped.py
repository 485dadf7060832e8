"""A wrapped network, with its two parts: `features` and `head`, each a function of (module, input).

They refer to submodules by name, so that a copy of a wrapped model uses its own weights.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, fx, nn
from torch.func import functional_call

from pixelpart.errors import UserError
from pixelpart.models.classifier import Classifier

Function = Callable[[Tensor], Tensor]
ModelPart = Callable[[Any, Tensor], Tensor]


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


def timm_last_block(module: Any, tokens: Tensor) -> Tensor:
    """The last block, the norm and the head of timm's transformers."""
    return module.forward_head(module.norm(module.blocks[-1](tokens)))


@dataclass(frozen=True)
class GraphPart:
    """A part of the module's graph, traced in train and in eval mode."""

    graphs: dict[bool, fx.Graph]  # by `module.training`

    def __call__(self, module: nn.Module, x: Tensor) -> Tensor:
        if module.training not in self.graphs:
            raise UserError(f"torch.fx cannot trace {type(module).__name__} in train mode")
        runner = _Retraced if isinstance(x, fx.Proxy) else fx.Interpreter
        return runner(module, graph=self.graphs[module.training]).run(x)

    def __deepcopy__(self, memo: Any) -> "GraphPart":
        return self  # refers to submodules by name


class _Retraced(fx.Interpreter):
    """Puts the functions of a graph into another trace as they are; fx may not be able to look into them."""

    def run(self, *args: Any, **kwargs: Any) -> Any:
        self.tracer = args[0].tracer
        return super().run(*args, **kwargs)

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self.tracer.create_proxy("call_function", target, args, kwargs)


@dataclass(frozen=True)
class PlainFunction:
    """A function of the input that uses the original module; with a copy, the original runs on the copy's tensors."""

    function: Function
    original: nn.Module

    def __call__(self, module: nn.Module, x: Tensor) -> Tensor:
        if module is self.original:
            return self.function(x)
        tensors = {f"original.{name}": tensor for name, tensor in (*module.named_parameters(), *module.named_buffers())}
        modes = [(part, part.training) for part in self.original.modules()]
        try:
            for (part, _), other in zip(modes, module.modules(), strict=True):
                part.training = other.training
            return functional_call(_CallOf(self.function, self.original), tensors, (x,))
        finally:
            for part, training in modes:
                part.training = training

    def __deepcopy__(self, memo: Any) -> "PlainFunction":
        return self


class _CallOf(nn.Module):
    def __init__(self, function: Function, original: nn.Module) -> None:
        super().__init__()
        self.original, self._function = original, [function]  # in a list: it may be a module itself

    def forward(self, x: Tensor) -> Tensor:
        return self._function[0](x)


class Wrapped(Classifier):
    def __init__(self, module: nn.Module, features: ModelPart, head: ModelPart, found: str = "") -> None:
        super().__init__()
        self.module, self.features_part, self.head_part = module, features, head
        self.found = found  # which parts were found, in words

    @property
    def pooled_linear(self) -> nn.Linear | None:
        linear = self.module.get_submodule(self.head_part.name) if isinstance(self.head_part, PooledLinear) else None
        return linear if isinstance(linear, nn.Linear) else None

    def trunk(self, x: Tensor) -> Tensor:
        return self.features_part(self.module, x)

    def head(self, acts: Tensor) -> Tensor:
        return self.head_part(self.module, acts)

    def forward(self, x: Tensor) -> Tensor:
        return self.module(self.normalised(x))


class WrappedTransformer(Wrapped):
    """A vision transformer of timm; features are the tokens (b, t, f) before the last block."""

    def __init__(self, module: Any) -> None:
        super().__init__(module, OutputOf(f"blocks.{len(module.blocks) - 2}"), timm_last_block)
        self.class_token = module.global_pool == "token"

    def attentions(self, x: Tensor) -> tuple[list[Tensor], Tensor]:
        """The attention weights of each block, (b, heads, t, t), and the logits."""
        attention: list[Tensor] = []
        layers = [block.attn for block in self.module.blocks]  # type: ignore[union-attr]
        fused = [layer for layer in layers if getattr(layer, "fused_attn", False)]

        def keep(_module: nn.Module, _inputs: Any, output: Tensor) -> None:
            attention.append(output)

        handles = [layer.attn_drop.register_forward_hook(keep) for layer in layers]
        try:
            for layer in fused:
                layer.fused_attn = False  # fused attention does not compute the weights
            logits = self.module(self.normalised(x))
        finally:
            for layer in fused:
                layer.fused_attn = True
            for handle in handles:
                handle.remove()
        if len(attention) != len(layers):
            raise UserError(f"{type(self.module).__name__} has attention layers without attn_drop")
        return attention, logits
