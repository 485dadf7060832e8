"""Shared burn-ins: trained once, with the bits of runs that do not share."""

import pytest
import torch

from pixelpart.engine.train import train
from pixelpart.runs import RunFolder, load_checkpoint
from pixelpart.sweeps.burn_ins import share_burn_ins
from pixelpart.sweeps.jobs import job_states, plan, run_jobs
from pixelpart.sweeps.work import Job
from stopping import rows_without_clock


def weights(folder, name):
    return load_checkpoint(folder.checkpoint(name))[0]


def equal(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("plain", [True, False])
def test_runs_with_a_shared_burn_in_have_the_bits_of_runs_without(config, quiet, tmp_path, monkeypatch, plain):
    monkeypatch.setitem(train.__kwdefaults__, "save_seconds", 0)  # also inside the first epoch of a fork
    arms = [config(eps_low=low, mask={"rule": "mean", "every": 1}) for low in ("4/255", "7/255")]
    configs = [*arms, *([config("at")] if plain else [])]
    states = run_jobs([Job(c) for c in configs], tmp_path / "sweep", screen=quiet)
    leader = states[-1] if plain else states[0]
    for state, alone in zip(states, configs, strict=True):
        whole = train(alone, tmp_path / state.job.id, screen=quiet)
        run = RunFolder(state.folder)
        assert run.read_config().init_from == ("" if state is leader else f"{leader.folder.resolve()}@1")
        assert run.checkpoint("epoch-1").exists() == (state is leader)
        for name in ("last", "best"):
            assert equal(weights(run, name), weights(whole.folder, name))
        shared = rows_without_clock(whole)[0 if state is leader else 1 :]
        assert [
            {k: v for k, v in row.items() if k not in ("seconds", "images_per_second")} for row in run.read_metrics()
        ] == shared


def test_groups_and_their_leaders(config, tmp_path):
    jobs = [
        Job(config(epochs=9, eps_low="4/255", burn_in={"epochs": 2})),
        Job(config(epochs=9, eps_low="5/255", burn_in={"epochs": 2})),
        Job(config(epochs=9, eps_low="4/255", burn_in={"epochs": 4})),
        Job(config(epochs=9, eps_low="5/255", burn_in={"epochs": 4})),
        Job(config(epochs=9, eps_low="4/255", burn_in={"epochs": 2}, seed=1)),
        Job(config(epochs=9, eps_low="5/255", burn_in={"epochs": 2}, seed=1)),
        Job(config(epochs=9, eps_low="4/255", burn_in={"epochs": 2}, seed=2)),
        Job(config("at", epochs=9, seed=1)),
    ]
    ids = [job.id for job in jobs]
    burn_ins, tasks = plan(jobs, tmp_path, device=None)
    assert {task.id: (task.burn_in, task.config.keep) for task in burn_ins} == {
        ids[2]: (4, (2, 4)),  # leads its own group, and the one with a shorter burn-in
        ids[7]: (2, (2,)),
    }
    forks = [task.parent and (ids.index(task.parent.id), task.parent.burn_in) for task in tasks]
    assert forks == [(2, 2), (2, 2), None, (2, 4), (7, 2), (7, 2), None, None]
    assert share_burn_ins([]) == ([], [])


def test_later_runs_fork_from_what_earlier_ones_kept(job, quiet, tmp_path):
    run_jobs([job()], tmp_path, screen=quiet)
    burn_ins, (task,) = plan([job(), job(eps_low="4/255")], tmp_path, device=None)
    assert burn_ins == []
    assert (task.parent.id, task.parent.burn_in) == (job().id, 1)
    (state,) = run_jobs([job(eps_low="4/255")], tmp_path, screen=quiet)
    assert state.state == "done"


def test_a_burn_in_that_was_stopped_is_trained_on_first(job, quiet, tmp_path):
    jobs = [job(burn_in={"epochs": 2}, eps_low=low) for low in ("4/255", "5/255")]
    leader = plan(jobs, tmp_path, device=None)[0][0]
    train(leader.config, tmp_path / "runs" / leader.id, screen=quiet, stop_after=1)
    burn_ins, tasks = plan(jobs, tmp_path, device=None)
    assert [(task.id, task.burn_in) for task in burn_ins] == [(leader.id, 2)]
    assert [task.parent and task.parent.id for task in tasks] == [None, leader.id]


def test_an_arm_that_finds_no_burn_in_trains_it(job, quiet, tmp_path):
    from pixelpart.sweeps.work import perform

    jobs = [job(eps_low=low) for low in ("4/255", "5/255")]
    _, tasks = plan(jobs, tmp_path, device=None)
    assert perform(tasks[1], quiet) == ""
    states = job_states(jobs, tmp_path)
    epochs = [RunFolder(state.folder).read_metrics()[-1]["epoch"] for state in states]
    assert [state.state for state in states] == ["unfinished", "done"]
    assert epochs == [1, 3]
