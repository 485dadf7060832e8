"""The operations of pixelpart.kernels put into a traced network: convolution with ReLU, and residual blocks."""

import operator
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn

from pixelpart import kernels  # noqa: F401 (defines torch.ops.pixelpart)
from pixelpart.kernels.stem import supports as stem_supports
from pixelpart.view.trace import IN_PLACE

CONV_RELU, CONV_ADD_RELU = torch.ops.pixelpart.conv_relu.default, torch.ops.pixelpart.conv_add_relu.default
CONV = torch.ops.pixelpart.conv.default
STEM, RESIDUAL = torch.ops.pixelpart.stem.default, torch.ops.pixelpart.residual.default
RELUS = (F.relu, torch.relu, torch.relu_, "relu", "relu_")
SUMS, SUMS_IN_PLACE = (operator.add, torch.add, "add"), (IN_PLACE["iadd"], "add_")


def fuse_relus(network: fx.GraphModule) -> None:
    """Makes one operation of relu(conv(x)) and of relu(conv(x) + other) if nothing else reads the values in between.

    The first convolution, whose output is cast to bf16, becomes `stem`, with or without a ReLU.
    """
    modules = dict(network.named_modules())
    replaced: list[fx.Node] = []
    for node in list(network.graph.nodes):
        if node.op == "call_method" and node.target == "to":
            replaced += _fuse_first(network, modules, node)
        elif _is_relu(node, modules):
            replaced += _fuse_relu(network, modules, node)
    # Not `eliminate_dead_code`: an in-place operation has an effect even if nothing reads its result.
    for node in replaced:
        network.graph.erase_node(node)
    fuse_blocks(network)


def own_convolutions(network: fx.GraphModule) -> None:
    """Replaces 3x3 convolutions without bias by `kernels.conv`, which has gradients of input and weight."""
    modules = dict(network.named_modules())
    for node in list(network.graph.nodes):
        conv = modules.get(str(node.target)) if node.op == "call_module" else None
        if not isinstance(conv, nn.Conv2d) or conv.bias is not None or not node.args or not _is_plain(conv):
            continue
        if conv.kernel_size == (3, 3) and conv.padding == (1, 1) and conv.in_channels >= 64:
            with network.graph.inserting_before(node):
                weight = network.graph.get_attr(f"{node.target}.weight")
                call = network.graph.call_function(CONV, (node.args[0], weight, conv.stride[0]))
            node.replace_all_uses_with(call)
            network.graph.erase_node(node)


def fuse_blocks(network: fx.GraphModule) -> None:
    """Makes one operation of relu(conv(relu(conv(x))) + x), where x may pass through a 1x1 convolution.

    Its two gradients are then added inside the operation, by a kernel that also applies that of the ReLU before it.
    """
    modules = dict(network.named_modules())
    for node in list(network.graph.nodes):
        if node.target is CONV_ADD_RELU and (found := _block(node, modules)) is not None:
            _replace_block(network, node, *found)
    for node in network.graph.nodes:
        if node.target in (RESIDUAL, STEM):
            (out,) = node.users if node.target is RESIDUAL else (node,)
            ready = all(user.target is RESIDUAL and user.args[0] is out for user in out.users)
            node.update_arg(len(node.args) - 1, ready and _is_rectified(out))


def _block(last: Any, modules: dict[str, nn.Module]) -> tuple[nn.Conv2d | None, list[fx.Node]] | None:
    """The shortcut's convolution or None, and the nodes of the block that ends here; None if there is no block."""
    inner, second, _, other, *settings = last.args
    if inner.target is not CONV_RELU or len(inner.users) != 1 or settings != [1, 1]:
        return None
    x, first, _, stride, padding = inner.args
    if padding != 1 or not set(x.users) <= {inner, other, last}:  # another reader might change x in place
        return None
    first, second = (modules[weight.target.removesuffix(".weight")] for weight in (first, second))
    if other is x and stride == 1:
        return (None, [last, inner]) if first.in_channels == second.out_channels else None
    conv = _convolution(other, modules)
    if conv is None or other.args[0] is not x or conv.out_channels != second.out_channels:
        return None
    is_shortcut = conv.kernel_size == (1, 1) and conv.stride == (stride, stride) and conv.padding == (0, 0)
    return (conv, [last, inner, other]) if is_shortcut else None


