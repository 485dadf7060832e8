"""Worker processes: the bits of a single process, and what happens when one of the processes dies."""

import dataclasses
import os
import signal
import sys
import time

import pytest

import small_sweep
from pixelpart import data, models
from pixelpart.errors import UserError
from pixelpart.runs import Run, RunFolder
from pixelpart.sweeps import local
from pixelpart.sweeps.grid import read_grid
from pixelpart.sweeps.jobs import job_states, run_jobs
from pixelpart.sweeps.table import read_table


@pytest.fixture(autouse=True)
def _small_workers(monkeypatch):
    monkeypatch.setattr(local, "WORKER", small_sweep.WORKER)


def table(jobs, out):
    found = read_table(jobs, {state.job.id: state.folder for state in job_states(jobs, out)})
    return [{name: value for name, value in row.items() if name != "seconds"} for row in found]


def test_worker_that_dies_fails_its_job_only(job, quiet, tmp_path):
    dying = dataclasses.replace(job(), measures=("small_sweep:die_once",))
    jobs = [dying, job(seed=1), job(eps_low="4/255")]
    found = run_jobs(jobs, tmp_path / "workers", workers=2, screen=quiet)
    assert [state.state for state in found] == ["failed", "done", "done"]
    assert found[0].error.startswith("the worker process ended by SIGKILL; see ")
    assert [state.state for state in run_jobs(jobs, tmp_path / "workers", screen=quiet)] == ["done"] * 3
    alone = [job(), *jobs[1:]]
    run_jobs(alone, tmp_path / "alone", screen=quiet)
    assert table(alone, tmp_path / "alone") == table(jobs, tmp_path / "workers")


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.slow)]
)
def test_workers_save_and_end_when_the_sweep_is_stopped_or_killed(job, quiet, tmp_path, number):
    endless = job("at", epochs=2000)
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # torchrun in an earlier test installs its own
        try:
            run_jobs([endless], tmp_path, workers=2, screen=quiet)
        except KeyboardInterrupt:
            os._exit(130)
        finally:
            os._exit(1)
    folder = RunFolder(tmp_path / "runs" / endless.id)
    while not folder.checkpoint("last").exists():
        time.sleep(0.02)
    (state,) = job_states([endless], tmp_path)
    assert state.state == "running"
    os.kill(child, number)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code == (-9 if number == signal.SIGKILL else 130)
    while state.state == "running":
        time.sleep(0.02)
        (state,) = job_states([endless], tmp_path)
    assert state.state == "unfinished"
    assert "stopped after step" in folder.log_file.read_text()


OWN = """
import pixelpart as pp

def small(num_classes):
    return pp.models.build("tiny-cnn", num_classes=num_classes)

def load(split):
    images, labels = pp.data.load("shapes", split=split)
    return images.numpy(), labels.numpy()
"""

GRID = """
base = "shapes-part"
attacks = "natural"
images = 40
[set]
model = "sweep_code:small"
data = "sweep_code:load"
epochs = 2
holdout = 10
probe = 16
batch_size = 50
attack.steps = 1
burn_in.epochs = 1
[grid]
eps_low = ["5/255", "6/255"]
"""


@pytest.mark.parametrize("workers", [1, 2])
def test_network_and_data_set_of_a_grid_may_be_user_code(tmp_path, monkeypatch, quiet, workers):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sweep_code.py").write_text(OWN)
    (tmp_path / "grid.toml").write_text(GRID)
    grid = read_grid(tmp_path / "grid.toml")
    assert [state.error for state in run_jobs(grid.jobs, tmp_path / "out", workers=workers, screen=quiet)] == ["", ""]
    forks = [RunFolder(tmp_path / "out" / "runs" / job.id).read_config().init_from for job in grid.jobs]
    assert sorted(map(bool, forks)) == [False, True]  # the shared burn-in runs the code too
    models.USER_MODELS.clear()
    data.USER_SETS.clear()
    sys.modules.pop("sweep_code", None)
    with pytest.raises(UserError, match="'sweep_code:small' is user code and is never loaded from a config"):
        Run(tmp_path / "out" / "runs" / grid.jobs[0].id).model  # noqa: B018
    assert "sweep_code" not in sys.modules
