import dataclasses
import functools

import pytest

from pixelpart import data, recipes
from pixelpart.runtime.progress import Screen

SMALL = {"holdout": 40, "probe": 32, "batch_size": 50, "epochs": 3, "augment": "crop-flip"}
IMAGES = 240  # 200 to train on: 4 steps an epoch


@functools.cache
def _first_images(split):
    return tuple(tensor[:IMAGES] for tensor in data.shapes.generate(split))


@pytest.fixture(autouse=True)
def _small_set(monkeypatch):
    """`shapes`, cut down to its first images."""
    monkeypatch.setitem(
        data.SETS, "shapes", dataclasses.replace(data.SETS["shapes"], load=lambda split, root: _first_images(split))
    )


@pytest.fixture
def small():
    """A recipe cut down to 4 steps an epoch, with augmentation and averaging."""

    def make(method="part", **overrides):
        attack = {"steps": 1, "step_size": "8/255"}
        burn_in = {"epochs": 1 if method.startswith("part") else 0}
        return recipes.shapes(method, **(SMALL | {"attack": attack, "burn_in": burn_in} | overrides))

    return make


@pytest.fixture
def quiet():
    return Screen(quiet=True)
