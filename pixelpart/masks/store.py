"""Maps kept between epochs, by sample number and un-augmented: a user moves them with the image's crop and flip."""

from collections.abc import Sequence

import torch

from pixelpart.types import Labels, Map


class MaskStore:
    """One raw map for each of n samples, float32; a sample that was never put has a zero, dead map."""

    def __init__(self, n: int, size: Sequence[int], *, device: torch.device | str = "cpu") -> None:
        self.maps = torch.zeros(n, *size, device=device)

    def put(self, index: Labels, cam: Map) -> None:
        """Keeps cam[i] as the map of sample index[i]; the storage stays where it is."""
        self.maps.index_copy_(0, index, cam.detach().to(self.maps.dtype))

    def get(self, index: Labels) -> Map:
        """The maps of these samples, a copy."""
        return self.maps.index_select(0, index)
