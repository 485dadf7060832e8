"""Jobs in one folder: what is done is not done again, what is killed goes on, what fails harms nothing else."""

import dataclasses
import json
import os
import random
import shutil
import signal
import time
from statistics import fmean

import pytest

from metrics_rows import metrics_row
from pixelpart.engine import train as train_module
from pixelpart.errors import UserError
from pixelpart.files import exclusive_lock
from pixelpart.runs import Run, RunFolder
from pixelpart.sweeps import work
from pixelpart.sweeps.jobs import find_finished, job_states, run_jobs
from pixelpart.sweeps.table import read_table
from pixelpart.sweeps.work import Job, JobFiles


def table(jobs, out):
    found = read_table(jobs, {state.job.id: state.folder for state in job_states(jobs, out)})
    return [{name: value for name, value in row.items() if name != "seconds"} for row in found]


def states(jobs, out):
    return [state.state for state in job_states(jobs, out)]


def epochs_of(out):
    """The number of epochs that all runs of a sweep have finished."""
    return sum(len(file.read_bytes().splitlines()) for file in out.glob("runs/*/metrics.jsonl"))


@pytest.fixture
def eight(job):
    return [job(seed=seed, eps_low=f"{low}/255") for seed in (0, 1) for low in (4, 5, 6, 7)]


