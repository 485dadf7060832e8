"""Averages over the processes of a run, each of which computes on its slice of the batch.

The weights are equal in all processes at every step. Batch norm normalises by a process's own slice; its running
statistics are averaged.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from pixelpart.runtime.world import World


def means(tensors: Sequence[Tensor], n: int, world: World) -> Sequence[Tensor]:
    """Each tensor's mean over the processes, weighted by their numbers of images, n in this process."""
    if world.size == 1 or not tensors:
        return tensors
    parts = [n * tensor.flatten() for tensor in tensors]
    *sums, images = world.total(torch.cat([*parts, parts[0].new_tensor([n])])).split([*map(len, parts), 1])
    return [(part / images).view_as(tensor) for part, tensor in zip(sums, tensors, strict=True)]


@torch.no_grad()
def average_in_place(tensors: list[Tensor], n: int, world: World) -> None:
    """Replaces each tensor by its mean over the processes."""
    if world.size > 1 and tensors:
        torch._foreach_copy_(tensors, list(means(tensors, n, world)))
