"""Where the work is done."""

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
