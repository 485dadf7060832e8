"""Augmentation in two steps: `draw` draws parameters, `apply` moves an image and its mask by the same parameters."""

from pixelpart.data.augment.kinds import AUGMENTS, draw
from pixelpart.data.augment.moving import PAD, Params, apply, apply_to_images, mix_labels

__all__ = ["AUGMENTS", "PAD", "Params", "apply", "apply_to_images", "draw", "mix_labels"]
