"""Many jobs of one process on a GPU: the memory of the first, and every step compiled; -s shows the seconds.

test_gpu.py runs this file with PIXELPART_TYPES=0; by hand:
`PIXELPART_TYPES=0 pytest tests/sweeps/compiled_jobs.py -m gpu -s`.
"""

import time

import pytest
import torch

from pixelpart import recipes
from pixelpart.sweeps.jobs import plan
from pixelpart.sweeps.work import Job, perform


@pytest.mark.gpu
def test_ten_jobs_of_one_process_use_the_memory_of_two_and_are_compiled(tmp_path, quiet):
    small = {"epochs": 2, "holdout": 64, "probe": 64, "burn_in": {"epochs": 1}, "precision": "bf16"}
    jobs = [Job(recipes.shapes("part", seed=seed, **small), ("natural", "pgd2"), images=64) for seed in range(10)]
    _, tasks = plan(jobs, tmp_path, device="cuda")
    reserved, seconds = [], []
    for task in tasks:
        begun = time.monotonic()
        assert perform(task, quiet) == ""
        seconds.append(round(time.monotonic() - begun, 1))
        reserved.append(torch.cuda.memory_reserved())
        log = (tmp_path / "runs" / task.id / "log.txt").read_text()
        assert "uncompiled" not in log
    print(f"\nseconds of each job: {seconds}; MiB reserved after each: {[n >> 20 for n in reserved]}")
    assert reserved[-1] <= 1.05 * reserved[1]
