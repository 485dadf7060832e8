"""Maps of un-augmented training images: what the store holds, and what the damage is worked out with."""

import torch

from pixelpart.data.loader import Loader
from pixelpart.engine.plan import Phase
from pixelpart.engine.state import Learner
from pixelpart.engine.step import class_map, look
from pixelpart.engine.training_data import place
from pixelpart.masks import MaskStore
from pixelpart.types import Images, Labels, Map


def maps_of(learner: Learner, phase: Phase, x: Images, y: Labels) -> Map:
    """The present model's maps of the images, as the phase's mask reads them."""
    model = learner.freeze()
    return class_map(learner, model, phase, x, y, look(model, x))


def renew(store: MaskStore, learner: Learner, phase: Phase, loader: Loader, *, chunk: int) -> None:
    """Fills the store with the present model's maps of all training images, so many at a time.

    Several processes make a part each.
    """
    device, world = store.maps.device, loader.world
    store.maps.zero_()
    for index in torch.arange(len(loader))[world.slice(len(loader))].split(chunk):
        x, y = place(*loader.take(index), device=device, layout=learner.layout)
        store.put(index.to(device), maps_of(learner, phase, x, y))
    if world.size > 1:
        store.maps.copy_(world.total(store.maps))
