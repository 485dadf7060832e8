"""cuDNN's operation graphs through its C interface: a convolution and what follows it as one kernel.

torch offers convolution + bias + ReLU, but not the gradient of a convolution's input with ReLU's gradient behind it:
there that is a pass of its own over memory. cuDNN makes a kernel of such a chain at run time. The library is the one
that torch has loaded; names and numbers are those of its header, cudnn_graph.h.
"""

import ctypes
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from pixelpart.kernels.cuda import Refused

CANDIDATES = 6  # plans that are made and timed, the most promising ones first by cuDNN's own reckoning
RUNS = 20  # of each, timed
HEAD_START = 4_000_000  # cycles of the device, in which the host puts so many runs into its queue

# cudnnBackendDescriptorType_t
POINTWISE, CONVOLUTION, ENGINE_CONFIG, HEURISTICS, PLAN = 0, 1, 3, 4, 5
BACKWARD_DATA, POINTWISE_OPERATION, GRAPH, PACK, TENSOR = 12, 13, 15, 16, 17
# cudnnBackendAttributeType_t, and what it is in C
HANDLE, DATA_TYPE, BOOLEAN, INT64, FLOAT, POINTER, CONVOLUTION_MODE, HEURISTICS_MODE = 0, 1, 2, 3, 4, 6, 7, 8
POINTWISE_MODE, DESCRIPTOR = 14, 15
POINTERS = dict.fromkeys((HANDLE, POINTER, DESCRIPTOR), ctypes.c_void_p)
IN_C: dict[int, Any] = {BOOLEAN: ctypes.c_bool, INT64: ctypes.c_int64, FLOAT: ctypes.c_float, **POINTERS}
# values of enumerations
FP32, BF16, CROSS_CORRELATION, ADD, RELU_BACKWARD, MODE_A = 0, 9, 1, 0, 200, 3
# our numbers for the tensors of a graph
GRAD, WEIGHT, RESULT, OTHER, RECTIFIED, BETWEEN, SUM = range(1, 8)

Attribute = tuple[int, int, Any]  # name, type, value or values


_wanted = False  # for all threads: backward passes run in one of their own


@contextmanager
def made_to_measure() -> Iterator[None]:
    """Within, kernels are made for new shapes: a second each, worth it where a shape is met thousands of times."""
    global _wanted
    before, _wanted = _wanted, True
    try:
        yield
    finally:
        _wanted = before


@dataclass(frozen=True)
class Plan:
    """A kernel for tensors of known shapes."""

    descriptor: ctypes.c_void_p
    workspace: int  # bytes

    def __call__(self, tensors: dict[int, Tensor]) -> None:
        spare = torch.empty(self.workspace, dtype=torch.uint8, device=tensors[RESULT].device)
        pack = _describe(
            PACK,
            (1000, INT64, list(tensors)),  # unique ids
            (1001, POINTER, [tensor.data_ptr() for tensor in tensors.values()]),  # data
            (1003, POINTER, [spare.data_ptr()]),  # workspace
        )
        handle = _handle(spare.device)
        with torch.cuda.device(spare.device):
            _check("cudnnSetStream", handle, ctypes.c_void_p(torch.cuda.current_stream().cuda_stream))
            _check("cudnnBackendExecute", handle, self.descriptor, pack)
        _check("cudnnBackendDestroyDescriptor", pack)


def input_gradient(grad: Tensor, weight: Tensor, rectified: Tensor, other: Tensor | None, padding: int) -> Tensor:
    """where(rectified > 0, g + other, 0), g the gradient of what a convolution of stride 1 read; Refused if it cannot.

    All in bf16 and channels last; `rectified` is what the convolution read, out of a ReLU.
    """
    result = torch.empty_like(rectified)
    tensors = {GRAD: grad, WEIGHT: weight, RESULT: result, RECTIFIED: rectified}
    if other is not None:
        tensors[OTHER] = other
    nhwc = all(tensor.is_contiguous(memory_format=torch.channels_last) for tensor in tensors.values())
    if not nhwc or any(tensor.dtype != torch.bfloat16 or tensor.data_ptr() % 16 for tensor in tensors.values()):
        raise Refused("not bf16, channels last and aligned")
    shapes = tuple((number, tuple(tensor.shape)) for number, tensor in tensors.items())
    key = (shapes, padding, grad.device)
    if key not in _CHOSEN:
        if not _wanted or torch.cuda.is_current_stream_capturing():
            raise Refused("not made yet, and not to be made now")
        _CHOSEN[key] = _fastest(_plans(dict(shapes), padding, grad.device), tensors)
    plan = _CHOSEN[key]
    if plan is None:
        raise Refused(f"no kernel for {shapes}")
    plan(tensors)
    return result


_CHOSEN: dict[Any, Plan | None] = {}


def _plans(shapes: dict[int, tuple[int, ...]], padding: int, device: torch.device) -> list[Plan]:
    """Kernels for this gradient, those that cuDNN holds to be the fastest first."""
    try:
        graph = _graph(shapes, padding, device)
        heuristics = _describe(HEURISTICS, (201, DESCRIPTOR, [graph]), (200, HEURISTICS_MODE, [MODE_A]))
        configs = _configs(heuristics)
    except Refused:
        return []
    with ThreadPoolExecutor(max_workers=CANDIDATES) as pool:  # each compiles for a good part of a second
        return [plan for plan in pool.map(lambda config: _plan(config, device), configs) if plan is not None]


