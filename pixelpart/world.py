"""Who else takes part in a run: one process, or `size` of them, each with its slice of the work."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class World:
    rank: int = 0
    size: int = 1

    @property
    def leads(self) -> bool:
        """Whether this process is the one that writes to disk and to the screen."""
        return self.rank == 0

    def slice(self, n: int) -> slice:
        """This process's share of n rows: contiguous, and within one row of every other share."""
        return slice(n * self.rank // self.size, n * (self.rank + 1) // self.size)

    def any_of(self, flags: "Tensor") -> "Tensor":
        """The flags that are set in any process, in all of them."""
        if self.size == 1:
            return flags
        import torch.distributed as dist

        counts = flags.int()
        dist.all_reduce(counts)
        return counts > 0


@contextmanager
def joined() -> Iterator[World]:
    """The world of this process: alone, or one of those that torchrun has started, which are connected meanwhile."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield World()
        return
    import gc

    import torch.distributed as dist

    dist.init_process_group("gloo")
    try:
        yield World(dist.get_rank(), size)
    finally:
        gc.collect()  # gloo aborts at exit now and then if anything still holds on to the group
        dist.destroy_process_group()


def local_device() -> str | None:
    """The GPU of this process among those that torchrun has started on this machine, if it has one."""
    import torch

    number = os.environ.get("LOCAL_RANK")
    return f"cuda:{number}" if number is not None and int(number) < torch.cuda.device_count() else None
