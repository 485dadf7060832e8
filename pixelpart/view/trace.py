"""The graph of a model, traced by torch.fx; `Untraceable` where the graph would not compute what the model does.

fx leaves four things out, which `Tracer` adds:
- `x += y` is traced as `x + y`, and other references to x would not see it change. Here it stays in place.
- Hooks of torch's own layers do not run. Here they do: `models.wrap` ends a trace at a layer by such a hook.
- A module that is made in the forward pass, such as `nn.ReLU()(x)`, has no name. Here its operations are traced.
- A `torch.autograd.Function` or a `no_grad` block is traced as its forward pass, and a straight-through gradient would
  be lost. Both run with gradients disabled, which is an error here.
"""

import contextlib
import io
import operator
import random
from collections.abc import Callable
from typing import Any

import torch
from torch import fx, nn
from torch.nn.utils.parametrize import is_parametrized

from pixelpart.view.borrow import tensors_of


class Untraceable(Exception):
    """torch.fx cannot trace this model, or the graph would not compute what the model does."""


def trace(model: nn.Module, method: str) -> fx.GraphModule:
    """The graph of `model.method(x)` on the model's own modules; Untraceable if there is none."""
    if any(map(_has_hooks, model.modules())):
        raise Untraceable("the model has hooks, which a graph would leave out")
    if any(map(is_parametrized, model.modules())):
        raise Untraceable("the model has parametrized weights, which are computed in every pass")
    tracer = Tracer()
    tracer.traced_func_name = method
    names, generators = tensors_of(model).keys(), _generators()
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # a model that prints would show proxies
            graph = tracer.trace(model)
    except Exception as error:  # the model's own code runs on proxies for tensors and may fail in any way
        raise Untraceable(str(error)) from error
    if _generators() != generators:
        raise Untraceable("the model draws random numbers, of which a graph would keep the first")
    network = fx.GraphModule(model, graph)
    if not tensors_of(network).keys() <= names:
        raise Untraceable("the model has tensors that are neither parameters nor buffers")
    return network


def module_calls(network: fx.GraphModule) -> list[tuple[Any, nn.Module]]:
    """The nodes that call a module, with the module. (Typed Any: fx's types of a node are too wide to be of use.)"""
    modules = dict(network.named_modules())
    return [(node, modules[node.target]) for node in network.graph.nodes if node.op == "call_module"]


def _generators() -> tuple[Any, bytes]:
    """The states of Python's and torch's random number generators."""
    return random.getstate(), torch.get_rng_state().numpy().tobytes()


def _has_hooks(module: nn.Module) -> bool:
    return any((module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks))


def _as_function(name: str) -> Callable[[Any, Any], Any]:
    """The operator as a function: for operators fx generates a statement `x += y`, which would also rebind numbers."""
    operation = getattr(operator, name)

    def function(left: Any, right: Any) -> Any:
        return operation(left, right)

    function.__name__ = name
    return function


_NAMES = "iadd isub imul itruediv ifloordiv imod ipow imatmul iand ior ixor ilshift irshift"
IN_PLACE = {name: _as_function(name) for name in _NAMES.split()}


class Tracer(fx.Tracer):
    """fx's tracer with in-place operators, hooks of leaf modules, and an error where gradients are disabled."""

    def trace(self, *args: Any, **kwargs: Any) -> fx.Graph:
        with torch.enable_grad():  # also if the caller has disabled gradients
            return super().trace(*args, **kwargs)

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        if not torch.is_grad_enabled():
            raise TypeError("the model has custom gradients")
        return super().create_node(*args, **kwargs)

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Proxy(node, self)

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if m not in (self.submodule_paths or ()) and not list(m.parameters()):  # nn.ReLU()(x) in a forward pass
            return forward(*args, **kwargs)
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


for _name, _operation in IN_PLACE.items():
    setattr(_Proxy, f"__{_name}__", _method(_operation))
