"""The images under attack, and the noise that attacks on them start from: both by sample number."""

from dataclasses import dataclass

import torch
from torch import Tensor

from pixelpart import draws
from pixelpart.attacks import ATTACKS
from pixelpart.attacks.ball import draw_noise, start_point
from pixelpart.data import as_float
from pixelpart.types import Budget, Images, Labels


@dataclass(frozen=True)
class ImageSet:
    """Images, uint8 or in [0,1], their labels, and the device that they are attacked on."""

    images: Tensor
    labels: Tensor
    device: torch.device

    def __len__(self) -> int:
        return len(self.images)

    def take(self, index: Tensor) -> tuple[Images, Labels]:
        """Images as fp32 in [0,1] and labels of these sample numbers, on the device."""
        x, y = self.images[index].to(self.device), self.labels[index].to(self.device)
        return (as_float(x) if x.dtype == torch.uint8 else x.float()), y.long()

    def first(self, count: int) -> tuple[Images, Labels]:
        """The first `count` images and labels, or all if there are fewer."""
        return self.take(torch.arange(min(count, len(self))))


def start_images(index: Tensor, x: Images, eps: Budget, *, kind: str, steps: int, seed: int, restart: int) -> Tensor:
    """Start images of one restart: shaped like x, or (starts, b, c, h, w) for an attack that takes several."""
    starts = ATTACKS[kind].starts
    numbers = range(restart * starts, (restart + 1) * starts)
    noise = [start_noise(index, x, stream=f"attack/{kind}{steps}", seed=seed, number=number) for number in numbers]
    images = [start_point(x, eps, part, kind="uniform") for part in noise]
    return images[0] if starts == 1 else torch.stack(images)


def start_noise(index: Tensor, x: Images, *, stream: str, seed: int, number: int) -> Images:
    """Uniform noise in [-1,1] for an attack's start of this number.

    The noise of a sample depends on its own number only, not on its batch, the other samples or the device.
    """
    like = torch.empty(1, *x.shape[1:], dtype=x.dtype)
    rows = [
        draw_noise(like, kind="uniform", generator=draws.generator(seed, stream, number, sample))
        for sample in index.tolist()
    ]
    return torch.cat(rows).to(x.device)
