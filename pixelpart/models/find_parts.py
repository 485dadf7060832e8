"""Finds features and head of a network: the last activation (b, c, u, v) before pooling, and what follows it.

torch.fx traces the network; its graph is cut at the last activation of more than one position on which everything
later depends. A network that cannot be traced is searched for a submodule and a linear layer with pooling in between.
"""

import copy
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from pixelpart.models.wrapped import GraphPart, OutputOf, PooledLinear, Wrapped
from pixelpart.view.borrow import borrowed
from pixelpart.view.trace import Untraceable, trace

IMAGES = 5  # a size of the batch that hardly any other dimension has
AVERAGES = (nn.AvgPool2d, nn.AdaptiveAvgPool2d)
AVERAGE_CALLS = (F.avg_pool2d, F.adaptive_avg_pool2d, torch.mean, "mean")
CONVOLUTIONS = (F.conv2d, torch.conv2d)
TRIES = 6  # submodules that `by_names` suggests

Values = dict[str, Any]  # by node: a tensor on the meta device, or a number, size, ...


def by_tracing(module: nn.Module, example: Tensor) -> Iterator[Wrapped]:
    """With the graph before the cut as features and the rest as head; Untraceable if there is no cut."""
    network = _traced(module, training=False)
    recorder = _Recorder(network)
    try:
        with torch.no_grad():
            recorder.run(example[torch.arange(IMAGES) % len(example)])
    except Exception as error:  # of the module's own code
        raise Untraceable(f"its graph fails: {error}") from error
    values = recorder.values
    cut = _find_cut(network, values)
    features, head = _split(network.graph, cut.name, values)
    where = f"{_place(cut)} {tuple(values[cut.name].shape[1:])}"
    graphs = {False: (features, head)}
    with suppress(Untraceable):  # maps are read in eval mode; the training pass then goes through the module itself
        graphs[True] = _split(_traced(module, training=True).graph, cut.name, values)
    linear = _pooled_linear(network, [pair[1] for pair in graphs.values()], values[cut.name])
    before, after = (GraphPart({mode: pair[i] for mode, pair in graphs.items()}) for i in (0, 1))
    if linear is not None:
        yield Wrapped(module, before, PooledLinear(linear), f"{where}, before pooling and {linear}")
    else:
        yield Wrapped(module, before, after, where)


def by_names(module: nn.Module, example: Tensor) -> Iterator[Wrapped]:
    """With submodules that may be the last before pooling, and the last linear layer; the caller checks them."""
    outputs: list[tuple[str, nn.Module, Any]] = []

    def keep(name: str) -> Any:
        return lambda part, _inputs, output: outputs.append((name, part, output))

    handles = [part.register_forward_hook(keep(name)) for name, part in module.named_modules() if name]
    try:
        with borrowed(module), torch.no_grad():
            module(example)
    finally:
        for handle in handles:
            handle.remove()
    linears = [(name, part) for name, part, _ in outputs if isinstance(part, nn.Linear)]
    if linears:
        last, linear = linears[-1]
        maps = [
            name for name, _, output in outputs if is_map(output, example) and output.shape[1] == linear.in_features
        ]
        for name in maps[: -TRIES - 1 : -1]:
            yield Wrapped(module, OutputOf(name), PooledLinear(last), f"{name}, before pooling and {last}")


def _traced(module: nn.Module, *, training: bool) -> fx.GraphModule:
    try:
        twin = copy.deepcopy(module).train(training)
    except Exception as error:  # it holds a lock, or a tensor with gradient history
        raise Untraceable(f"it cannot be copied: {error}") from error
    plain_tensors_to_buffers(twin)
    return trace(twin, "forward")


def plain_tensors_to_buffers(network: nn.Module) -> None:
    """A tensor that is only an attribute, such as a mean of the pixels, would stay on its device and out of a graph."""
    for module in network.modules():
        for name, value in list(vars(module).items()):
            if isinstance(value, Tensor) and not value.requires_grad:
                delattr(module, name)
                module.register_buffer(name, value, persistent=False)


class _Recorder(fx.Interpreter):
    """Runs a graph and keeps the shape of each tensor, and what is not a tensor."""

    def __init__(self, network: fx.GraphModule) -> None:
        super().__init__(network)
        self.values: Values = {}

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        self.values[n.name] = value.to("meta") if isinstance(value, Tensor) else value
        return value


