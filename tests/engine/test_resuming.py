"""Stopped or killed at any moment, a run ends in the same bytes."""

import random
import subprocess
import sys
import time

import pytest
import torch
import torch.nn.functional as F

from pixelpart import models
from pixelpart.engine.train import train
from pixelpart.models.tiny import TinyCNN
from pixelpart.runs import Run, RunFolder
from stopping import files_of, rows_without_clock, whole_and_parts


@pytest.mark.parametrize("at", [2, 4, 7, 11])
@pytest.mark.parametrize("stored", [0, 1])
def test_stopped_anywhere_the_final_files_are_the_same_bytes(small, quiet, tmp_path, monkeypatch, at, stored):
    config = small(mask={"rule": "mean", "every": stored})
    whole, parts = whole_and_parts(config, tmp_path, monkeypatch, at=at, screen=quiet)
    said = (tmp_path / "parts" / "log.txt").read_text()
    assert said.index(f"stopped after step {at}") < said.index(f"resumed at step {at}:")
    assert files_of(parts) == files_of(whole)
    assert rows_without_clock(parts) == rows_without_clock(whole)


def test_a_network_that_draws_draws_the_same_again(small, quiet, tmp_path, monkeypatch):
    """Dropout asks torch's global generator: equal configs, equal weights, stopped or not; and it is as before."""

    class Forgetful(TinyCNN):
        def trunk(self, x):
            return F.dropout(super().trunk(x), 0.3, training=self.training)

    monkeypatch.setitem(models.MODELS, "tiny-cnn", Forgetful)
    config = small("at")
    before = torch.get_rng_state()
    whole, parts = whole_and_parts(config, tmp_path, monkeypatch, at=5, screen=quiet)
    assert files_of(parts) == files_of(whole)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(7)  # another state to begin with
    assert files_of(train(config, tmp_path / "again", screen=quiet)) == files_of(whole)


@pytest.mark.parametrize("kills", [1, pytest.param(12, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
def test_killed_at_random_moments_the_final_files_are_the_same_bytes(small, quiet, tmp_path, kills):
    config = small(mask={"rule": "mean", "every": 1}, epochs=12)
    (tmp_path / "config.toml").write_text(config.to_toml())
    code = f"""
import dataclasses, sys, torch
torch.set_num_threads({torch.get_num_threads()})
from pathlib import Path
from pixelpart import data
from pixelpart.config import read_config
from pixelpart.engine.probe import Reading
from pixelpart.engine.train import train
some = lambda split, root: tuple(tensor[:460] for tensor in data.shapes.generate(split))
data.SETS["shapes"] = dataclasses.replace(data.SETS["shapes"], load=some)
train(read_config(Path(sys.argv[1])), sys.argv[2], save_seconds=0)
"""
    command = [sys.executable, "-c", code, str(tmp_path / "config.toml"), str(tmp_path / "killed")]
    whole = train(config, tmp_path / "whole", screen=quiet)
    moments = random.Random(7)
    killed = 0
    last = RunFolder(tmp_path / "killed").checkpoint("last")
    while killed < kills:
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        before = last.stat().st_mtime_ns if last.exists() else 0
        while process.poll() is None and (not last.exists() or last.stat().st_mtime_ns == before):
            time.sleep(0.002)
        time.sleep(moments.uniform(0, 0.3))
        killed += process.poll() is None
        process.kill()
        process.wait()
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    assert files_of(Run(tmp_path / "killed")) == files_of(whole)
    assert rows_without_clock(Run(tmp_path / "killed")) == rows_without_clock(whole)
