"""What is attacked, where it is attacked."""

from dataclasses import dataclass

import torch
from torch import Tensor

from pixelpart.data import as_float
from pixelpart.types import Images, Labels


@dataclass(frozen=True)
class ImageSet:
    """The images under attack, uint8 or in [0,1], their labels, and where the work is done."""

    images: Tensor
    labels: Tensor
    device: torch.device

    def __len__(self) -> int:
        return len(self.images)

    def take(self, index: Tensor) -> tuple[Images, Labels]:
        """Images as fp32 in [0,1] and labels of these sample numbers, on the device."""
        x, y = self.images[index].to(self.device), self.labels[index].to(self.device)
        return (as_float(x) if x.dtype == torch.uint8 else x.float()), y.long()
