"""Maps of training images before augmentation, computed for all images at once and kept for some epochs."""

import torch
from torch import Tensor

from pixelpart import draws
from pixelpart.config import MaskConfig
from pixelpart.data.loader import Loader
from pixelpart.engine.state import TrainingState
from pixelpart.engine.step import clean_pass
from pixelpart.engine.training_data import to_device
from pixelpart.masks import BudgetPolicy, SourceInputs, draw_blobs
from pixelpart.masks.rules import CoarseNoise
from pixelpart.types import Images, Labels, Map

CHECKED_IMAGES = 16  # on which the mask is checked before training


def current_maps(
    state: TrainingState,
    mask: BudgetPolicy,
    x: Images,
    y: Labels,
    *,
    noise: CoarseNoise | None = None,
    objects: Tensor | None = None,
) -> Map:
    """The source's maps of the images at the present weights."""
    view = state.attack_view()
    clean = clean_pass(view, x) if mask.source.from_model else None
    return mask.maps(SourceInputs(x, y, model=state.model, view=view, clean=clean, noise=noise, objects=objects))


def sample_maps(
    state: TrainingState, mask: BudgetPolicy, x: Images, y: Labels, *, objects: Tensor | None
) -> tuple[Map, CoarseNoise]:
    """The maps of a few images outside of training, and the control's noise; `objects`: the object masks of the set."""
    blobs = draw_blobs(len(x), generator=draws.generator(0, "blobs of damage", device=x.device))
    source_noise, control_noise = blobs.unbind(1)
    objects = None if objects is None else objects[: len(x)]
    return current_maps(state, mask, x, y, noise=source_noise, objects=objects), control_noise


@torch.no_grad()
def check_mask(
    state: TrainingState, mask: BudgetPolicy, names: MaskConfig, x: Images, y: Labels, *, objects: Tensor | None
) -> None:
    """Raises a UserError if the source, rule or control returns a wrong shape, NaN, or values outside [0, 1]."""
    x, y = x[:CHECKED_IMAGES], y[:CHECKED_IMAGES]
    maps, noise = sample_maps(state, mask, x, y, objects=objects)
    mask.check(maps, x, noise, source=names.source, rule=names.rule, control=names.control)


def empty_maps(state: TrainingState, mask: BudgetPolicy | None, n: int, x: Images, y: Labels) -> Tensor | None:
    """Zeros for the raw maps of n images such as x, in fp32; None if the mask keeps no maps."""
    if mask is None or not mask.stored:
        return None
    return torch.zeros(n, *current_maps(state, mask, x[:1], y[:1]).shape[1:], device=x.device)


def renew_maps(maps: Tensor, state: TrainingState, mask: BudgetPolicy, loader: Loader, *, chunk: int) -> None:
    """Fills `maps` with those of all training images, `chunk` at a time, shared between processes."""
    maps.zero_()
    for index in torch.arange(len(loader))[loader.world.slice(len(loader))].split(chunk):
        x, y = to_device(*loader.take(index), device=maps.device, layout=state.layout)
        maps[index.to(maps.device)] = current_maps(state, mask, x, y).to(maps.dtype)
    maps.copy_(loader.world.total(maps))
