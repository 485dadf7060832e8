"""results/replication/block.py: its runs, trained or forked, are those that the experiment looks for."""

import importlib.util
from pathlib import Path

import pytest

import pixelpart as pp
from pixelpart.experiments import replication
from pixelpart.experiments.common.scales import SCALES
from pixelpart.runs import RunFolder
from pixelpart.sweeps.identity import identity
from pixelpart.sweeps.jobs import Job

FILE = Path(__file__).parents[2] / "results" / "replication" / "block.py"


@pytest.mark.parametrize("baselines_first", [True, False])
def test_all_arms_have_the_identity_of_the_experiments_arms(tmp_path, monkeypatch, baselines_first):
    spec = importlib.util.spec_from_file_location("block", FILE)
    block = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(block)
    found = []

    def train(config, out):
        RunFolder(out).write_config(config)
        found.append(identity(config, folder=Path(out)))

    monkeypatch.setattr(pp, "train", train)
    monkeypatch.setattr(pp, "evaluate", lambda *_, **__: None)
    arms = replication.arms(SCALES["paper"])
    order = sorted(arms, key=lambda arm: (arm not in ("AT", "TRADES", "MART")) == baselines_first)
    block.main(str(tmp_path / "runs"), "3", *order)
    assert found == [Job(arms[arm].model_copy(update={"seed": 3})).id for arm in order]
