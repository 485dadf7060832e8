"""A traced network in bf16 between its first convolution and its logits.

Pixels and the first convolution stay fp32: near white bf16 has steps of 1/256, which would turn +7.5/255 into +7 and
-7.5/255 into -8. So do the linear layer that gives the logits, and group and layer norms, as in torch.autocast.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn

from pixelpart.view.trace import Untraceable, module_calls

NORMS = {F.group_norm, F.layer_norm, F.instance_norm}


def narrow(network: fx.GraphModule, dtype: torch.dtype) -> dict[str, torch.dtype]:
    """Casts the output of the first layer to `dtype`; returns the parameters that are used in that type."""
    graph = network.graph
    layers = [(node, module) for node, module in module_calls(network) if isinstance(module, nn.Conv2d | nn.Linear)]
    if not layers:
        raise Untraceable("the model has no convolution or linear layer")
    (first, _), *others = layers
    if first.target in {node.target for node, _ in others}:
        raise Untraceable("the model uses its first layer more than once")
    with graph.inserting_after(first):
        cast = graph.call_method("to", (first, dtype))
    first.replace_all_uses_with(cast, delete_user_cb=lambda user: user is not cast)
    if others and isinstance(others[-1][1], nn.Linear) and {user.op for user in others[-1][0].users} == {"output"}:
        last, _ = others.pop()
        (entry,) = last.all_input_nodes
        with graph.inserting_before(last):
            wide = graph.call_method("to", (entry, torch.float32))
        last.replace_input_with(entry, wide)
    in_dtype = _computed_from(cast)
    narrowed: dict[str, torch.dtype] = {}
    for node, module in others:
        if not in_dtype.issuperset(node.all_input_nodes):
            raise Untraceable("more than one layer reads the pixels")
        narrowed |= {f"{node.target}.{name}": dtype for name, _ in module.named_parameters()}
    modules = dict(module_calls(network))
    for node in list(graph.nodes):
        norm = node.target in NORMS or isinstance(modules.get(node), nn.GroupNorm | nn.LayerNorm | nn.InstanceNorm2d)
        if norm and node in in_dtype:
            _compute_in_fp32(node)
    return narrowed


def _compute_in_fp32(node: Any) -> None:
    """Casts the first input of the node to fp32 and its output back to the type that the input had."""
    entry = node.all_input_nodes[0]
    with node.graph.inserting_before(node):
        wide = node.graph.call_method("to", (entry, torch.float32))
    node.replace_input_with(entry, wide)
    with node.graph.inserting_after(node):
        back = node.graph.call_method("type_as", (node, entry))
    node.replace_all_uses_with(back, delete_user_cb=lambda user: user is not back)


def widen(network: fx.GraphModule) -> None:
    """Casts the input to fp32."""
    entry = next(node for node in network.graph.nodes if node.op == "placeholder")
    with network.graph.inserting_after(entry):
        wide = network.graph.call_method("to", (entry, torch.float32))
    entry.replace_all_uses_with(wide, delete_user_cb=lambda user: user is not wide)


def _computed_from(node: Any) -> set[Any]:
    """The node and all nodes that depend on it."""
    found = {node}
    for later in node.graph.nodes:
        if found.intersection(later.all_input_nodes):
            found.add(later)
    return found
