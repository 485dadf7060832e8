"""Sources: what marks the pixels of an image. Each is a function of `SourceInputs` that returns one map per image."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from pixelpart import masks
from pixelpart.errors import UserError, choose
from pixelpart.masks.controls import Noise
from pixelpart.masks.maps import cam, features_cam
from pixelpart.types import Images, Labels, Logits, Map


@dataclass(frozen=True)
class SourceInputs:
    """What a source may read of a batch; None where the policy's source does not read it."""

    x: Images
    y: Labels
    target: Labels | None = None  # the class that a map explains; None: the predicted one
    layer: str = "features"
    model: Any = None
    view: Any = None  # the model as the attack sees it
    acts: Tensor | None = None  # the clean pass: what `view` computed for x
    logits: Logits | None = None
    noise: Noise | None = None  # normal numbers on a coarse grid, drawn for every step
    objects: Map | None = None  # the true object masks


@dataclass(frozen=True)
class Source:
    """An entry of the table of sources."""

    maps: Callable[..., Map]  # maps(inputs, **settings)
    raw: bool = False  # maps are min-max scaled and resized to the image; else they are heat at image size
    from_model: bool = False  # reads the network, so that its maps may be stored
    settings: Callable[[str], dict[str, Any]] | None = None  # reads what follows the colon of name:setting


def model_map(inputs: SourceInputs, *, method: str) -> Map:
    """A class activation map, or an attention map.

    At the last layer a class activation map needs no more than a clean pass; other layers and attention maps take a
    pass of their own through `model`.
    """
    if inputs.layer == "features" and method in masks.CAMS and inputs.acts is not None:
        assert inputs.target is not None
        return features_cam(inputs.view, inputs.acts, inputs.target, method=method)
    return cam(inputs.model, inputs.x, inputs.target, method=method, layer=inputs.layer)


def parse_source(text: str) -> tuple[Source, dict[str, Any]]:
    """The source and the settings of a name such as "gradcam" or "quadrant:ul"."""
    name, colon, value = text.partition(":")
    source = choose(masks.SOURCES, name, "mask.source")
    if source.settings is not None:
        return source, source.settings(value)
    if colon:
        raise UserError(f"mask.source {name!r} takes no setting, but {text!r} has one")
    return source, {}
