"""Batches by epoch and step: the order of an epoch follows from (seed, epoch), so any batch can be made at any time."""

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch
from jaxtyping import Float32, Int64, UInt8
from torch import Tensor

from pixelpart.draws import generator
from pixelpart.errors import UserError
from pixelpart.runtime.world import SINGLE_PROCESS, World

PIECE = 4096  # images copied to the device at a time


@dataclass(frozen=True)
class Batch:
    images: Float32[Tensor, "b c h w"]  # pixels in [0, 1]
    labels: Int64[Tensor, " b"]
    index: Int64[Tensor, " b"]  # each image's number in the loader's tensors


def as_float(images: UInt8[Tensor, "b c h w"]) -> Float32[Tensor, "b c h w"]:
    """Pixels from 0..255 as floats in [0, 1]; used by training and evaluation, so that both see the same numbers."""
    assert images.dtype == torch.uint8, f"pixels are {images.dtype}"
    return images.to(torch.float32).div_(255)


class Loader:
    """Every image once per epoch in random order, with a smaller last batch; each rank takes its slice of a batch.

    Images that fit on the device are copied there. Otherwise they stay in main memory or in a mapped file, and a thread
    gathers the next batch during the current step.
    """

    def __init__(
        self,
        images: UInt8[Tensor, "n c h w"],
        labels: Int64[Tensor, " n"],
        *,
        batch_size: int,
        seed: int,
        rows: Int64[Tensor, " m"] | None = None,
        device: torch.device | str = "cpu",
        world: World = SINGLE_PROCESS,
        resident: bool | None = None,
    ) -> None:
        """`rows`: the images to use, numbered from 0 in that order; None: all.

        `resident`: whether they are copied to the device; None: if they fit.
        """
        assert len(images) == len(labels)
        rows = torch.arange(len(images)) if rows is None else rows
        if batch_size < 1 or not len(rows):
            raise UserError(f"cannot make batches of {batch_size} from {len(rows)} images; both must be at least 1")
        self.device = torch.device(device)
        self.batch_size, self.seed, self.world = batch_size, seed, world
        self._order: tuple[int, Tensor] | None = None
        self._ahead: tuple[tuple[int, int], Future[tuple[Tensor, Tensor, Tensor]]] | None = None
        self._thread: ThreadPoolExecutor | None = None
        resident = _fits(images, len(rows), self.device) if resident is None else resident
        if self.device.type != "cpu" and resident:
            self._images, self._rows = _copied(images, rows, self.device), None
        else:
            self._images, self._rows = images, rows
            self._thread = ThreadPoolExecutor(1) if self.device.type != "cpu" else None
        self.labels = labels[rows].to(self._images.device)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def steps(self) -> int:
        """Steps in an epoch."""
        return -(-len(self.labels) // self.batch_size)

    def order(self, epoch: int) -> Int64[Tensor, " n"]:
        """Image numbers in the order of this epoch."""
        cached = self._order  # read once: the thread may change it
        if cached is None or cached[0] != epoch:
            order = torch.randperm(len(self.labels), generator=generator(self.seed, "order", epoch))
            cached = self._order = (epoch, order.to(self.labels.device))
        return cached[1]

    def global_size(self, step: int) -> int:
        """Images in this step over all ranks."""
        assert 0 <= step < self.steps, f"step {step} of {self.steps}"
        return min(self.batch_size, len(self.labels) - step * self.batch_size)

    def batch(self, epoch: int, step: int) -> Batch:
        """This rank's share of the epoch's step-th batch."""
        if self._thread is None:
            parts = self._gather(epoch, step)
        else:
            ahead = self._ahead
            parts = ahead[1].result() if ahead and ahead[0] == (epoch, step) else self._gather(epoch, step)
            self._ahead = None
            if step + 1 < self.steps:
                self._ahead = (epoch, step + 1), self._thread.submit(self._gather, epoch, step + 1)
        images, labels, index = (part.to(self.device, non_blocking=True) for part in parts)
        return Batch(as_float(images), labels, index)

    def take(self, index: Int64[Tensor, " b"]) -> tuple[UInt8[Tensor, "b c h w"], Int64[Tensor, " b"]]:
        """uint8 images and labels of these numbers, on the device."""
        index = index.to(self.labels.device)
        return self._pick(index).to(self.device), self.labels[index].to(self.device)

    def _pick(self, index: Tensor) -> Tensor:
        return self._images[index if self._rows is None else self._rows[index]]

    def _gather(self, epoch: int, step: int) -> tuple[Tensor, Tensor, Tensor]:
        """Images, labels and numbers of this rank's rows, in pinned memory if they are to be copied to a GPU.

        torch reuses a pinned block only after the copy from it is done.
        """
        rows = self.world.rows(self.global_size(step))
        start = step * self.batch_size
        index = self.order(epoch)[start + rows.start : start + rows.stop]
        parts = self._pick(index), self.labels[index], index
        if self._thread is not None and self.device.type == "cuda":
            return parts[0].pin_memory(), parts[1].pin_memory(), parts[2].pin_memory()
        return parts


def _fits(images: Tensor, n: int, device: torch.device) -> bool:
    """Whether n of the images take less than half of the device's free memory."""
    size = n * images[0].numel()
    return device.type != "cuda" or size < torch.cuda.mem_get_info(device)[0] // 2


def _copied(images: Tensor, rows: Tensor, device: torch.device) -> Tensor:
    """These images on the device, copied in pieces: a mapped file is never in main memory as a whole."""
    copied = torch.empty((len(rows), *images.shape[1:]), dtype=images.dtype, device=device)
    for start in range(0, len(rows), PIECE):
        copied[start : start + PIECE] = images[rows[start : start + PIECE]].to(device)
    return copied


def check_holdout(n: int, holdout: int) -> None:
    """UserError if not even one of the n training images would be left."""
    if not 0 <= holdout < n:
        raise UserError(f"cannot hold out {holdout} of {n} training images; choose a holdout of 0 to {n - 1}")


def split_holdout(n: int, holdout: int, seed: int) -> tuple[Int64[Tensor, " a"], Int64[Tensor, " b"]]:
    """Numbers of the training images and of `holdout` held-out images: disjoint, sorted, determined by the seed."""
    check_holdout(n, holdout)
    order = torch.randperm(n, generator=generator(seed, "holdout"))
    return order[holdout:].sort().values, order[:holdout].sort().values