def _graph(shapes: dict[int, tuple[int, ...]], padding: int, device: torch.device) -> ctypes.c_void_p:
    """gradient of the input, + other if there is one, then ReLU's gradient."""
    tensors = {number: _tensor(number, shape, virtual=False) for number, shape in shapes.items()}
    between = _tensor(BETWEEN, shapes[RESULT], virtual=True)
    convolution = _describe(
        CONVOLUTION,
        (100, DATA_TYPE, [FP32]),  # computed in
        (101, CONVOLUTION_MODE, [CROSS_CORRELATION]),
        (102, INT64, [1, 1]),  # dilation
        (103, INT64, [1, 1]),  # stride
        (104, INT64, [padding] * 2),  # behind
        (105, INT64, [padding] * 2),  # before
        (106, INT64, [2]),  # spatial dimensions
    )
    operations = [
        _describe(
            BACKWARD_DATA,
            (706, FLOAT, [1.0]),  # dx = 1 * gradient
            (707, FLOAT, [0.0]),  # + 0 * dx
            (708, DESCRIPTOR, [convolution]),
            (709, DESCRIPTOR, [tensors[WEIGHT]]),  # w
            (710, DESCRIPTOR, [between]),  # dx
            (711, DESCRIPTOR, [tensors[GRAD]]),  # dy
        )
    ]
    if OTHER in tensors:
        total = _tensor(SUM, shapes[RESULT], virtual=True)
        operations.append(_pointwise(ADD, (751, between), (752, tensors[OTHER]), (753, total)))  # x, b, y
        between = total
    ends = (751, tensors[RECTIFIED]), (757, between), (756, tensors[RESULT])  # x, dy, dx
    operations.append(_pointwise(RELU_BACKWARD, *ends))
    return _describe(GRAPH, (800, HANDLE, [_handle(device)]), (801, DESCRIPTOR, operations))


def _tensor(number: int, shape: Sequence[int], *, virtual: bool) -> ctypes.c_void_p:
    b, c, h, w = shape
    return _describe(
        TENSOR,
        (900, INT64, [16]),  # alignment in bytes
        (901, DATA_TYPE, [FP32 if virtual else BF16]),
        (902, INT64, [b, c, h, w]),  # shape
        (903, INT64, [c * h * w, 1, c * w, c]),  # strides: channels last
        (906, INT64, [number]),  # unique id
        (907, BOOLEAN, [virtual]),  # never in memory
    )


def _pointwise(mode: int, *tensors: tuple[int, ctypes.c_void_p]) -> ctypes.c_void_p:
    what = _describe(POINTWISE, (0, POINTWISE_MODE, [mode]), (1, DATA_TYPE, [FP32]))
    return _describe(
        POINTWISE_OPERATION, (750, DESCRIPTOR, [what]), *((name, DESCRIPTOR, [tensor]) for name, tensor in tensors)
    )


def _configs(heuristics: ctypes.c_void_p) -> list[ctypes.c_void_p]:
    """The first engine configurations that the heuristics name."""
    found = [_create(ENGINE_CONFIG) for _ in range(CANDIDATES)]
    return found[: _read(heuristics, 202, DESCRIPTOR, (ctypes.c_void_p * CANDIDATES)(*found))]


def _plan(config: ctypes.c_void_p, device: torch.device) -> Plan | None:
    try:
        with torch.cuda.device(device):
            plan = _describe(PLAN, (400, HANDLE, [_handle(device)]), (401, DESCRIPTOR, [config]))
        size = (ctypes.c_int64 * 1)()
        _read(plan, 402, INT64, size)  # of the workspace
    except Refused:
        return None
    return Plan(plan, size[0])


def _fastest(plans: list[Plan], tensors: dict[int, Tensor]) -> Plan | None:
    """The plan that takes the least time on these tensors, whose result is overwritten."""
    times = {}
    for number, plan in enumerate(plans):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        try:
            plan(tensors)
            torch.cuda._sleep(HEAD_START)  # the device is to wait for nothing but itself
            first.record()
            for _ in range(RUNS):
                plan(tensors)
            last.record()
        except Refused:
            continue
        last.synchronize()
        times[number] = first.elapsed_time(last)
    return plans[min(times, key=times.__getitem__)] if times else None


# -- the C interface


def _describe(kind: int, *attributes: Attribute) -> ctypes.c_void_p:
    """A finished descriptor. It is not freed: a process makes some for every layer, once."""
    descriptor = _create(kind)
    for name, type_, values in attributes:
        array = (IN_C.get(type_, ctypes.c_int) * len(values))(*values)
        _check("cudnnBackendSetAttribute", descriptor, name, type_, ctypes.c_int64(len(values)), array)
    _check("cudnnBackendFinalize", descriptor)
    return descriptor


def _read(descriptor: ctypes.c_void_p, name: int, type_: int, array: Any) -> int:
    """Fills the array from an attribute, and says how many elements there are."""
    room, count = ctypes.c_int64(len(array)), ctypes.c_int64()
    _check("cudnnBackendGetAttribute", descriptor, name, type_, room, ctypes.byref(count), array)
    return min(count.value, len(array))


def _create(kind: int) -> ctypes.c_void_p:
    descriptor = ctypes.c_void_p()
    _check("cudnnBackendCreateDescriptor", kind, ctypes.byref(descriptor))
    return descriptor


@cache
def _handle(device: torch.device) -> ctypes.c_void_p:
    handle = ctypes.c_void_p()
    with torch.cuda.device(device):
        _check("cudnnCreate", ctypes.byref(handle))
    return handle


def _check(function: str, *args: Any) -> None:
    status = _function(function)(*args)
    if status:
        raise Refused(f"{function} returns {status}")


@cache
def _function(name: str) -> Callable[..., int]:
    try:
        found: Any = getattr(ctypes.CDLL("libcudnn.so.9"), name)
    except (OSError, AttributeError) as error:
        raise Refused(str(error)) from None
    return found
