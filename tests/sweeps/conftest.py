import pytest

from command_line import few
from pixelpart import data, recipes
from pixelpart.runtime.progress import Screen
from pixelpart.sweeps.work import Job

SMALL = {"epochs": 3, "holdout": 10, "probe": 16, "batch_size": 50, "attack": {"steps": 1, "step_size": "8/255"}}


@pytest.fixture(autouse=True)
def _few(monkeypatch):
    """The data set `shapes`, reduced to its first images."""
    monkeypatch.setitem(data.SETS, "shapes", few())


@pytest.fixture
def config():
    """A recipe for `shapes` with three steps an epoch; PART has one epoch of burn-in."""

    def make(method="part", **settings):
        burn_in = {"epochs": 1 if method.startswith("part") else 0}
        return recipes.shapes(method, **(SMALL | {"burn_in": burn_in} | settings))

    return make


@pytest.fixture
def job(config):
    def make(method="part", **settings):
        return Job(config(method, **settings), ("natural", "pgd2"), images=40)

    return make


@pytest.fixture
def quiet():
    return Screen(quiet=True)
