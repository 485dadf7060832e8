"""Puts each ReLU of a traced network into the convolution before it (see pixelpart.kernels)."""

import operator
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn

from pixelpart import kernels  # noqa: F401 (makes torch.ops.pixelpart)
from pixelpart.kernels.stem import suits

RELUS = (F.relu, torch.relu, torch.relu_, "relu", "relu_")
SUMS = (operator.add, operator.iadd, torch.add, "add", "add_")


def fuse_relus(network: fx.GraphModule) -> None:
    """relu(conv(x)) and relu(conv(x) + other) become one operation each, where nothing else reads what is between.

    The first convolution, whose output is cast to bf16, becomes `stem`, also without a ReLU.
    """
    modules = dict(network.named_modules())
    for node in list(network.graph.nodes):
        if node.op == "call_method" and node.target == "to":
            _fuse_first(network, modules, node)
        elif _is_relu(node, modules):
            _fuse_relu(network, modules, node)
    network.graph.eliminate_dead_code()


def _fuse_first(network: fx.GraphModule, modules: dict[str, nn.Module], cast: Any) -> None:
    conv = _convolution(cast.args[0], modules)
    if conv is None or cast.args[1:] != (torch.bfloat16,) or not suits(conv):
        return
    (user,) = cast.users if len(cast.users) == 1 else (None,)
    relu = user is not None and _is_relu(user, modules)
    _replace(network, user if relu else cast, cast.args[0], torch.ops.pixelpart.stem.default, relu)


def _fuse_relu(network: fx.GraphModule, modules: dict[str, nn.Module], relu: Any) -> None:
    source = relu.args[0]
    if (conv := _convolution(source, modules)) is not None:
        _replace(network, relu, source, torch.ops.pixelpart.conv_relu.default, conv.stride[0], conv.padding[0])
    elif source.target in SUMS and len(source.args) == 2 and not source.kwargs and len(source.users) == 1:
        for part, other in (source.args, source.args[::-1]):
            if (conv := _convolution(part, modules)) is not None and isinstance(other, fx.Node):
                operation = torch.ops.pixelpart.conv_add_relu.default
                _replace(network, relu, part, operation, other, conv.stride[0], conv.padding[0])
                return


def _replace(network: fx.GraphModule, node: Any, conv: Any, operation: Any, *rest: Any) -> None:
    """One call of the operation, with the convolution's input and weights, in the place of node."""
    with network.graph.inserting_before(node):
        weight, bias = (network.graph.get_attr(f"{conv.target}.{name}") for name in ("weight", "bias"))
        call = network.graph.call_function(operation, (conv.args[0], weight, bias, *rest))
    node.replace_all_uses_with(call)


def _convolution(node: Any, modules: dict[str, nn.Module]) -> nn.Conv2d | None:
    """The node's convolution, if it is one that the operations can stand for and only one node reads it."""
    conv = modules.get(str(node.target)) if isinstance(node, fx.Node) and node.op == "call_module" else None
    if not isinstance(conv, nn.Conv2d) or conv.bias is None or len(node.users) != 1 or isinstance(conv.padding, str):
        return None
    plain = conv.dilation == (1, 1) and conv.groups == 1 and conv.padding_mode == "zeros"
    square = conv.stride[0] == conv.stride[1] and conv.padding[0] == conv.padding[1]
    return conv if plain and square else None


def _is_relu(node: Any, modules: dict[str, nn.Module]) -> bool:
    if node.op == "call_module":
        return isinstance(modules[node.target], nn.ReLU)
    return node.op in ("call_function", "call_method") and node.target in RELUS
