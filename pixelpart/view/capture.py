"""CUDA graphs: kernels are recorded once and then replayed without the cost of launching them from Python.

A replay runs the same kernels on the same addresses: inputs are copied into buffers first, and results are overwritten
by the next replay.
"""

import os
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")
WARM_UPS = 3


def record(
    work: Callable[[], T], *, pool: Any = None, between: Callable[[], object] = lambda: None
) -> tuple[torch.cuda.CUDAGraph, T]:
    """The graph of the work, and what the work returns: tensors that a replay fills.

    The work first runs a few times, so that libraries choose their kernels; then `between` is called.
    """
    side = _side_stream(torch.cuda.current_device())
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UPS):
            work()
    torch.cuda.current_stream().wait_stream(side)
    between()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        result = work()
    return graph, result


@cache
def _side_stream(device: int) -> torch.cuda.Stream:
    """One stream for all warm-ups: cuBLAS keeps a workspace for every stream that was ever used."""
    return torch.cuda.Stream(device)


class Replayed:
    """A function of tensors, captured once per shape and then replayed; the next call overwrites its result."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self._graphs: dict[tuple[Any, ...], tuple[torch.cuda.CUDAGraph, Any, list[Tensor]]] = {}

    def __call__(self, *inputs: Tensor) -> Any:
        shapes = tuple((tensor.shape, tensor.stride(), tensor.dtype) for tensor in inputs)
        if shapes not in self._graphs:
            buffers = [tensor.clone() for tensor in inputs]
            self._graphs[shapes] = (*record(lambda: self.function(*buffers)), buffers)
        graph, result, buffers = self._graphs[shapes]
        for buffer, value in zip(buffers, inputs, strict=True):
            buffer.copy_(value)
        graph.replay()
        return result


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function compiled as one graph with static shapes.

    torch limits the compiled versions per code object, over all runs of a process, so each caller gets a copy.
    """
    assert isinstance(function, FunctionType)
    code, closure = function.__code__.replace(), function.__closure__
    own = FunctionType(code, function.__globals__, function.__name__, function.__defaults__, closure)
    own.__kwdefaults__ = function.__kwdefaults__
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(_private_cache()))
    return torch.compile(own, dynamic=False, fullgraph=True)


@cache
def _private_cache() -> Path:
    """A folder of the user's own for compiled code, which is loaded from there: torch's default is in a shared /tmp."""
    try:
        folder = Path.home() / ".cache" / "pixelpart" / "compiled"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
        return folder
    except (OSError, RuntimeError):  # no home, or not writable: only for this process
        return Path(tempfile.mkdtemp(prefix="pixelpart-"))
