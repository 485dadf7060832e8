"""Augmentation in two steps: `draw` draws parameters, `apply` moves an image and its mask by the same parameters.

A new kind is a function that draws `Params`, and one entry in the table below.
"""

from collections.abc import Callable

import torch

from pixelpart.data.augment.kinds import draw_crop_flip, draw_cutmix, draw_cutout, draw_idbh, draw_none
from pixelpart.data.augment.moving import PAD, Params, apply, apply_to_images, mix_labels
from pixelpart.errors import choose

AUGMENTS: dict[str, Callable[[int, torch.Generator], Params]] = {
    "none": draw_none,
    "crop-flip": draw_crop_flip,
    "crop-flip-cutout": draw_cutout,
    "crop-flip-cutmix": draw_cutmix,
    "idbh": draw_idbh,
}


def draw(kind: str, n: int, *, generator: torch.Generator | None = None) -> Params:
    """Parameters for n images, on the generator's device; None: a fresh generator seeded with 0."""
    return choose(AUGMENTS, kind, "augment")(n, torch.Generator().manual_seed(0) if generator is None else generator)


__all__ = ["AUGMENTS", "PAD", "Params", "apply", "apply_to_images", "draw", "mix_labels"]
