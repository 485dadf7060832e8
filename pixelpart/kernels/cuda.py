"""Kernels written in CUDA: compiled when first needed, by the compiler library that comes with torch."""

import ctypes
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES


class Refused(RuntimeError):
    """A kernel is not to be had: no library, no compiler, shapes or a device that it is not for."""


@dataclass(frozen=True)
class Kernel:
    """A function on the device."""

    function: ctypes.c_void_p
    shared: int  # bytes of shared memory of a block
    device: torch.device

    def __call__(self, blocks: int, threads: int, *arguments: Tensor | int | None) -> None:
        """Tensors are passed as pointers, None as a null pointer, numbers as int."""
        values = [ctypes.c_int(a) if isinstance(a, int) else ctypes.c_void_p(_pointer(a)) for a in arguments]
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        with torch.cuda.device(self.device):
            stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
            launch = self.function, blocks, 1, 1, threads, 1, 1, self.shared, stream, pointers, None
            _check(_driver().cuLaunchKernel(*launch))


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


def _pointer(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


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
