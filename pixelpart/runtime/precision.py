"""The precisions of a run: the fastest, and IEEE fp32, which decides whether an image is classified correctly."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from pixelpart.runtime.device import current

PRECISIONS: dict[str, torch.dtype | None] = {"fp32": None, "bf16": torch.bfloat16}


@contextmanager
def ieee_fp32(device: torch.device | str = "cpu") -> Iterator[None]:
    """Disables TF32, bf16 products and autocast, and makes the device current; restores the settings afterwards."""
    backends: Any = torch.backends
    kernels = [backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn]
    kernels += [backends.mkldnn.matmul, backends.mkldnn.conv, backends.mkldnn.rnn]
    before = [kernel.fp32_precision for kernel in kernels]
    # torch refuses to read the older two settings if they contradict the newer ones, so both are set
    try:
        older = torch.get_float32_matmul_precision(), backends.cudnn.allow_tf32
    except RuntimeError:
        older = None
    try:
        if older is not None:
            torch.set_float32_matmul_precision("highest")
            backends.cudnn.allow_tf32 = False
        for kernel in kernels:
            kernel.fp32_precision = "ieee"
        with current(device), torch.autocast(torch.device(device).type, enabled=False):
            yield
    finally:
        if older is not None:
            torch.set_float32_matmul_precision(older[0])
            backends.cudnn.allow_tf32 = older[1]
        for kernel, value in zip(kernels, before, strict=True):
            kernel.fp32_precision = value


@contextmanager
def fast_arithmetic() -> Iterator[None]:
    """Lets cuDNN benchmark its algorithms and fp32 products use TF32; both settings are restored on exit."""
    try:
        products = torch.get_float32_matmul_precision()
    except RuntimeError:  # set through torch's newer switches, which stay as they are
        products = None
    with cudnn_benchmark(True):
        try:
            if products is not None:
                torch.set_float32_matmul_precision("high")
            yield
        finally:
            if products is not None:
                torch.set_float32_matmul_precision(products)


@contextmanager
def cudnn_benchmark(enabled: bool) -> Iterator[None]:
    """Sets whether cuDNN chooses its algorithms by timing them; restored on exit."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = enabled
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before
