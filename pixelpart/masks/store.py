"""Maps kept between epochs, by sample number and before augmentation; the caller moves them with the image."""

from collections.abc import Sequence

import torch

from pixelpart.types import Labels, Map


class MaskStore:
    """One raw map for each of n samples, in float32; zero, that is dead, until it is put."""

    def __init__(self, n: int, size: Sequence[int], *, device: torch.device | str = "cpu") -> None:
        self.maps = torch.zeros(n, *size, device=device)

    def put(self, index: Labels, cam: Map) -> None:
        """Stores cam[i] as the map of sample index[i], in place."""
        self.maps.index_copy_(0, index, cam.detach().to(self.maps.dtype))

    def get(self, index: Labels) -> Map:
        """A copy of the maps of these samples."""
        return self.maps.index_select(0, index)
