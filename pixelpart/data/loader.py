"""Batches by number: the order of an epoch is a function of (seed, epoch), so any step can be asked for at any time."""

from dataclasses import dataclass

import torch
from jaxtyping import Float32, Int64, UInt8
from torch import Tensor

from pixelpart.draws import generator
from pixelpart.errors import UserError
from pixelpart.world import World

ALONE = World()


@dataclass(frozen=True)
class Batch:
    images: Float32[Tensor, "b c h w"]  # pixels in [0, 1]
    labels: Int64[Tensor, " b"]
    index: Int64[Tensor, " b"]  # each image's number in the loader's tensors


def as_float(images: UInt8[Tensor, "b c h w"]) -> Float32[Tensor, "b c h w"]:
    """Pixels 0..255 as 0..1: the one conversion, so that training and evaluation see the same numbers."""
    assert images.dtype == torch.uint8, f"pixels are {images.dtype}"
    return images.to(torch.float32).div_(255)


class Loader:
    """Every image once an epoch, in that epoch's own order; a short last batch is kept; each rank takes its slice."""

    def __init__(
        self,
        images: UInt8[Tensor, "n c h w"],
        labels: Int64[Tensor, " n"],
        *,
        batch_size: int,
        seed: int,
        device: torch.device | str = "cpu",
        world: World = ALONE,
    ) -> None:
        assert len(images) == len(labels)
        if batch_size < 1 or not len(images):
            raise UserError(f"cannot make batches of {batch_size} from {len(images)} images; both must be at least 1")
        self.device = torch.device(device)
        # indexing on the device needs no copy per step; a set too large for it stays in main memory
        self.images = images.to(self.device) if _fits(images, self.device) else images.pin_memory()
        self.labels = labels.to(self.images.device)
        self.batch_size, self.seed, self.world = batch_size, seed, world
        self._order: tuple[int, Tensor] | None = None

    @property
    def steps(self) -> int:
        """Steps in an epoch."""
        return -(-len(self.labels) // self.batch_size)

    def order(self, epoch: int) -> Int64[Tensor, " n"]:
        """Image numbers in the order in which this epoch visits them."""
        if self._order is None or self._order[0] != epoch:
            order = torch.randperm(len(self.labels), generator=generator(self.seed, "order", epoch))
            self._order = (epoch, order.to(self.images.device))
        return self._order[1]

    def global_size(self, step: int) -> int:
        """Images in this step over all ranks."""
        assert 0 <= step < self.steps, f"step {step} of {self.steps}"
        return min(self.batch_size, len(self.labels) - step * self.batch_size)

    def batch(self, epoch: int, step: int) -> Batch:
        """This rank's share of the epoch's step-th batch."""
        share = self.world.slice(self.global_size(step))
        start = step * self.batch_size
        index = self.order(epoch)[start + share.start : start + share.stop]
        images, labels, index = (
            t.to(self.device, non_blocking=True) for t in (self.images[index], self.labels[index], index)
        )
        return Batch(as_float(images), labels, index)


def _fits(images: Tensor, device: torch.device) -> bool:
    """Whether at least half of the device's free memory is left for the rest."""
    return device.type != "cuda" or images.nbytes < torch.cuda.mem_get_info(device)[0] // 2


def split_holdout(n: int, holdout: int, seed: int) -> tuple[Int64[Tensor, " a"], Int64[Tensor, " b"]]:
    """Numbers of the images to train on and of the `holdout` ones kept aside: disjoint, sorted, fixed by the seed."""
    if not 0 <= holdout < n:
        raise UserError(f"cannot hold out {holdout} of {n} training images; choose 0 to {n - 1}")
    order = torch.randperm(n, generator=generator(seed, "holdout"))
    return order[holdout:].sort().values, order[:holdout].sort().values
