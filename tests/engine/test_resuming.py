"""Stopped or killed at any moment, a run ends in the same bytes."""

import errno
import fcntl
import os
import random
import signal
import time

import pytest
import torch
import torch.nn.functional as F

from pixelpart import models
from pixelpart.engine.train import train
from pixelpart.errors import UserError
from pixelpart.models.tiny import TinyCNN
from pixelpart.runs import Run, RunFolder, load_checkpoint, save_checkpoint
from stopping import files_of, rows_without_clock, stop_after, whole_and_parts

STORED = {"mask": {"rule": "mean", "every": 1}}
ALL = {"augment": "idbh", "objective": {"smoothing": 0.1}, "optim": {"schedule": "cosine", "warmup": 0.2}} | STORED
ADAMW = {
    "optim": {"name": "adamw", "lr": 0.01, "weight_decay": 0.1, "clip": 1.0},
    "awp": {"gamma": 0.005, "after": 1},
    "augment": "crop-flip-cutmix",
}


@pytest.mark.parametrize(
    ("method", "settings", "at"),
    [
        ("part", {}, 2),  # in burn-in
        ("part", STORED, 4),  # after burn-in
        ("part", STORED, 7),  # with stored maps
        ("part-t", ALL, 5),
        ("part-m", ADAMW, 6),
        ("part", {"precision": "bf16"} | STORED, 5),
    ],
)
def test_a_stopped_run_resumes_to_the_same_bytes(small, quiet, tmp_path, monkeypatch, method, settings, at):
    whole, parts = whole_and_parts(small(method, epochs=2, **settings), tmp_path, monkeypatch, at=at, screen=quiet)
    log = (tmp_path / "parts" / "log.txt").read_text()
    assert log.index(f"stopped after step {at}") < log.index(f"resumed at step {at}:")
    assert files_of(parts) == files_of(whole)
    assert rows_without_clock(parts) == rows_without_clock(whole)


def test_a_checkpoint_holds_these_tensors(small, quiet, tmp_path):
    """Their names are a file format."""
    kinds = {}
    for name, settings in {"sgd": STORED, "adamw": ADAMW}.items():
        run = train(small("part", epochs=2, **settings), tmp_path / name, screen=quiet)
        kinds[name] = {key.partition(".")[0] for key in load_checkpoint(run.folder.checkpoint("last"))[0]}
    assert kinds["sgd"] == {"model", "average", "momentum", "tally", "maps"}
    assert kinds["adamw"] == {"model", "average", "mean_gradient", "squared_gradient", "steps", "tally"}


def test_a_network_with_dropout_resumes_to_the_same_bytes(small, quiet, tmp_path, monkeypatch):
    """Dropout uses torch's global generator, whose state is restored after the run."""

    class WithDropout(TinyCNN):
        def trunk(self, x):
            return F.dropout(super().trunk(x), 0.3, training=self.training)

    monkeypatch.setitem(models.MODELS, "tiny-cnn", WithDropout)
    before = torch.get_rng_state()
    whole, parts = whole_and_parts(small("at", epochs=2), tmp_path, monkeypatch, at=5, screen=quiet)
    assert files_of(parts) == files_of(whole)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(7)  # another state of the generator
    assert files_of(train(small("at", epochs=2), tmp_path / "again", screen=quiet)) == files_of(whole)


@pytest.mark.parametrize(
    ("kills", "locks"),
    [(2, "flock"), (1, "soft"), pytest.param(20, "flock", marks=[pytest.mark.slow, pytest.mark.timeout(600)])],
)
def test_a_run_killed_at_random_moments_resumes_to_the_same_bytes(small, quiet, tmp_path, monkeypatch, kills, locks):
    def no_flock(*_):
        raise OSError(errno.ENOSYS, "as on some mounts of clusters")

    if locks == "soft":
        monkeypatch.setattr(fcntl, "flock", no_flock)
    config = small(epochs=4, **STORED)
    whole, folder = train(config, tmp_path / "whole", screen=quiet), tmp_path / "killed"
    last, moments, killed = RunFolder(folder).checkpoint("last"), random.Random(7), 0
    while killed < kills:
        before = last.stat().st_mtime_ns if last.exists() else 0
        child = os.fork()
        if child == 0:
            try:
                train(config, folder, screen=quiet, save_seconds=0)
            finally:
                os._exit(0)
        while not os.waitpid(child, os.WNOHANG)[0]:
            if last.exists() and last.stat().st_mtime_ns != before:
                time.sleep(moments.uniform(0, 0.1))
                os.kill(child, signal.SIGKILL)
                killed += os.WIFSIGNALED(os.waitpid(child, 0)[1])
                break
            time.sleep(0.002)
        else:
            break  # the run has finished
    train(config, folder, screen=quiet)
    assert killed
    assert files_of(Run(folder)) == files_of(whole)
    assert rows_without_clock(Run(folder)) == rows_without_clock(whole)


def test_seconds_of_a_resumed_epoch_count_all_of_it(small, quiet, tmp_path, monkeypatch):
    stop_after(monkeypatch, 2)
    with pytest.raises(KeyboardInterrupt):
        train(small("at", epochs=1), tmp_path / "run", screen=quiet)
    folder = RunFolder(tmp_path / "run")
    assert folder.read_clock(1) is None
    assert 0 < folder.read_clock(2) < 1000
    folder.write_clock({1: 5.0, 2: 1000.0})
    (row,) = train(small("at", epochs=1), tmp_path / "run", screen=quiet).metrics
    assert 1000 < row["seconds"] < 2000


def test_corrupt_metrics_are_kept_aside_and_training_goes_on(small, quiet, tmp_path):
    folder = RunFolder(tmp_path / "run")
    train(small("at", epochs=3), folder.path, screen=quiet, stop_after=2)
    corrupt = folder.metrics_file.read_text().replace('"epoch": 1', '"epoch": 7')
    folder.metrics_file.write_text(corrupt)
    train(small("at", epochs=3), folder.path, screen=quiet)
    assert [row["epoch"] for row in folder.read_metrics([])] == [2, 3]
    assert (folder.path / "metrics.jsonl.corrupt").read_text() == corrupt
    assert "metrics.jsonl: line 1 is corrupt (checksum mismatch)" in folder.log_file.read_text()
    with pytest.raises(UserError, match="epochs without a row: 1"):
        folder.read_metrics()


@pytest.mark.parametrize(("kept", "missing"), [(1, "2"), (0, "1, 2")])
def test_lost_rows_at_the_end_of_metrics_are_reported(small, quiet, tmp_path, kept, missing):
    folder = RunFolder(tmp_path / "run")
    train(small("at", epochs=3), folder.path, screen=quiet, stop_after=2)
    folder.metrics_file.write_text("".join(folder.metrics_file.read_text().splitlines(keepends=True)[:kept]))
    train(small("at", epochs=3), folder.path, screen=quiet)
    assert f"metrics.jsonl: epochs without a row: {missing}\n" in folder.log_file.read_text()


def test_a_position_that_does_not_fit_the_run_is_refused(small, quiet, tmp_path):
    run = train(small("at", epochs=1), tmp_path / "run", screen=quiet)
    path = run.folder.checkpoint("last")
    tensors, facts = load_checkpoint(path)
    save_checkpoint(path, tensors, facts | {"position": facts["position"] | {"step": 10**9}})
    with pytest.raises(UserError, match="step 1000000000 in epoch 2 does not fit"):
        train(small("at", epochs=1), tmp_path / "run", screen=quiet)
