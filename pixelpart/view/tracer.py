"""torch.fx's tracer with three things that it leaves out.

x += y: by itself it reads x + y, and who else holds x would not see it change. Hooks of torch's own layers, which it
does not run: a model is read up to a layer by a hook that stops there. And gradients that are not those of what is
computed: of a torch.autograd.Function it reads the forward pass alone, and a no_grad block as if it were none, so that
a straight-through estimate would lose its gradient. Both compute with gradients switched off, and are not read.
"""

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx, nn

NAMES = (
    *("iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "imatmul"),
    *("iand", "ior", "ixor", "ilshift", "irshift"),
)


def _own(name: str) -> Callable[[Any, Any], Any]:
    """The operator as a function of ours: for its own fx writes a statement, which would change a number's name too."""
    operation = getattr(operator, name)

    def own(left: Any, right: Any) -> Any:
        return operation(left, right)

    own.__name__ = name
    return own


OPERATIONS = {name: _own(name) for name in NAMES}


class Tracer(fx.Tracer):
    """fx's, with the operators above, with hooks that look at what a layer gives, and for plain gradients alone."""

    def trace(self, *args: Any, **kwargs: Any) -> fx.Graph:
        with torch.enable_grad():  # whatever it is where a model is read
            return super().trace(*args, **kwargs)

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        if not torch.is_grad_enabled():
            raise TypeError("it has gradients of its own")
        return super().create_node(*args, **kwargs)

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Proxy(node, self)

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        out = super().call_module(m, forward, args, kwargs)
        if self.is_leaf_module(m, self.path_of_module(m)):
            for hook in m._forward_hooks.values():
                hook(m, args, out)
        return out


class _Proxy(fx.Proxy):
    pass


def _method(operation: Callable[[Any, Any], Any]) -> Callable[[fx.Proxy, Any], fx.Proxy]:
    def method(self: fx.Proxy, other: Any) -> fx.Proxy:
        return self.tracer.create_proxy("call_function", operation, (self, other), {})

    return method


for _name, _operation in OPERATIONS.items():
    setattr(_Proxy, f"__{_name}__", _method(_operation))
