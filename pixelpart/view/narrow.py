"""A traced network in bf16 between its first convolution and its logits.

Pixels and the first convolution stay fp32: near white bf16 has steps of 1/256, which would turn +7.5/255 into +7 and
-7.5/255 into -8. So does the linear layer that gives the logits.
"""

from typing import Any

import torch
from torch import fx, nn

from pixelpart.view.fold import module_calls
from pixelpart.view.trace import Untraceable


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
    return narrowed


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
