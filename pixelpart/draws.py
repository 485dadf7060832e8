"""Every random draw is a function of (seed, stream, epoch, step): no generator state is ever saved.

`generator` is for draws of a whole batch. `hashed` is for searches in which samples come and go: the draws of a sample
depend on its own key and a counter, not on the rest of the batch, and are made by tensor operations only.
"""

import hashlib

import torch
from jaxtyping import Float, Int
from torch import Tensor

Keys = Int[Tensor, " b"]

# constants of splitmix64 (Steele, Lea and Flood 2014), in two's complement
_GOLDEN, _FIRST, _SECOND = (n - 2**64 for n in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def generator(
    seed: int, stream: str, epoch: int = 0, step: int = 0, *, device: torch.device | str = "cpu"
) -> torch.Generator:
    """A fresh generator whose numbers depend only on these four and the type of device."""
    return torch.Generator(device).manual_seed(_digest(seed, stream, epoch, step))


def seed_torch(seed: int, stream: str, epoch: int = 0, step: int = 0) -> None:
    """Seeds torch's global generators from these four, for code that uses no other: dropout in a network."""
    torch.manual_seed(_digest(seed, stream, epoch, step))


def keys(seed: int, stream: str, samples: Int[Tensor, " b"], number: int | Int[Tensor, " b"] = 0) -> Keys:
    """A key for each sample, from which `hashed` makes its draws; `number` counts the tries on the same sample."""
    return _mix(_mix(samples.long() + _digest(seed, stream, 0, 0)) + number)


def hashed(keys: Keys, n: int, *, counter: int | Int[Tensor, " b"] = 0) -> Float[Tensor, "b {n}"]:
    """n uniform numbers in [0, 1) for each key, of 24 bits; another counter gives other numbers."""
    row = _mix(keys + _mix(torch.zeros_like(keys) + counter))
    bits = _mix(row[:, None] + torch.arange(n, device=keys.device))
    return _shifted(bits, 40).float() * 2.0**-24


def hashed_normal(keys: Keys, n: int) -> Float[Tensor, "b {n}"]:
    """n standard normal numbers for each key, by Box and Muller 1958: sqrt(-2 log(1 - u)) cos(2 pi v)."""
    u, v = hashed(keys, 2 * n).chunk(2, dim=1)
    return (-2 * (1 - u).log()).sqrt() * (2 * torch.pi * v).cos()


def _digest(seed: int, stream: str, epoch: int, step: int) -> int:
    digest = hashlib.blake2b(f"{seed}/{stream}/{epoch}/{step}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def _mix(z: Tensor) -> Tensor:
    """The mixing function of splitmix64."""
    z = z + _GOLDEN
    z = (z ^ _shifted(z, 30)) * _FIRST
    z = (z ^ _shifted(z, 27)) * _SECOND
    return z ^ _shifted(z, 31)


def _shifted(z: Tensor, bits: int) -> Tensor:
    """Logical right shift: z >> bits with zeros from the left."""
    return (z >> bits) & (2 ** (64 - bits) - 1)