@pytest.mark.parametrize("kills", [4, pytest.param(40, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
def test_sweep_killed_at_random_moments_gives_the_same_table(eight, quiet, tmp_path, monkeypatch, kills):
    monkeypatch.setitem(train_module.train.__kwdefaults__, "save_seconds", 0)
    begun = time.monotonic()
    assert states(eight, tmp_path / "whole") == ["missing"] * 8
    run_jobs(eight, tmp_path / "whole", screen=quiet)
    seconds, epochs, moments, killed = time.monotonic() - begun, epochs_of(tmp_path / "whole"), random.Random(3), 0
    while killed < kills:
        child = os.fork()
        if child == 0:
            try:
                run_jobs(eight, tmp_path / "killed", screen=quiet)
            finally:
                os._exit(0)
        goal = epochs_of(tmp_path / "killed") + moments.randint(0, epochs // kills)
        while epochs_of(tmp_path / "killed") < goal:
            time.sleep(0.01)
        time.sleep(moments.uniform(0, seconds / epochs))
        os.kill(child, signal.SIGKILL)
        if not os.WIFSIGNALED(os.waitpid(child, 0)[1]):
            break  # it has finished
        killed += 1
    assert killed > 1
    run_jobs(eight, tmp_path / "killed", screen=quiet)
    assert table(eight, tmp_path / "killed") == table(eight, tmp_path / "whole")
    assert states(eight, tmp_path / "killed") == ["done"] * 8

    def nothing(*args):
        raise AssertionError("something was started")

    monkeypatch.setattr(work, "_train", nothing)
    run_jobs(eight, tmp_path / "killed", screen=quiet)


def test_row_of_a_run(job, quiet, tmp_path):
    jobs = [job(), job("at", seed=1)]
    (state, _) = run_jobs(jobs, tmp_path, screen=quiet)
    first, second = table = read_table(jobs, {state.job.id: state.folder})
    entries = {entry["attack"]: entry for entry in json.loads((state.folder / "eval.json").read_text())["entries"]}
    seconds = sum(row["seconds"] for row in Run(state.folder).metrics) + sum(e["seconds"] for e in entries.values())
    budget = round(255 * fmean(row["budget_mean"] for row in Run(state.folder).metrics[1:]), 2)
    low, high = entries["natural"]["interval"]
    assert first == {
        "run": jobs[0].id, "seed": 0, "mask.rule": "mean", "burn_in.epochs": 1, "epochs": 3, "budget": budget,
        "checkpoint": "best", "split": "test",
        "natural": entries["natural"]["accuracy"], "natural low": low, "natural high": high,
        "natural n": entries["natural"]["n"], "natural warnings": entries["natural"]["warnings"],
        "pgd2": entries["pgd2"]["accuracy"], "pgd2 low": entries["pgd2"]["interval"][0],
        "pgd2 high": entries["pgd2"]["interval"][1], "pgd2 n": entries["pgd2"]["n"], "pgd2 eps": "8/255",
        "pgd2 warnings": entries["pgd2"]["warnings"], "seconds": round(seconds, 1),
    }  # fmt: skip
    assert (second["natural"], second["epochs"]) == (None, 0)
    table.write_csv(tmp_path / "table.csv")
    lines = (tmp_path / "table.csv").read_text().splitlines()
    assert lines[0] == (
        "run,seed,mask.rule,burn_in.epochs,epochs,budget,checkpoint,split,natural,natural low,natural high,natural n,"
        "natural warnings,pgd2,pgd2 low,pgd2 high,pgd2 n,pgd2 eps,pgd2 warnings,seconds"
    )
    assert lines[2] == f"{jobs[1].id},1,none,0,0,,best,test,,,,,,,,,,8/255,,0.0"


def test_failed_job_stops_no_other_and_is_tried_again(job, quiet, tmp_path):
    jobs = [job(mask={"rule": "nonsense"}), job(optim={"lr": 1e30}, seed=1), job()]
    found = run_jobs(jobs, tmp_path, screen=quiet)
    assert [state.state for state in found] == ["failed", "failed", "done"]
    assert found[0].error.startswith("unknown mask.rule 'nonsense'; did you mean none? choose from ")
    assert "not finite" in found[1].error
    again = run_jobs(jobs, tmp_path, screen=quiet)
    assert [(state.state, state.error) for state in again] == [(state.state, state.error) for state in found]


def test_one_run_serves_several_jobs(config, quiet, tmp_path):
    jobs = [
        Job(config(), ("natural",), images=20),
        Job(config(), ("natural",), images=30),
        Job(config(), ("pgd2",), "last", 20),
    ]
    run_jobs(jobs, tmp_path, screen=quiet)
    assert len(list((tmp_path / "runs").iterdir())) == 1
    assert states(jobs, tmp_path) == ["done"] * 3
    more = Job(config(), ("natural",), images=25)
    assert states([more], tmp_path) == ["unfinished"]  # trained, but not evaluated on these images
    run_jobs([more], tmp_path, screen=quiet)
    assert states([*jobs, more], tmp_path) == ["done"] * 4


def measured(run, job, device):
    return {"epochs": len(run.metrics), "images": job.images, "device": device}


def test_measures_are_kept_in_the_run(config, quiet, tmp_path):
    job = Job(config("at"), images=7, measures=(f"{__name__}:measured",))
    (state,) = run_jobs([job], tmp_path, device="cpu", screen=quiet)
    found = json.loads((state.folder / "measures" / "measured.json").read_text())
    assert found == {"epochs": 3, "images": 7, "device": "cpu"}


def test_finished_runs_are_found_by_identity(config, quiet, tmp_path):
    for name, epochs in {"a": 2, "b": 3, "c": 3}.items():
        folder = RunFolder(tmp_path / name / "mine")
        folder.write_config(config(recipe="mine"))
        folder.write_metrics([metrics_row(epoch) for epoch in range(1, epochs + 1)])
    (tmp_path / "config.json").write_text("no config")
    jobs = [Job(config()), Job(config(seed=1))]
    assert find_finished(jobs, tmp_path) == {jobs[0].id: tmp_path / "b" / "mine"}
    (tmp_path / "c" / "mine" / "eval").mkdir()
    (tmp_path / "c" / "mine" / "eval" / "flags.npy").touch()
    assert find_finished(jobs, tmp_path) == {jobs[0].id: tmp_path / "c" / "mine"}  # that with flags


def test_forks_whose_parent_is_not_there_are_reported(config, tmp_path):
    folder = RunFolder(tmp_path / "fork")
    folder.write_config(config(init_from="runs/mine@1"))
    folder.write_metrics([metrics_row(epoch) for epoch in (2, 3)])
    lines = []
    assert find_finished([Job(config())], tmp_path, lines.append) == {}
    assert lines == [f"not used: {folder.path}, a fork of runs/mine@1: runs/mine is not a run folder: no such folder"]
    RunFolder(tmp_path / "mine").write_config(config())
    assert find_finished([Job(config())], tmp_path, lines.append) == {Job(config()).id: folder.path}
    assert len(lines) == 1


def test_deleted_run_is_trained_again(job, quiet, tmp_path):
    (state,) = run_jobs([job()], tmp_path, screen=quiet)
    shutil.rmtree(state.folder)
    assert states([job()], tmp_path) == ["missing"]
    train_module.train(state.job.config, state.folder, screen=quiet, stop_after=1)
    assert states([job()], tmp_path) == ["unfinished"]
    run_jobs([job()], tmp_path, screen=quiet)
    assert table([job()], tmp_path)[0]["epochs"] == 3
    assert table([job()], tmp_path)[0]["pgd2"] is not None


def test_deleted_source_of_a_shared_burn_in_is_trained_again_and_its_forks_are_not(job, quiet, tmp_path):
    jobs = [job(eps_low=low) for low in ("4/255", "5/255")]
    source, fork = run_jobs(jobs, tmp_path, screen=quiet)
    assert RunFolder(fork.folder).read_config().init_from == f"{source.folder.resolve()}@1"
    trained = RunFolder(fork.folder).checkpoint("last").stat().st_mtime_ns
    shutil.rmtree(source.folder)
    assert [state.state for state in run_jobs(jobs, tmp_path, screen=quiet)] == ["done", "done"]
    assert RunFolder(fork.folder).checkpoint("last").stat().st_mtime_ns == trained


@pytest.mark.parametrize("arm", [0, 1])  # the second is a fork
def test_finished_run_whose_config_was_edited_is_a_mistake(job, quiet, tmp_path, arm):
    jobs = [job(eps_low=low) for low in ("4/255", "5/255")]
    folder = RunFolder(run_jobs(jobs, tmp_path, screen=quiet)[arm].folder)
    stored = folder.read_config()
    folder.config_file.write_text(stored.model_copy(update={"recipe": "mine"}).to_json())
    run_jobs(jobs, tmp_path, screen=quiet)  # a name decides nothing
    folder.config_file.write_text(stored.model_copy(update={"epochs": 2}).to_json())
    with pytest.raises(UserError, match=r"holds a run with another config \(epochs: 2 != 3\); move it away"):
        run_jobs(jobs, tmp_path, screen=quiet)


def test_folder_of_another_config_and_folder_in_use_are_mistakes(job, config, quiet, tmp_path):
    folder = RunFolder(tmp_path / "runs" / job().id)
    folder.write_config(config(seed=7))
    with pytest.raises(UserError, match=r"holds a run with another config \(seed: 7 != 0"):
        run_jobs([job(), job(seed=1)], tmp_path, screen=quiet)
    assert folder.read_config() == config(seed=7)
    with (
        exclusive_lock(tmp_path / "other" / ".lock", wait=False),
        pytest.raises(UserError, match="another process is working in "),
    ):
        run_jobs([job()], tmp_path / "other", screen=quiet)
    with exclusive_lock(tmp_path / "jobs" / f"{job().id}.lock", wait=False):
        assert states([job()], tmp_path) == ["running"]


@pytest.mark.parametrize(("attacks", "state"), [(("natural", "pgd2"), "done"), (("pgd2@4/255",), "unfinished")])
def test_jobs_of_a_version_that_wrote_the_default_step_size_are_done(attacks, state, job, quiet, tmp_path):
    one = dataclasses.replace(job(), attacks=attacks)
    run_jobs([one], tmp_path, screen=quiet)
    files = JobFiles(tmp_path, one.id)
    files.done.write_text(json.dumps([{**one.request, "step_size": 2 / 255}]))
    assert states([one], tmp_path) == [state]
