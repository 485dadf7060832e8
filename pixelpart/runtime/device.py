"""Where the work is done."""

from contextlib import AbstractContextManager, nullcontext

import torch

from pixelpart.errors import UserError


def choose_device(name: torch.device | str | None) -> torch.device:
    """The device asked for, else the current GPU, else the CPU; a GPU always with its number."""
    if name is None:
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        return torch.empty(0, device=torch.device(name)).device
    except (RuntimeError, AssertionError):
        there = "cpu, cuda" if torch.cuda.is_available() else "cpu"
        raise UserError(f"no device {str(name)!r} here; choose from {there}") from None


def current(device: torch.device | str) -> AbstractContextManager[object]:
    """Within, a GPU is the current one: graphs are captured and Triton launches there, wherever the tensors are."""
    return torch.cuda.device(device) if torch.device(device).type == "cuda" else nullcontext()
