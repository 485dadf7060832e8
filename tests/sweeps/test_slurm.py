"""Slurm: what is submitted, and what a job does at its time limit. The slow test needs a Slurm."""

import os
import shutil
import signal
import subprocess
import time
from types import SimpleNamespace

import pytest

from pixelpart.engine import train as train_module
from pixelpart.errors import UserError
from pixelpart.runs import RunFolder
from pixelpart.sweeps import slurm
from pixelpart.sweeps.jobs import job_states, plan, run_jobs
from pixelpart.sweeps.work import Job


class Cluster:
    """Takes the place of submitit and squeue."""

    def __init__(self):
        self.arrays, self.settings, self.queue = [], {}, set()

    def update_parameters(self, **settings):
        self.settings |= settings

    def map_array(self, function, tasks):
        number = len(self.arrays)
        self.arrays.append(([(task.id, task.burn_in) for task in tasks], self.settings.get("slurm_dependency")))
        ids = [f"{number}_{k}" for k in range(len(tasks))]
        self.queue |= set(ids)
        return [SimpleNamespace(job_id=id) for id in ids]


@pytest.fixture
def cluster(monkeypatch):
    made = Cluster()
    monkeypatch.setattr(slurm, "_executor", lambda folder, settings: made)
    monkeypatch.setattr(slurm, "_queue", lambda: made.queue)
    return made


def test_jobs_depend_on_burn_ins_and_only_what_is_not_queued_is_submitted(job, quiet, tmp_path, cluster):
    pytest.importorskip("submitit")
    jobs = [job(eps_low=f"{low}/255") for low in (4, 5, 6)]
    first, second, third = (job.id for job in jobs)
    states = run_jobs(jobs[:2], tmp_path, on="slurm", screen=quiet)
    assert [state.state for state in states] == ["missing", "missing"]
    assert cluster.arrays == [([(first, 1)], None), ([(first, None), (second, None)], "afterany:0_0")]
    run_jobs(jobs, tmp_path, on="slurm", screen=quiet)
    assert cluster.arrays[2:] == [([(third, None)], "afterany:0_0")]
    cluster.queue -= {"1_1"}  # killed
    run_jobs(jobs, tmp_path, on="slurm", screen=quiet)
    assert cluster.arrays[3:] == [([(second, None)], "afterany:0_0")]


def test_job_saves_at_its_time_limit_before_it_is_requeued(job, tmp_path, monkeypatch):
    monkeypatch.setitem(train_module.train.__kwdefaults__, "save_seconds", 0)
    endless = job("at", epochs=2000)
    _, (task,) = plan([endless], tmp_path, device="cpu")
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGUSR2, lambda number, frame: os._exit(42))  # submitit's, which requeues
        try:
            slurm.SlurmTask(1)(task)
        finally:
            os._exit(1)
    folder = RunFolder(tmp_path / "runs" / endless.id)
    while not folder.checkpoint("last").exists():
        time.sleep(0.02)
    os.kill(child, signal.SIGUSR2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42
    assert "stopped after step" in folder.log_file.read_text()


@pytest.fixture
def _no_cluster(tmp_path, monkeypatch):
    """Programs with the names of Slurm's that do nothing."""
    pytest.importorskip("submitit")
    for name in ("sbatch", "srun"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)


@pytest.mark.usefixtures("_no_cluster")
@pytest.mark.parametrize(("settings", "delay"), [({"timeout_min": 2}, 30), ({"signal_delay_s": 7}, 7), ({}, 90)])
def test_jobs_are_warned_of_a_short_time_limit_late_enough_to_work(job, quiet, tmp_path, monkeypatch, settings, delay):
    (tmp_path / "sbatch").write_text(f'#!/bin/sh\ncat "$1" > {tmp_path}/submitted\necho Submitted batch job 1\n')
    monkeypatch.setattr(slurm, "_queue", set)
    run_jobs([job()], tmp_path / "out", on="slurm", slurm=settings, screen=quiet)
    assert f"--signal=USR2@{delay}\n" in (tmp_path / "submitted").read_text()


@pytest.mark.usefixtures("_no_cluster")
def test_wrong_settings_are_one_line(job, quiet, tmp_path):
    with pytest.raises(UserError, match=r"\[slurm\]: .*'slurm_minutes'") as caught:
        run_jobs([job()], tmp_path / "out", on="slurm", slurm={"minutes": 3}, screen=quiet)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(shutil.which("sbatch") is None, reason="no Slurm")
def test_requeued_and_cancelled_jobs_end_as_undisturbed_ones(config, quiet, tmp_path):
    settings = {"batch_size": 256, "epochs": 3}  # Slurm's processes load the whole data set
    jobs = [Job(config(eps_low=f"{low}/255", **settings), ("natural",), images=40) for low in (4, 5)]
    run_jobs(jobs, tmp_path, on="slurm", screen=quiet)
    disturb = [["scontrol", "requeue"], ["scancel"]]
    while [state.state for state in job_states(jobs, tmp_path)] != ["done", "done"]:
        running = subprocess.run(["squeue", "--me", "-hrt", "R", "-o", "%i"], capture_output=True, text=True).stdout
        if running and disturb:
            time.sleep(5)
            subprocess.run([*disturb.pop(), running.split()[0]], check=False)
        time.sleep(2)
        run_jobs(jobs, tmp_path, on="slurm", screen=quiet)
    assert [RunFolder(state.folder).read_metrics()[-1]["epoch"] for state in job_states(jobs, tmp_path)] == [3, 3]
