"""Maps of training images before augmentation, computed for all images at once and kept for some epochs."""

import torch

from pixelpart.data.loader import Loader
from pixelpart.engine.state import TrainingState
from pixelpart.engine.step import clean_pass
from pixelpart.engine.training_data import to_device
from pixelpart.masks import BudgetPolicy, MaskStore
from pixelpart.types import Images, Labels, Map


def current_maps(state: TrainingState, mask: BudgetPolicy, x: Images, y: Labels) -> Map:
    """The raw maps of the images at the present weights."""
    view = state.attack_view()
    clean = clean_pass(view, x)
    return mask.maps(state.model, view, x, y, clean.acts, clean.logits)


def map_store(state: TrainingState, mask: BudgetPolicy | None, n: int, x: Images, y: Labels) -> MaskStore | None:
    """An empty store for the maps of n images such as x, or None if the mask needs no store."""
    if mask is None or not mask.stored:
        return None
    return MaskStore(n, current_maps(state, mask, x[:1], y[:1]).shape[1:], device=x.device)


def renew_maps(store: MaskStore, state: TrainingState, mask: BudgetPolicy, loader: Loader, *, chunk: int) -> None:
    """Fills the store with the current maps of all training images, `chunk` at a time, shared between processes."""
    device, world = store.maps.device, loader.world
    store.maps.zero_()
    for index in torch.arange(len(loader))[world.slice(len(loader))].split(chunk):
        x, y = to_device(*loader.take(index), device=device, layout=state.layout)
        store.put(index.to(device), current_maps(state, mask, x, y))
    if world.size > 1:
        store.maps.copy_(world.total(store.maps))
