"""A classifier's structure, read by torch.fx: batch norm folded, types narrowed, operations fused."""

import copy
import random
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.utils.parametrize import is_parametrized

from pixelpart.view.fuse import fuse_relus, own_convolutions
from pixelpart.view.tracer import Tracer


class Untraceable(Exception):
    """A network that cannot be traced: its forward pass does more than operations on its input and its weights."""


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers, each under every name it goes by."""
    return dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers(remove_duplicate=False))


class Called:
    """One method of a classifier, run as it is on a copy without weights."""

    def __init__(self, skeleton: nn.Module, method: str) -> None:
        self.structure = _Method(skeleton, method)
        # A module that goes by two names is filled once.
        self.names = [name for name, _ in (*skeleton.named_parameters(), *skeleton.named_buffers())]

    def fill(self, live: dict[str, Tensor]) -> dict[str, Tensor]:
        return {f"model.{name}": live[name] for name in self.names}


class _Method(nn.Module):
    def __init__(self, model: nn.Module, method: str) -> None:
        super().__init__()
        self.model, self.method = model, method

    def forward(self, x: Tensor) -> Tensor:
        return getattr(self.model, self.method)(x)


class Traced:
    """One method of a classifier as a graph; folded, no batch norm is left in it.

    In eval mode batch norm is scale x + shift per channel: scale = gamma / sqrt(var + eps), shift = beta - scale mean.
    Behind a convolution it becomes part of it: weight * scale and (bias - mean) * scale + beta. Where it reads
    something else (the residual sum of a pre-activation net) it stays, as that affine map.
    """

    def __init__(
        self,
        skeleton: nn.Module,
        method: str,
        *,
        fold: bool,
        dtype: torch.dtype | None = None,
        widen: bool = False,
        fuse: bool = False,
        own: bool = False,
    ) -> None:
        tracer = Tracer()
        tracer.traced_func_name = method
        skeleton = copy.deepcopy(skeleton)  # folding changes its modules
        if any(map(_has_hooks, skeleton.modules())):
            raise Untraceable("a graph would leave the model's hooks out")
        if any(map(is_parametrized, skeleton.modules())):
            raise Untraceable("its weights are made anew at every pass")
        known, drawn = tensors_of(skeleton).keys(), _generators()
        try:
            graph = tracer.trace(skeleton)
        except Exception as error:  # the model's own code, run on stand-ins for tensors: it may fail in any way
            raise Untraceable(str(error)) from error
        if _generators() != drawn:
            raise Untraceable("it draws numbers of its own, of which a graph would keep the first")
        self.structure = fx.GraphModule(skeleton, graph)
        if not tensors_of(self.structure).keys() <= known:
            raise Untraceable("it makes tensors of its own as it runs")
        self.folds: list[tuple[str, str, float]] = []  # convolution, batch norm behind it, its eps
        self.affines: list[tuple[str, float]] = []  # batch norm that stays, its eps
        self.narrowed: dict[str, torch.dtype] = {}  # weights that are used in a narrower type
        if fold:
            self._fold()
        if dtype is not None:
            self._narrow(dtype)
        if widen:
            self._widen()
        if fuse:
            fuse_relus(self.structure)
        if own:
            own_convolutions(self.structure)
        self.structure.graph.lint()
        self.structure.delete_all_unused_submodules()
        self.structure.recompile()
        self.names = list(tensors_of(self.structure))

    def _calls(self) -> list[tuple[Any, nn.Module]]:  # fx types a node's target and arguments too widely to be of use
        modules = dict(self.structure.named_modules())
        return [(node, modules[node.target]) for node in self.structure.graph.nodes if node.op == "call_module"]

    def _fold(self) -> None:
        calls = self._calls()
        modules = dict(calls)
        uses = [node.target for node, _ in calls]
        # Modules whose tensors the forward pass also reads by name stay as they are.
        read = {str(node.target).rpartition(".")[0] for node in self.structure.graph.nodes if node.op == "get_attr"}
        for node, norm in calls:
            if not isinstance(norm, nn.BatchNorm2d) or norm.running_var is None or node.target in read:
                continue
            source = node.args[0] if node.args else node.kwargs["input"]
            conv = modules.get(source)
            alone = len(source.users) == 1 and uses.count(source.target) == 1 and uses.count(node.target) == 1
            if isinstance(conv, nn.Conv2d) and alone and source.target not in read:
                if conv.bias is None:
                    conv.bias = nn.Parameter(torch.empty(conv.out_channels, device="meta"))
                node.replace_all_uses_with(source)
                self.structure.graph.erase_node(node)
                self.folds.append((source.target, node.target, norm.eps))
            else:
                self.structure.set_submodule(node.target, _Affine(norm.num_features))
                self.affines.append((node.target, norm.eps))

    def _narrow(self, dtype: torch.dtype) -> None:
        """All behind the first convolution in the narrower type, but for a linear layer that gives the logits."""
        graph = self.structure.graph
        layers = [(node, module) for node, module in self._calls() if isinstance(module, nn.Conv2d | nn.Linear)]
        if not layers:
            raise Untraceable("it has no convolution or linear layer")
        (first, _), *others = layers
        if first.target in {node.target for node, _ in others}:
            raise Untraceable("its first layer is used again, further on")
        with graph.inserting_after(first):
            cast = graph.call_method("to", (first, dtype))
        first.replace_all_uses_with(cast, delete_user_cb=lambda user: user is not cast)
        if others and isinstance(others[-1][1], nn.Linear) and {user.op for user in others[-1][0].users} == {"output"}:
            last, _ = others.pop()
            (entry,) = last.all_input_nodes
            with graph.inserting_before(last):
                wide = graph.call_method("to", (entry, torch.float32))
            last.replace_input_with(entry, wide)
        narrow = _behind(cast)
        for node, module in others:
            if not narrow.issuperset(node.all_input_nodes):
                raise Untraceable("more than one layer reads the pixels")
            self.narrowed |= {f"{node.target}.{name}": dtype for name, _ in module.named_parameters()}

    def _widen(self) -> None:
        """What comes in, in fp32 again."""
        entry = next(node for node in self.structure.graph.nodes if node.op == "placeholder")
        with self.structure.graph.inserting_after(entry):
            wide = self.structure.graph.call_method("to", (entry, torch.float32))
        entry.replace_all_uses_with(wide, delete_user_cb=lambda user: user is not wide)

    def fill(self, live: dict[str, Tensor]) -> dict[str, Tensor]:
        """What to put into the structure, from the tensors of the model."""
        made: dict[str, Tensor] = {}
        for conv, norm, eps in self.folds:
            scale, shift = _scale_and_shift(live, norm, eps)
            made[f"{conv}.weight"] = live[f"{conv}.weight"] * scale[:, None, None, None]
            bias = live.get(f"{conv}.bias")
            made[f"{conv}.bias"] = shift if bias is None else bias * scale + shift
        for norm, eps in self.affines:
            made[f"{norm}.scale"], made[f"{norm}.shift"] = _scale_and_shift(live, norm, eps)
        full = {name: made[name] if name in made else live[name] for name in self.names}
        return {name: tensor.to(self.narrowed.get(name, tensor.dtype)) for name, tensor in full.items()}


def _generators() -> tuple[Any, bytes]:
    """Where Python's random numbers stand, and torch's."""
    return random.getstate(), torch.get_rng_state().numpy().tobytes()


def _has_hooks(module: nn.Module) -> bool:
    return any((module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks))


def _behind(node: Any) -> set[Any]:
    """The node and all that are computed from it."""
    found = {node}
    for later in node.graph.nodes:
        if found.intersection(later.all_input_nodes):
            found.add(later)
    return found


class _Affine(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.empty(channels, device="meta"))
        self.shift = nn.Parameter(torch.empty(channels, device="meta"))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addcmul(self.shift[:, None, None], x, self.scale[:, None, None]).to(x.dtype)


def _scale_and_shift(live: dict[str, Tensor], norm: str, eps: float) -> tuple[Tensor, Tensor]:
    mean, var = live[f"{norm}.running_mean"], live[f"{norm}.running_var"]
    gamma = live.get(f"{norm}.weight", torch.ones_like(var))
    scale = gamma * torch.rsqrt(var + eps)
    return scale, live.get(f"{norm}.bias", torch.zeros_like(mean)) - scale * mean
