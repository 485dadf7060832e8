"""Kernels written in CUDA: compiled when first needed, by the compiler library that comes with torch."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
EARLY = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
BF16, SWIZZLE_128, PROMOTE_256 = 9, 3, 3  # CUtensorMapDataType, CUtensorMapSwizzle, CUtensorMapL2promotion


class Refused(RuntimeError):
    """A kernel is not to be had: no library, no compiler, shapes or a device that it is not for."""


@dataclass(frozen=True, eq=False)
class Kernel:
    """A function on the device."""

    function: ctypes.c_void_p
    shared: int  # bytes of shared memory of a block
    device: torch.device

    def __call__(self, blocks: int, threads: int, *arguments: Tensor | int | ctypes.Structure | None) -> None:
        """Tensors are passed as pointers, None as a null pointer, numbers as int, structures as they are."""
        values = [_argument(argument) for argument in arguments]
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        with torch.cuda.device(self.device):
            early = _Attribute(id=EARLY, value=1)
            stream = torch.cuda.current_stream().cuda_stream
            launch = _Launch((blocks, 1, 1), (threads, 1, 1), self.shared, stream, ctypes.addressof(early), 1)
            _check(_driver().cuLaunchKernelEx(ctypes.byref(launch), self.function, pointers, None))

    @cache  # noqa: B019 (kernels are kept anyway)
    def clusters(self, threads: int, size: int) -> int:
        """How many clusters of so many blocks run at a time."""
        count = ctypes.c_int()
        launch = _Launch((size, 1, 1), (threads, 1, 1), self.shared)
        with torch.cuda.device(self.device):
            _check(_driver().cuOccupancyMaxActiveClusters(ctypes.byref(count), self.function, ctypes.byref(launch)))
        return count.value


class _Attribute(ctypes.Structure):  # CUlaunchAttribute
    _fields_ = [("id", ctypes.c_int), ("gap", ctypes.c_int), ("value", ctypes.c_int), ("rest", ctypes.c_int * 15)]


class _Launch(ctypes.Structure):  # CUlaunchConfig
    _fields_ = [
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("count", ctypes.c_uint),
    ]


@cache
def kernel(
    name: str, head: str, defines: tuple[tuple[str, int], ...], shared: int, device: torch.device
) -> Kernel | None:
    """The function `name` of the file of that name beside this one, with `head` before its text; None: not here."""
    text = head + Path(__file__).with_name(f"{name}.cu").read_text()
    major, minor = torch.cuda.get_device_capability(device)
    options = [f"--gpu-architecture=sm_{major}{minor}a", "--std=c++17", *(f"-D{key}={value}" for key, value in defines)]
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    try:
        with torch.cuda.device(device):
            _check(_driver().cuModuleLoadData(ctypes.byref(module), compiled(text, options)))
            _check(_driver().cuModuleGetFunction(ctypes.byref(function), module, name.encode()))
            _check(_driver().cuFuncSetAttribute(function, SHARED, shared))
    except Refused:
        return None
    return Kernel(function, shared, device)


def compiled(text: str, options: list[str]) -> bytes:
    """The text as machine code of the device."""
    library, program, size = _compiler(), ctypes.c_void_p(), ctypes.c_size_t()
    _check(library.nvrtcCreateProgram(ctypes.byref(program), text.encode(), None, 0, None, None))
    try:
        given = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        if library.nvrtcCompileProgram(program, len(options), given):
            _check(library.nvrtcGetProgramLogSize(program, ctypes.byref(size)))
            log = ctypes.create_string_buffer(size.value)
            _check(library.nvrtcGetProgramLog(program, log))
            raise Refused(log.value.decode())
        _check(library.nvrtcGetCUBINSize(program, ctypes.byref(size)))
        code = ctypes.create_string_buffer(size.value)
        _check(library.nvrtcGetCUBIN(program, code))
        return code.raw
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


class Map(ctypes.Structure):
    """A tensor as the tensor memory accelerator sees it: where it lies, and the boxes that are fetched of it."""

    _fields_ = [("words", ctypes.c_uint64 * 16)]


def map_of(tensor: Tensor, sizes: Sequence[int], strides: Sequence[int], box: Sequence[int]) -> Map:
    """Of a tensor in bf16; the innermost size first, whose stride is 1 and is not given."""
    rank, room = len(sizes), ctypes.create_string_buffer(ctypes.sizeof(Map) + 64)
    place = -(-ctypes.addressof(room) // 64) * 64  # the driver wants it there
    status = _driver().cuTensorMapEncodeTiled(
        ctypes.c_void_p(place),
        BF16,
        rank,
        ctypes.c_void_p(tensor.data_ptr()),
        (ctypes.c_uint64 * rank)(*sizes),
        (ctypes.c_uint64 * (rank - 1))(*(stride * tensor.element_size() for stride in strides)),
        (ctypes.c_uint32 * rank)(*box),
        (ctypes.c_uint32 * rank)(*[1] * rank),
        0,  # not interleaved
        SWIZZLE_128,
        PROMOTE_256,
        0,  # zeros outside
    )
    _check(status)
    return Map.from_buffer_copy(ctypes.string_at(place, ctypes.sizeof(Map)))


def accumulators(count: int) -> str:
    """So many numbers d[i] as assembly and C name them, for the head of a kernel's text."""
    names, registers = (", ".join(form.format(i) for i in range(count)) for form in ("%{}", '"+f"(d[{}])'))
    return f'#define ACCUMULATORS "{names}"\n#define REGISTERS(d) {registers}\n'


def fits(tensor: Tensor) -> bool:
    """Whether a kernel can read it: bf16, channels last and aligned."""
    nhwc = tensor.is_contiguous(memory_format=torch.channels_last)
    return nhwc and tensor.dtype == torch.bfloat16 and tensor.data_ptr() % 16 == 0


@cache
def hopper(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) == (9, 0)


@cache
def processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


def _argument(value: Tensor | int | ctypes.Structure | None) -> Any:
    if isinstance(value, ctypes.Structure):
        return value
    return ctypes.c_int(value) if isinstance(value, int) else ctypes.c_void_p(0 if value is None else value.data_ptr())


@cache
def _compiler() -> Any:
    return _library(f"libnvrtc.so.{(torch.version.cuda or '0').split('.')[0]}")


@cache
def _driver() -> Any:
    return _library("libcuda.so.1")


def _library(name: str) -> Any:
    try:
        return ctypes.CDLL(name)
    except OSError as error:
        raise Refused(str(error)) from None


def _check(status: int) -> None:
    if status:
        raise Refused(f"status {status}")
