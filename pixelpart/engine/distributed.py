"""What the processes of one run do together, each after it has worked on its share of the batch.

Their weights are the same at every step. Batch norm sees a process's own share, and the statistics that it keeps are
averaged.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from pixelpart.runtime.world import World


def means(tensors: Sequence[Tensor], n: int, world: World) -> Sequence[Tensor]:
    """Each tensor's mean over the processes, weighed by the n images that this one has seen: as from all at once."""
    if world.size == 1 or not tensors:
        return tensors
    parts = [n * tensor.flatten() for tensor in tensors]
    *sums, images = world.total(torch.cat([*parts, parts[0].new_tensor([n])])).split([*map(len, parts), 1])
    return [(part / images).view_as(tensor) for part, tensor in zip(sums, tensors, strict=True)]


@torch.no_grad()
def average_gradients(model: nn.Module, n: int, world: World) -> None:
    """The gradient of the mean over n images becomes that over the images of all processes."""
    _average([parameter.grad for parameter in model.parameters() if parameter.grad is not None], n, world)


@torch.no_grad()
def average_statistics(model: nn.Module, n: int, world: World) -> None:
    """What batch norm keeps becomes the mean over the processes."""
    _average([buffer for buffer in model.buffers() if buffer.is_floating_point()], n, world)


def _average(tensors: list[Tensor], n: int, world: World) -> None:
    if world.size > 1 and tensors:
        torch._foreach_copy_(tensors, list(means(tensors, n, world)))
