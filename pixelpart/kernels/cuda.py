"""CUDA kernels: compiled at first use by NVRTC, which comes with torch, and launched through the driver."""

import ctypes
import warnings
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
LINE, BOX, SQUARE = 128, 16384, 8192  # bytes of 64 channels, 128 pixels, 64 x 64 weights (as in hopper.cuh)
ROOM = 227 * 1024  # bytes of shared memory of a block


class Unsupported(RuntimeError):
    """Kernel unavailable: no library or compiler, or shapes or a device that it does not support."""


@dataclass(frozen=True, eq=False)
class Kernel:
    """A compiled kernel on a device."""

    function: ctypes.c_void_p
    device: torch.device

    def __call__(self, blocks: int, threads: int, work: ctypes.Structure) -> None:
        """Launches it. It may start before the previous kernel has ended and waits for that itself."""
        pointers = (ctypes.c_void_p * 1)(ctypes.addressof(work))
        with torch.cuda.device(self.device):
            early = _Attribute(id=EARLY, value=1)
            stream = torch.cuda.current_stream().cuda_stream
            launch = _Launch((blocks, 1, 1), (threads, 1, 1), ROOM, stream, ctypes.addressof(early), 1)
            _check_status(_driver().cuLaunchKernelEx(ctypes.byref(launch), self.function, pointers, None))

    @cache  # noqa: B019 (kernels are never freed)
    def clusters(self, threads: int, size: int) -> int:
        """The number of clusters of `size` blocks that run at the same time."""
        count = ctypes.c_int()
        launch = _Launch((size, 1, 1), (threads, 1, 1), ROOM)
        with torch.cuda.device(self.device):
            _check_status(
                _driver().cuOccupancyMaxActiveClusters(ctypes.byref(count), self.function, ctypes.byref(launch))
            )
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
def load_kernel(name: str, numbers: int, defines: tuple[tuple[str, int], ...], device: torch.device) -> Kernel | None:
    """The kernel `name` of NAME.cu; None, with a warning, if it cannot be compiled.

    `numbers` is the count of sums that each thread holds of a matrix product.
    """
    here = Path(__file__)
    text = product(numbers) + here.with_name("hopper.cuh").read_text() + here.with_name(f"{name}.cu").read_text()
    major, minor = torch.cuda.get_device_capability(device)
    options = [f"--gpu-architecture=sm_{major}{minor}a", "--std=c++17", *(f"-D{key}={value}" for key, value in defines)]
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    try:
        with torch.cuda.device(device):
            _check_status(_driver().cuModuleLoadData(ctypes.byref(module), compile_source(text, options)))
            _check_status(_driver().cuModuleGetFunction(ctypes.byref(function), module, name.encode()))
            _check_status(_driver().cuFuncSetAttribute(function, SHARED, ROOM))
    except Unsupported as error:
        warnings.warn(f"kernel {name} unavailable, falling back to cuDNN: {error}", stacklevel=2)
        return None
    return Kernel(function, device)


def compile_source(text: str, options: list[str]) -> bytes:
    """The source compiled to machine code."""
    library, program, size = _compiler(), ctypes.c_void_p(), ctypes.c_size_t()
    _check_status(library.nvrtcCreateProgram(ctypes.byref(program), text.encode(), None, 0, None, None))
    try:
        arguments = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        if library.nvrtcCompileProgram(program, len(options), arguments):
            _check_status(library.nvrtcGetProgramLogSize(program, ctypes.byref(size)))
            log = ctypes.create_string_buffer(size.value)
            _check_status(library.nvrtcGetProgramLog(program, log))
            raise Unsupported(log.value.decode())
        _check_status(library.nvrtcGetCUBINSize(program, ctypes.byref(size)))
        code = ctypes.create_string_buffer(size.value)
        _check_status(library.nvrtcGetCUBIN(program, code))
        return code.raw
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


class TensorMap(ctypes.Structure):
    """A tensor map for the tensor memory accelerator: address, shape, and the box that a fetch copies."""

    _fields_ = [("words", ctypes.c_uint64 * 16)]


def map_of(tensor: Tensor, sizes: Sequence[int], strides: Sequence[int], box: Sequence[int]) -> TensorMap:
    """The map of a bf16 tensor; sizes and box from the innermost dimension on, whose stride is 1 and is left out."""
    rank, room = len(sizes), ctypes.create_string_buffer(ctypes.sizeof(TensorMap) + 64)
    address = -(-ctypes.addressof(room) // 64) * 64  # the driver requires this alignment
    status = _driver().cuTensorMapEncodeTiled(
        ctypes.c_void_p(address),
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
    _check_status(status)
    return TensorMap.from_buffer_copy(ctypes.string_at(address, ctypes.sizeof(TensorMap)))


def image_map(x: Tensor, box: Sequence[int]) -> TensorMap:
    """The map of images, or of every other pixel of them; `box` counts channels, columns, rows and images."""
    n, channels, height, width = x.shape
    return map_of(x, (channels, width, height, n), (x.stride(3), x.stride(2), x.stride(0)), box)


def weight_map(weight: Tensor, tall: int) -> TensorMap:
    """The map of weights; a box holds one tap of 64 channels for `tall` outputs."""
    outputs, inputs, height, width = weight.shape
    taps = height * width
    return map_of(weight, (inputs, taps, outputs), (inputs, taps * inputs), (LINE // 2, 1, tall))


def product(numbers: int) -> str:
    """The head of a kernel's source: the tensor core instruction for `numbers` sums per thread."""
    names, registers = (", ".join(form.format(i) for i in range(numbers)) for form in ("%{}", '"+f"(d[{}])'))
    shape, rest = f"m64n{2 * numbers}k16", f"%{numbers}, %{numbers + 1}, 1, 1, 1, %{numbers + 2}, 0;"
    return (
        f"#define NUMBERS {numbers}\n#define REGISTERS(d) {registers}\n"
        f'#define PRODUCT "wgmma.mma_async.sync.aligned.{shape}.f32.bf16.bf16 {{{names}}}, {rest}"\n'
    )


def readable(tensor: Tensor) -> bool:
    """Whether a kernel can read the tensor: bf16, channels last and aligned."""
    nhwc = tensor.is_contiguous(memory_format=torch.channels_last)
    return nhwc and tensor.dtype == torch.bfloat16 and tensor.data_ptr() % 16 == 0


@cache
def is_hopper(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) == (9, 0)


@cache
def processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


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
        raise Unsupported(str(error)) from None


def _check_status(status: int) -> None:
    if status:
        raise Unsupported(f"a CUDA or NVRTC call failed with status {status}")
