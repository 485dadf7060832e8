"""A model as the attack sees it: eval mode, batch norm folded into the convolutions, no weight gradients.

`frozen(model)` lends a caller's own model in eval mode and puts everything back. `Folding(model)` reads the structure
of a classifier once; each call of it then gives a `Frozen` view of the weights as they are now, made of tensor
operations alone, so that it can sit inside a compiled or captured training step. `Working(model)` is the same for the
training pass: live weights, train mode.

Both may compute in bf16: pixels and the first convolution stay fp32, since near white bf16 has steps of 1/256 and would
turn +7.5/255 into +7 and -7.5/255 into -8; what follows is bf16, and so are copies of the weights; the head is fp32.
"""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.func import functional_call
from torch.nn.utils.parametrize import is_parametrized

from pixelpart.errors import UserError, choose
from pixelpart.fusing import fuse_relus

PRECISIONS: dict[str, torch.dtype | None] = {"fp32": None, "bf16": torch.bfloat16}


@contextmanager
def frozen(model: Any) -> Iterator[Any]:
    """The model in eval mode without weight gradients; modes and flags are put back, also after an exception."""
    if isinstance(model, Frozen) or not isinstance(model, nn.Module):
        yield model
        return
    modes = [(module, module.training) for module in model.modules()]
    flags = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    try:
        for module, _ in modes:
            module.training = False
        for parameter, _ in flags:
            parameter.requires_grad_(False)
        yield model
    finally:
        for module, training in modes:
            module.training = training
        for parameter, requires_grad in flags:
            parameter.requires_grad_(requires_grad)


class Linear(NamedTuple):
    """The weights of a linear layer behind global average pooling."""

    weight: Tensor
    bias: Tensor | None


class Part(NamedTuple):
    """One half of a classifier: a structure, and the tensors that fill it."""

    structure: nn.Module
    weights: dict[str, Tensor]

    def __call__(self, x: Tensor) -> Tensor:
        return functional_call(self.structure, self.weights, (x,)) if self.weights else self.structure(x)

    def bound(self) -> "Part":
        """The same with its weights in the structure itself: a call need not put them there, and they stay as now."""
        structure = copy.deepcopy(self.structure)
        structure.load_state_dict(self.weights, strict=False, assign=True)
        return Part(structure.requires_grad_(False), {})


@dataclass(frozen=True)
class Frozen:
    """A view of a classifier for the attack: features, head and logits; its tensors carry no gradient history."""

    features: Part
    head: Part
    pooled_linear: Linear | None

    def __call__(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))


