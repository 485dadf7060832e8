"""A share of `make chaos`, with one seed."""

import os
import random

import pytest

from damage import damages, make_run
from full_disk import full_disks
from fuzz import fuzzes
from hostile import hostile_folders
from kills import attack, inside, preparation, training
from pixelpart import data
from pixelpart.engine import stored_maps
from pixelpart.engine import train as train_module
from small_runs import use_small_settings


@pytest.fixture(scope="module", autouse=True)
def _small():
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(data.SETS, "shapes", data.SETS["shapes"])
        patch.setitem(train_module.train.__kwdefaults__, "save_seconds", 0)
        use_small_settings()
        yield


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("chaos") / "run", check=False)


@pytest.fixture
def rng():
    return random.Random(1)


def survived(tallies):
    for tally in tallies:
        assert tally.attempts
        assert tally.failures == []


@pytest.mark.parametrize(
    ("work", "kill"),
    [(training, inside([(stored_maps, "current_maps")], calls=6)), (preparation, inside([(os, "replace")], calls=2))],
)
def test_killed_work_ends_in_the_same_bits(work, kill, rng, tmp_path):
    survived([attack("kill", work(tmp_path, rng), tmp_path, kill, rng, kills=1)])


def test_damaged_files_change_no_figure(run_folder, rng, tmp_path):
    survived(damages(rng, tmp_path, 10, run_folder=run_folder))


def test_hostile_folders_run_no_code_and_write_no_other_file(run_folder, rng, tmp_path):
    survived(hostile_folders(rng, tmp_path, 8, run_folder=run_folder))


def test_every_string_is_parsed_or_refused_in_one_line(rng, tmp_path):
    survived(fuzzes(rng, tmp_path, 300))


def test_without_space_the_previous_files_remain(rng, tmp_path):
    survived(full_disks(rng, tmp_path, 2, mount=False))