def _find_cut(network: fx.GraphModule, values: Values) -> fx.Node:
    nodes = list(network.graph.nodes)
    image = next(values[node.name] for node in nodes if node.op == "placeholder")
    layers = [network.get_submodule(str(node.target)) if node.op == "call_module" else None for node in nodes]
    convolutions = [
        i for i, layer in enumerate(layers) if isinstance(layer, nn.Conv2d) or nodes[i].target in CONVOLUTIONS
    ]
    if not convolutions:
        raise Untraceable("it has no convolution")
    for i in range(len(nodes) - 1, convolutions[0] - 1, -1):
        node, layer, value = nodes[i], layers[i], values[nodes[i].name]
        if layer is not None and list(layer.parameters()) and isinstance(value, Tensor) and value.ndim == 3:
            raise Untraceable("its last layers act on tokens (b, t, f)")
        averages = isinstance(layer, AVERAGES) or node.target in AVERAGE_CALLS
        passes = isinstance(layer, nn.Identity) or "dropout" in str(layer or node.target).lower()
        if not averages and not passes and is_map(value, image) and _crossing(nodes, i, values) is not None:
            return node
    raise Untraceable("no activation (b, c, u, v) has everything after it depend on it only")


def _crossing(nodes: list[fx.Node], i: int, values: Values) -> list[fx.Node] | None:
    """What nodes after i need from before it: weights and sizes. None if they need another tensor."""
    before, sizes = set(nodes[:i]), {node for node in nodes if isinstance(values.get(node.name), int | torch.Size)}
    found = []
    for later in nodes[i + 1 :]:
        read = [node for node in later.all_input_nodes if node in before]
        found += [later] if read and later in sizes else read  # fx puts x.shape where it is used
    return found if all(node.op == "get_attr" or node in sizes for node in found) else None


def _split(graph: fx.Graph, name: str, values: Values) -> tuple[fx.Graph, fx.Graph]:
    """The graph up to the node of that name, and the rest as a graph of its value."""
    nodes = list(graph.nodes)
    i = next((i for i, node in enumerate(nodes) if node.name == name), None)
    if i is None or (crossing := _crossing(nodes, i, values)) is None:
        raise Untraceable("train and eval mode compute different graphs")
    features, head = fx.Graph(), fx.Graph()
    copies: dict[fx.Node, Any] = {}
    for node in nodes[: i + 1]:
        copies[node] = features.node_copy(node, copies.__getitem__)
    features.output(copies[nodes[i]])
    acts = head.placeholder("acts")
    copies = {nodes[i]: acts}
    for node in crossing:
        copies[node] = head.node_copy(node) if node.op == "get_attr" else _sizes(head, acts, values[node.name])
    for node in nodes[i + 1 :]:
        if node not in copies:  # also one that nothing reads: it may work in place
            copies[node] = head.node_copy(node, copies.__getitem__)
    return features, head


def _sizes(head: fx.Graph, acts: fx.Node, value: Any) -> Any:
    """A size, or several, in which the size of the batch is that of the activation."""
    if isinstance(value, torch.Size):
        return tuple(_sizes(head, acts, part) for part in value)
    return head.call_method("size", (acts, 0)) if value == IMAGES else value


def _pooled_linear(network: fx.GraphModule, heads: list[fx.Graph], acts: Tensor) -> str | None:
    """The name of the linear layer, if the head is only global average pooling and that layer; else None.

    `heads` are its graphs in eval and in train mode, where it may have dropout.
    """
    *_, last = [node for node in heads[0].nodes if node.op not in ("placeholder", "output")] or [None]
    linear = network.get_submodule(last.target) if last is not None and last.op == "call_module" else None
    if not isinstance(linear, nn.Linear) or linear.in_features != acts.shape[1]:
        return None
    for node in (node for head in heads for node in head.nodes):
        layer = network.get_submodule(node.target) if node.op == "call_module" else linear
        only_pools = isinstance(layer, (*AVERAGES, nn.Flatten, nn.Identity)) or layer is linear
        if not only_pools or node.op == "get_attr" or "dropout" in str(node.target):
            return None
    x = torch.randn(acts.shape, generator=torch.Generator().manual_seed(0)).to(linear.weight)
    with torch.no_grad():
        logits, expected = fx.Interpreter(network, graph=heads[0]).run(x), linear(x.mean((2, 3)))
    return str(last.target) if torch.allclose(logits, expected, rtol=1e-4, atol=1e-5) else None


def is_map(value: Any, image: Tensor) -> bool:
    """Whether the value is an activation (b, c, u, v) of several positions, with the image's proportions."""
    if not isinstance(value, Tensor) or value.ndim != 4 or not value.is_floating_point() or len(value) != len(image):
        return False
    (u, v), (h, w) = value.shape[2:], image.shape[2:]
    return u * v > 1 and 1 / 2 < (u * w) / (v * h) < 2  # (b, u, v, c) has others


def _place(node: fx.Node) -> str:
    """Where the value is computed: a submodule, or a function in one."""
    if node.op == "call_module":
        return str(node.target)
    stack = [name for name in node.meta.get("nn_module_stack", {}) if name]
    return f"{node.name} in {stack[-1]}" if stack else node.name
