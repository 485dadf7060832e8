"""Sources: what marks the pixels of an image. Each is a function of `SourceInputs` that returns one map per image."""

import dataclasses
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from pixelpart import losses
from pixelpart.errors import UserError, choose, unknown
from pixelpart.losses import ce
from pixelpart.masks.maps import CAMS, MAPS, cam, features_cam
from pixelpart.types import Heatmap, Images, Labels, Logits, Map

CORNERS = ("ul", "ur", "bl", "br")


class CleanPass(NamedTuple):
    """What a model's `features` and `head` returned for the clean images."""

    acts: Tensor
    logits: Logits


@dataclass(frozen=True)
class SourceInputs:
    """What a source may read of a batch; what it does not read may be None."""

    x: Images
    y: Labels
    target: Labels | None = None  # the class that a map explains, set by the policy; None: the predicted one
    layer: str = "features"  # set by the policy
    model: Any = None
    view: Any = None  # the model as the attack sees it
    clean: CleanPass | None = None  # of `view`
    noise: Map | None = None  # normal numbers on a coarse grid, drawn for every step
    objects: Shaped[Tensor, "b h w"] | None = None  # 1 on the true object of each image, else 0


@dataclass(frozen=True)
class Source:
    """A source of marks: an entry of the table, or what `parse_source` makes of it."""

    maps: Callable[..., Map]  # maps(inputs), with keywords if there are settings
    needs_scaling: bool = False  # maps have any range and size; else they are in [0, 1] and of the images' size
    from_model: bool = False  # reads the network, so that its maps may be stored
    before_augmentation: bool = False  # maps are of the images before augmentation; the shares move with the pixels
    per_image: bool = False  # a map is one real number per image, ranked over the batch
    settings: Callable[[str], dict[str, Any]] | None = None  # reads what follows the colon of name:setting


def model_map(inputs: SourceInputs, *, method: str) -> Map:
    """The raw class activation map or attention map.

    At the layer "features" a class activation map reads the clean pass; other layers and attention maps take a pass of
    their own through `model`.
    """
    if inputs.layer == "features" and method in CAMS and inputs.clean is not None:
        assert inputs.target is not None
        return features_cam(inputs.view, inputs.clean.acts, inputs.target, method=method)
    return cam(inputs.model, inputs.x, inputs.target, method=method, layer=inputs.layer)


def gradient(inputs: SourceInputs, *, sigma: float = 0.0) -> Heatmap:
    """|d cross-entropy / d x| at the clean image, summed over channels, divided by its largest value.

    `sigma`: standard deviation in pixels of a blur before the division; 0: no blur.
    """
    with torch.enable_grad():
        leaf = inputs.x.detach().requires_grad_()
        logits = inputs.view(leaf)
        target = logits.argmax(1) if inputs.target is None else inputs.target
        (grad,) = torch.autograd.grad(ce(logits, target).sum(), leaf)
    sizes = grad.abs().sum(1)
    if sigma:
        down, across = (gaussian(n, sigma, like=sizes) for n in sizes.shape[1:])
        sizes = down @ sizes @ across.T
    largest = sizes.amax((1, 2), keepdim=True)
    return torch.where(largest > 0, sizes / largest, 0)


def gaussian(n: int, sigma: float, *, like: Tensor) -> Float[Tensor, "n n"]:
    """Row i is the Gaussian around i of n pixels, with sum 1."""
    position = torch.arange(n, device=like.device, dtype=like.dtype)
    weight = (-((position[:, None] - position) ** 2) / (2 * sigma**2)).exp()
    return weight / weight.sum(1, keepdim=True)


def margin(inputs: SourceInputs) -> Map:
    """z_y - max_{k != y} z_k of each clean image: how confidently it is classified correctly."""
    logits = inputs.view(inputs.x) if inputs.clean is None else inputs.clean.logits
    return -losses.margin(logits, inputs.y)[:, None, None]


def centre(inputs: SourceInputs) -> Heatmap:
    """exp(-r^2 / 2 s^2), r the distance from the centre of the image and s a quarter of its side."""
    b, _, h, w = inputs.x.shape
    row, column = (torch.arange(n, device=inputs.x.device, dtype=inputs.x.dtype) - (n - 1) / 2 for n in (h, w))
    distance = (4 * row / h)[:, None] ** 2 + (4 * column / w) ** 2  # r^2 / s^2
    return (-distance / 2).exp().expand(b, h, w)


def quadrant(inputs: SourceInputs, *, corner: str) -> Heatmap:
    """1 in one quarter of the image, as the network sees it, else 0: ul (upper left), ur, bl or br."""
    b, _, h, w = inputs.x.shape
    row, column = torch.arange(h, device=inputs.x.device), torch.arange(w, device=inputs.x.device)
    inside = ((row < h / 2) == (corner[0] == "u"))[:, None] & ((column < w / 2) == (corner[1] == "l"))
    return inside.to(inputs.x.dtype).expand(b, h, w)


def blobs(inputs: SourceInputs) -> Map:
    """Coarse noise, drawn anew for every step."""
    assert inputs.noise is not None
    return inputs.noise


def object_mask(inputs: SourceInputs) -> Heatmap:
    """1 on the object, else 0; 0 everywhere if the object fills the image."""
    assert inputs.objects is not None
    inside = inputs.objects > 0
    return (inside & ~inside.all((1, 2), keepdim=True)).to(inputs.x.dtype)


def gradient_settings(text: str) -> dict[str, float]:
    """The sigma of gradient:SIGMA."""
    try:
        sigma = float(text or 0)
    except ValueError:
        sigma = math.nan
    if not 0 <= sigma < math.inf:
        raise UserError(f"mask.source 'gradient:{text}' is not gradient:SIGMA, a number of pixels")
    return {"sigma": sigma}


def quadrant_settings(text: str) -> dict[str, str]:
    """The corner of quadrant:CORNER."""
    if text not in CORNERS:
        raise unknown("quadrant", text, CORNERS)
    return {"corner": text}


SOURCES: dict[str, Source] = {
    **{name: Source(functools.partial(model_map, method=name), needs_scaling=True, from_model=True) for name in MAPS},
    "gradient": Source(gradient, from_model=True, settings=gradient_settings),
    "margin": Source(margin, from_model=True, per_image=True),
    "centre": Source(centre),
    "quadrant": Source(quadrant, settings=quadrant_settings),
    "blobs": Source(blobs, needs_scaling=True),
    "object": Source(object_mask, before_augmentation=True),
}


def parse_source(text: str) -> Source:
    """The source of a name such as "gradcam" or "quadrant:ul", its setting bound."""
    name, colon, value = text.partition(":")
    source = choose(SOURCES, name, "mask.source")
    if source.settings is not None:
        return dataclasses.replace(source, maps=functools.partial(source.maps, **source.settings(value)))
    if colon:
        raise UserError(f"mask.source {name!r} takes no setting, but {text!r} has one")
    return source
