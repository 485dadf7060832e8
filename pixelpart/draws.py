"""Every random draw is a function of (seed, stream, epoch, step): no generator state is ever carried or saved."""

import hashlib

import torch


def generator(
    seed: int, stream: str, epoch: int = 0, step: int = 0, *, device: torch.device | str = "cpu"
) -> torch.Generator:
    """A fresh generator whose numbers depend on these four and the device's kind alone."""
    digest = hashlib.blake2b(f"{seed}/{stream}/{epoch}/{step}".encode(), digest_size=8).digest()
    return torch.Generator(device).manual_seed(int.from_bytes(digest, "little") >> 1)
