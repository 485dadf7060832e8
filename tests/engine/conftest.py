import dataclasses
import functools

import pytest
import torch

from pixelpart import data, recipes
from pixelpart.runtime.progress import Screen
from pixelpart.view import capture

SMALL = {"holdout": 40, "probe": 32, "batch_size": 50, "epochs": 3, "augment": "crop-flip"}
IMAGES = 240  # 200 to train on: 4 steps an epoch


@functools.cache
def _first_images(split):
    return tuple(tensor[:IMAGES] for tensor in data.shapes.generate(split))


@functools.cache
def _first_masks(split):
    return data.shapes.object_masks(split)[:IMAGES]


@pytest.fixture(autouse=True)
def _small_set(monkeypatch):
    """`shapes`, cut down to its first images."""
    small = {"load": lambda split, *_: _first_images(split), "masks": lambda split, root: _first_masks(split)}
    monkeypatch.setitem(data.SETS, "shapes", dataclasses.replace(data.SETS["shapes"], **small))


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


@pytest.fixture
def cuda(monkeypatch):
    """Stands in for CUDA graphs: a replay runs the captured work on the same buffers. Lists the warm-up runs."""
    runs = []

    class Graph:
        def __init__(self, work, result):
            self.work, self.result = work, result

        def replay(self):
            made = self.work()
            if made is not None:
                self.result.copy_(made)

    def record(work, *, pool=None, between=lambda: None):
        for _ in range(capture.WARM_UPS):
            runs.append(work)
            result = work()
        between()
        result = None if result is None else torch.full_like(result, torch.nan)
        return Graph(work, result), result

    monkeypatch.setattr(capture, "record", record)
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    return runs
