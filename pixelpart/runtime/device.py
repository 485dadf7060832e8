"""The device of a job."""

import platform
from contextlib import AbstractContextManager, nullcontext

import torch

from pixelpart.errors import UserError


def choose_device(name: torch.device | str | None) -> torch.device:
    """The named device, else the current GPU, else the CPU; a GPU is returned with its index."""
    if name is None:
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        if device.type == "meta":
            raise RuntimeError
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError, ImportError):  # hpu: torch knows the name and imports a module for it
        choices = "cpu, cuda" if torch.cuda.is_available() else "cpu"
        raise UserError(f"no device {str(name)!r} here; choose from {choices}") from None


def current(device: torch.device | str) -> AbstractContextManager[object]:
    """Makes a GPU the current device: graph capture and Triton use it, wherever the tensors are."""
    return torch.cuda.device(device) if torch.device(device).type == "cuda" else nullcontext()


def machine(device: torch.device) -> str:
    """The hardware and torch version, without a host name."""
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}"
    return f"{platform.machine()} CPU, {torch.get_num_threads()} threads, torch {torch.__version__}"