def _fuse_first(network: fx.GraphModule, modules: dict[str, nn.Module], cast: Any) -> list[fx.Node]:
    conv = _convolution(cast.args[0], modules)
    if conv is None or cast.args[1:] != (torch.bfloat16,) or not stem_supports(conv):
        return []
    (user,) = cast.users if len(cast.users) == 1 else (None,)
    relu = user is not None and _is_relu(user, modules)
    nodes = [user, cast, cast.args[0]] if relu else [cast, cast.args[0]]
    return _replace(network, nodes, STEM, relu, False)


def _fuse_relu(network: fx.GraphModule, modules: dict[str, nn.Module], relu: Any) -> list[fx.Node]:
    source = relu.args[0]
    if (conv := _convolution(source, modules)) is not None:
        return _replace(network, [relu, source], CONV_RELU, conv.stride[0], conv.padding[0])
    if source.target in SUMS + SUMS_IN_PLACE and len(source.args) == 2 and not source.kwargs and len(source.users) == 1:
        # A tensor that is changed in place may be read elsewhere, unless it is the convolution's output.
        for part, other in (source.args, source.args[::-1])[: 1 if source.target in SUMS_IN_PLACE else 2]:
            if (conv := _convolution(part, modules)) is not None and isinstance(other, fx.Node) and other is not part:
                return _replace(network, [relu, source, part], CONV_ADD_RELU, other, conv.stride[0], conv.padding[0])
    return []


def _replace(network: fx.GraphModule, nodes: list[Any], operation: Any, *rest: Any) -> list[fx.Node]:
    """Replaces the nodes by one call of the operation; they are listed from the last one back to the convolution."""
    conv = nodes[-1]
    with network.graph.inserting_before(nodes[-2]):  # where the last of its inputs was read
        weight, bias = (network.graph.get_attr(f"{conv.target}.{name}") for name in ("weight", "bias"))
        call = network.graph.call_function(operation, (conv.args[0], weight, bias, *rest))
    nodes[0].replace_all_uses_with(call)
    return nodes


def _replace_block(network: fx.GraphModule, last: Any, shortcut: nn.Conv2d | None, nodes: list[fx.Node]) -> None:
    inner, second, second_bias, other, *_ = last.args
    x, first, first_bias, stride, _ = inner.args
    with network.graph.inserting_before(last):
        extra: list[Any] = [None, None]
        if shortcut is not None:
            extra = [network.graph.get_attr(f"{other.target}.{name}") for name in ("weight", "bias")]
        args = (x, first, first_bias, second, second_bias, *extra, stride, _is_rectified(x), False)
        pair = network.graph.call_function(RESIDUAL, args)
        out = network.graph.call_function(operator.getitem, (pair, 0))
    last.replace_all_uses_with(out)
    for node in nodes:
        network.graph.erase_node(node)


def _is_rectified(node: Any) -> bool:
    """Whether the node is the output of a ReLU."""
    if node.target is operator.getitem:
        return getattr(node.args[0], "target", None) is RESIDUAL
    return node.target in (CONV_RELU, CONV_ADD_RELU) or (node.target is STEM and node.args[3] is True)


def _convolution(node: Any, modules: dict[str, nn.Module]) -> nn.Conv2d | None:
    """The node's convolution if the operations can compute it and only one node reads it, else None."""
    conv = modules.get(str(node.target)) if isinstance(node, fx.Node) and node.op == "call_module" else None
    if not isinstance(conv, nn.Conv2d) or conv.bias is None or len(node.users) != 1 or isinstance(conv.padding, str):
        return None
    return conv if node.args and _is_plain(conv) else None  # no args: the input is passed by keyword


def _is_plain(conv: nn.Conv2d) -> bool:
    """Whether stride and padding are square, with no dilation, groups or padding mode."""
    plain = conv.dilation == (1, 1) and conv.groups == 1 and conv.padding_mode == "zeros"
    return plain and conv.stride[0] == conv.stride[1] and conv.padding[0] == conv.padding[1]


def _is_relu(node: Any, modules: dict[str, nn.Module]) -> bool:
    if not node.args:  # the input is passed by keyword
        return False
    if node.op == "call_module":
        return isinstance(modules[node.target], nn.ReLU)
    return node.op in ("call_function", "call_method") and node.target in RELUS
