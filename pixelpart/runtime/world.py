"""The processes of a run: one, or `size` of them, each with its slice of the work."""

import json
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pixelpart.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class World:
    """This process's rank among `size` processes, and the operations that connect them."""

    rank: int = 0
    size: int = 1

    @property
    def leads(self) -> bool:
        """Whether this process writes to disk and to the screen."""
        return self.rank == 0

    def rows(self, n: int) -> slice:
        """This process's slice of a batch of n images; the whole batch if some process would have none.

        Every slice starts at an even row: CutMix mixes rows 0 and 1, 2 and 3, ..., as it does in a single process.
        """
        pairs = self.slice((n + 1) // 2)
        return slice(2 * pairs.start, min(2 * pairs.stop, n)) if n >= 2 * self.size - 1 else slice(0, n)

    def slice(self, n: int) -> slice:
        """This process's rows of n: contiguous; the sizes of all slices differ by at most one."""
        return slice(n * self.rank // self.size, n * (self.rank + 1) // self.size)

    def total(self, tensor: "Tensor") -> "Tensor":
        """The sum of the tensor over all processes."""
        if self.size == 1:
            return tensor
        import torch.distributed as dist

        summed = tensor.clone()
        with _connected():
            dist.all_reduce(summed)
        return summed

    def wait(self) -> None:
        """Waits until every process has called it."""
        if self.size > 1:
            import torch.distributed as dist

            with _connected():
                dist.barrier()

    def any_of(self, flags: "Tensor") -> "Tensor":
        """The flags that are set in any process."""
        return flags if self.size == 1 else self.total(flags.int()) > 0


SINGLE_PROCESS = World()


@contextmanager
def _connected() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # the process that ended reports why
        raise ConnectionError(f"another process has ended: {str(error).splitlines()[0]}") from None


@contextmanager
def joined() -> Iterator[World]:
    """The World of this process: one process, or those that torchrun started, connected while the context lasts.

    A process group that the caller has initialised is used and left open.
    """
    rank, size = (_number(name) for name in ("RANK", "WORLD_SIZE"))
    if (rank is None) != (size is None) and size != 1:
        known, lacking = ("RANK", "WORLD_SIZE") if size is None else ("WORLD_SIZE", "RANK")
        raise UserError(f"{known} is set, but {lacking} is not; torchrun sets both, for one process unset both")
    if rank is None or size in (None, 1):
        yield World()
        return
    import gc

    import torch.distributed as dist

    if dist.is_initialized():
        yield World(dist.get_rank(), dist.get_world_size())
        return
    assert size is not None
    if rank >= size:
        raise UserError(f"RANK is {rank}, but WORLD_SIZE is {size}: ranks are 0 to {size - 1}")
    if not (address := os.environ.get("MASTER_ADDR")) or _number("MASTER_PORT") is None:
        lacking = "MASTER_PORT" if address else "MASTER_ADDR"
        raise UserError(f"WORLD_SIZE is {size}, but {lacking} is not set; torchrun sets it")
    backend = "cpu:gloo,cuda:nccl" if dist.is_nccl_available() and local_device() else "gloo"
    try:
        dist.init_process_group(backend)
    except (RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ConnectionError(f"cannot reach {size - 1} other processes at MASTER_ADDR {address}: {reason}") from None
    try:
        yield World(dist.get_rank(), size)
    finally:
        gc.collect()  # gloo may abort at exit if anything still refers to the group
        dist.destroy_process_group()


def launch(workers: int, args: list[str]) -> int:
    """Runs `pixelpart ARGS` in `workers` processes with torchrun's agent; returns the exit code.

    If a worker fails, the others are ended. A UserError that a worker passes to `report_to_launcher` is raised here.
    """
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // workers)))
    config = LaunchConfig(
        1, 1, workers, run_id="pixelpart", rdzv_backend="c10d", rdzv_endpoint="localhost:0", max_restarts=0
    )
    logging.disable(logging.CRITICAL)  # the agent logs stack traces of its own
    try:
        elastic_launch(config, sys.executable)("-m", "pixelpart", *args)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        if failure.exitcode == 2:
            raise UserError(failure.message) from None
        if failure.exitcode < 0:
            print(f"pixelpart: worker {rank} was ended by {failure.signal_name()}", file=sys.stderr)
        return 1
    except SignalException:
        raise KeyboardInterrupt from None
    finally:
        logging.disable(logging.NOTSET)
    return 0


def report_to_launcher(error: UserError) -> int:
    """Writes the error to the file that `launch` reads; returns the exit code of a user's mistake."""
    Path(os.environ["TORCHELASTIC_ERROR_FILE"]).write_text(json.dumps({"message": str(error)}), encoding="utf-8")
    return 2


def is_first_process() -> bool:
    """Whether this process is the only one, or the first of those that torchrun started."""
    return not _number("RANK")


def local_device() -> str | None:
    """The GPU with the local rank that torchrun gave to this process, if there is one."""
    import torch

    number = _number("LOCAL_RANK")
    return f"cuda:{number}" if number is not None and number < torch.cuda.device_count() else None


def _number(variable: str) -> int | None:
    """The value of an environment variable, None if it is not set; UserError unless it is a whole number."""
    text = os.environ.get(variable)
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 9 or (variable == "WORLD_SIZE" and int(text) < 1):
        raise UserError(f"the environment variable {variable} is {text!r}, not a number of processes; torchrun sets it")
    return int(text)