class Folding:
    """Calling it gives the model's `Frozen` view at its present weights.

    `folded` says whether the structure could be read (by torch.fx) and batch norm folded; a model whose forward pass
    branches on its input, or one with hooks, is used as it is, in eval mode and its own precision: the same numbers,
    only slower. With `fuse`, convolution and ReLU are one operation of pixelpart.kernels: fewer passes over memory, and
    gradients with respect to images alone.
    """

    def __init__(self, model: nn.Module, *, dtype: torch.dtype | None = None, fuse: bool = False) -> None:
        self.model = model
        skeleton = copy.deepcopy(model).eval().to("meta")
        self._features: _Traced | _Called
        self._head: _Traced | _Called
        try:
            self._features = _Traced(skeleton, "features", fold=True, dtype=dtype, fuse=fuse)
            self._head = _Traced(skeleton, "head", fold=True, widen=dtype is not None)
        except Unreadable:
            self._features, self._head = _Called(skeleton, "features"), _Called(skeleton, "head")
        self.folded = isinstance(self._features, _Traced)
        self._fill: Callable[..., Any] = self._fill_both

    @torch.no_grad()
    def __call__(self, other: nn.Module | None = None) -> Frozen:
        """The view of this model, or of another with the same structure."""
        model = other or self.model
        features, head = self._fill({name: tensor.detach() for name, tensor in _tensors_of(model).items()})
        linear = getattr(model, "pooled_linear", None)
        if linear is not None:
            linear = Linear(linear.weight.detach(), None if linear.bias is None else linear.bias.detach())
        return Frozen(Part(self._features.structure, features), Part(self._head.structure, head), linear)

    def _fill_both(self, live: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        return self._features.fill(live), self._head.fill(live)

    def compile(self) -> None:
        """From now on the folding itself is a few kernels instead of a few for every layer."""
        self._fill = torch.compile(self._fill_both, dynamic=False, fullgraph=True)

    def interpret(self) -> None:
        """Undoes `compile`."""
        self._fill = self._fill_both


def searched(model: Any, *, dtype: torch.dtype | None = None, fuse: bool = False) -> Frozen | None:
    """A view of any module on images, folded, for a search through it; None if its structure cannot be read.

    With a narrower dtype all but the first convolution and the last linear layer is computed in it.
    """
    if not isinstance(model, nn.Module):
        return None
    split = hasattr(model, "features") and hasattr(model, "head") and hasattr(model, "pooled_linear")
    try:
        folding = Folding(model if split else _Unsplit(model), dtype=dtype, fuse=fuse)
    except Exception:  # a module that cannot be copied: there may be a lock in it, or a tensor with a history
        return None
    if not folding.folded:
        return None
    view = folding()
    return Frozen(view.features.bound(), view.head.bound(), view.pooled_linear)


def through(model: Any, search: str, device: torch.device) -> Any:
    """What a search in this precision goes through: in fp32 the model itself, in bf16 a view of it."""
    dtype = choose(PRECISIONS, search, "search")
    if dtype is None or isinstance(model, Frozen):
        return model
    view = searched(model, dtype=dtype, fuse=device.type == "cuda")
    if view is None:
        raise UserError(f"the model's structure cannot be read, so there is no search in {search}; choose fp32")
    return view


class _Unsplit(nn.Module):
    """A module without features and head, as if it were all features."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def features(self, x: Tensor) -> Tensor:
        return self.model(x)

    def head(self, logits: Tensor) -> Tensor:
        return logits


def freeze(model: nn.Module) -> Frozen:
    """A `Frozen` view of a classifier at its present weights."""
    return Folding(model)()


class Working:
    """The logits of a classifier in train mode, computed in bf16 behind the first convolution from its fp32 weights.

    Gradients reach the model's own parameters, and batch norm's statistics are the model's own. A model whose structure
    cannot be read raises Unreadable.
    """

    def __init__(self, model: nn.Module, *, dtype: torch.dtype) -> None:
        self.model = model
        skeleton = copy.deepcopy(model).train().to("meta")
        self._features = _Traced(skeleton, "features", fold=False, dtype=dtype)
        self._head = _Traced(skeleton, "head", fold=False, widen=True)

    def __call__(self, x: Tensor) -> Tensor:
        live = _tensors_of(self.model)
        for part in (self._features, self._head):
            x = Part(part.structure, part.fill(live))(x)
        return x


class Unreadable(Exception):
    """A network that cannot be traced: its forward pass does more than operations on its input and its weights."""


def _tensors_of(model: nn.Module) -> dict[str, Tensor]:
    return dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers(remove_duplicate=False))


class _Called:
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


class _Traced:
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
    ) -> None:
        tracer = fx.Tracer()
        tracer.traced_func_name = method
        skeleton = copy.deepcopy(skeleton)  # folding changes its modules
        if any(module._forward_hooks or module._forward_pre_hooks for module in skeleton.modules()):
            raise Unreadable("a graph would leave the model's hooks out")
        if any(map(is_parametrized, skeleton.modules())):
            raise Unreadable("its weights are made anew at every pass")
        known = _tensors_of(skeleton).keys()
        try:
            graph = tracer.trace(skeleton)
        except Exception as error:  # the model's own code, run on stand-ins for tensors: it may fail in any way
            raise Unreadable(str(error)) from error
        self.structure = fx.GraphModule(skeleton, graph)
        if not _tensors_of(self.structure).keys() <= known:
            raise Unreadable("it makes tensors of its own as it runs")
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
        self.structure.graph.lint()
        self.structure.delete_all_unused_submodules()
        self.structure.recompile()
        self.names = list(_tensors_of(self.structure))

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
            raise Unreadable("it has no convolution or linear layer")
        (first, _), *others = layers
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
                raise Unreadable("more than one layer reads the pixels")
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
