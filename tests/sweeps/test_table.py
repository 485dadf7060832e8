"""The table of a sweep: under which conditions its accuracies were measured, and which have warnings."""

import csv

import numpy as np
import pytest

from pixelpart.config import Config
from pixelpart.evaluation.statistics import accuracy_interval
from pixelpart.sweeps.table import describe_conditions, read_table
from pixelpart.sweeps.work import Job
from run_results import write_run

COLLAPSED, STEPS = "all 256 images examined are predicted as class 3", "steps * step_size < eps"
FLAGS = np.arange(50) < 20


@pytest.fixture
def table(tmp_path):
    """Two runs under three attacks; the second has warnings, and fewer images."""
    jobs = [
        Job(Config(recipe="mine", seed=seed, holdout=64), ("natural", "pgd20", "pgd20@4/255", "apgd-l2"))
        for seed in (0, 1)
    ]
    for job in jobs:
        write_run(
            tmp_path / job.id,
            dict.fromkeys(job.attacks[:2], FLAGS[: 50 - 10 * job.config.seed]),
            config=job.config.model_dump(), interval=[0.2, 0.6], warnings=[COLLAPSED, STEPS] if job.config.seed else [],
        )  # fmt: skip
    return read_table(jobs, {job.id: tmp_path / job.id for job in jobs})


def test_cells_with_warnings_have_a_star_and_the_texts_are_below_the_table(table):
    first, second, *notes = str(table).splitlines()[1:]
    assert "*" not in first
    assert second.count("]*") == 2
    assert notes == [
        "pgd20 at eps 8/255; pgd20@4/255 at eps 4/255; apgd-l2 at l2 eps 0.5; n = 40 to 50 test images; best "
        "checkpoint",
        f"* natural, pgd20: {COLLAPSED}",
        f"* natural, pgd20: {STEPS}",
    ]


def test_means_are_over_the_seeds_that_have_all_results(tmp_path):
    every = [(eps, seed) for eps in (4 / 255, 8 / 255) for seed in (0, 1)]
    jobs = [Job(Config(recipe="mine", seed=seed, eps=eps, holdout=64), ("natural",)) for eps, seed in every]
    for job, right in zip(jobs, (20, 25, 30), strict=False):
        write_run(tmp_path / job.id, {"natural": np.arange(50) < right}, config=job.config.model_dump())
    table = read_table(jobs, {job.id: tmp_path / job.id for job in jobs})
    both, one = table.means
    low, high = accuracy_interval(np.stack([np.arange(50) < right for right in (20, 25)]))
    assert (both["mean over seeds"], both["seeds"], both["natural"]) == ("eps=4/255", 2, 0.45)
    assert (both["natural low"], both["natural high"]) == (low, high)
    assert (one["mean over seeds"], one["seeds"], one["natural"]) == ("eps=8/255", 1, 0.6)
    assert str(table).rstrip().splitlines()[-1].split()[:3] == ["eps=8/255", "1", "60.00%"]
    assert "mean over seeds" not in str(read_table(jobs[::2], {job.id: tmp_path / job.id for job in jobs}))


def test_csv_has_eps_images_checkpoint_and_warnings(table, tmp_path):
    table.write_csv(tmp_path / "table.csv")
    with open(tmp_path / "table.csv") as file:
        first, second = csv.DictReader(file)
    assert [first[f"pgd20 {name}"] for name in ("n", "eps", "warnings")] == ["50", "8/255", ""]
    assert [second[f"pgd20 {name}"] for name in ("n", "eps", "warnings")] == ["40", "8/255", f"{COLLAPSED}; {STEPS}"]
    assert (first["checkpoint"], first["split"], first["pgd20@4/255 eps"]) == ("best", "test", "4/255")
    assert first["apgd-l2 eps"] == "0.5"
    assert "natural eps" not in first


def test_a_table_without_results_has_no_notes():
    assert len(str(read_table([Job(Config(), ("natural", "pgd20"))], {})).splitlines()) == 2


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        (("natural",), ""),
        (("natural", "pgd20", "apgd"), "attacks at eps 8/255; "),
        (("pgd20", "pgd20@16/255"), "pgd20 at eps 8/255; pgd20@16/255 at eps 16/255; "),
        (("pgd20", "apgd-l2"), "pgd20 at eps 8/255; apgd-l2 at l2 eps 0.5; "),
        (("adaptive-pgd20", "adaptive-mma20"), "attacks at eps 12/255 and 8/255; "),
        (("natural", "apgd", "|g| on object"), "apgd at eps 8/255; "),
    ],
)
def test_conditions_name_the_attacks_if_their_eps_differ_or_other_columns_are_there(columns, expected):
    assert describe_conditions(columns, [1000], split="test") == f"{expected}n = 1,000 test images"
