"""A run as its user meets it: it starts, stops, goes on, ends, and never loses what it had."""

import contextlib
import dataclasses
import errno
import itertools
import json
import os

import pytest
import torch

from pixelpart import data
from pixelpart.engine import stored_maps
from pixelpart.engine import train as train_module
from pixelpart.engine.probe import Reading
from pixelpart.engine.state import Learner
from pixelpart.engine.step import train_step
from pixelpart.engine.train import train
from pixelpart.errors import Diverged, UserError
from pixelpart.runs import Run, RunFolder, load_checkpoint
from stopping import files_of, stop_after


def test_a_run_leaves_what_design_promises(small, quiet, tmp_path):
    run = train(small(), tmp_path / "run", screen=quiet)
    assert run.config == small()
    assert [row["epoch"] for row in run.metrics] == [1, 2, 3]
    assert [row["phase"] for row in run.metrics] == ["burn-in", "mask", "mask"]
    promised = {
        "epoch",
        "loss",
        "lr",
        "natural",
        "pgd",
        "train_pgd",
        "seconds",
        "images_per_second",
        "budget_mean",
        "high_fraction",
        "dead_cams",
        "damage",
    }
    assert promised <= run.metrics[0].keys()
    assert run.metrics[0]["budget_mean"] == pytest.approx(8 / 255)
    assert 7 / 255 < run.metrics[1]["budget_mean"] < 8 / 255
    high = run.metrics[1]["high_fraction"]
    assert run.metrics[1]["budget_mean"] == pytest.approx((7 + high) / 255, rel=1e-5)
    assert not run.model.training
    best = min(run.metrics[1:], key=lambda row: row["robust_ce"])  # burn-in does not count
    assert load_checkpoint(run.folder.checkpoint("best"))[1]["epoch"] == best["epoch"]
    said = (run.dir / "log.txt").read_text()
    assert "3 epochs of 4 steps on cpu, run plainly" in said


def test_a_finished_run_says_so_and_changes_nothing(small, quiet, tmp_path):
    config = small("at", epochs=1)
    run = train(config, tmp_path / "run", screen=quiet)
    before = files_of(run), run.metrics
    train(config, tmp_path / "run", screen=quiet)
    assert (files_of(run), run.metrics) == before
    assert "is finished" in (run.dir / "log.txt").read_text()


def test_a_changed_config_is_refused_and_the_field_named(small, quiet, tmp_path):
    train(small("at", epochs=1), tmp_path / "run", screen=quiet)
    with pytest.raises(UserError, match=r"eps_low: '7/255' there, '6/255' here"):
        train(small("at", epochs=1, eps_low=6 / 255), tmp_path / "run", screen=quiet)


def test_a_second_process_is_refused(small, quiet, tmp_path):
    with RunFolder(tmp_path / "run").locked(), pytest.raises(UserError, match="another process"):
        train(small("at"), tmp_path / "run", screen=quiet)


def test_a_folder_of_something_else_is_left_alone(small, quiet, tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(UserError, match="not a run folder"):
        train(small("at"), tmp_path, screen=quiet)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_last_good_checkpoint(
    small, quiet, tmp_path, monkeypatch
):
    config = small("at")
    with monkeypatch.context() as patch:
        stop_after(patch, 5)
        with pytest.raises(KeyboardInterrupt):
            train(config, tmp_path / "run", screen=quiet)
    good = Run(tmp_path / "run").folder.checkpoint("last").read_bytes()
    monkeypatch.setitem(train_module.SCHEDULES, config.optim.schedule, lambda *_: 1e30)
    with pytest.raises(Diverged, match=r"the loss was not finite .* step 5"):
        train(config, tmp_path / "run", screen=quiet)
    assert Run(tmp_path / "run").folder.checkpoint("last").read_bytes() == good


def test_a_full_disk_costs_nothing_that_was_there(small, quiet, tmp_path, monkeypatch):
    config = small("at")
    with monkeypatch.context() as patch:
        stop_after(patch, 5)
        with pytest.raises(KeyboardInterrupt):
            train(config, tmp_path / "run", screen=quiet)
    folder = Run(tmp_path / "run").folder
    good = folder.checkpoint("last").read_bytes()
    with monkeypatch.context() as patch:

        def full(_):
            raise OSError(errno.ENOSPC, "No space left on device")

        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            train(config, tmp_path / "run", screen=quiet)
    assert folder.checkpoint("last").read_bytes() == good
    assert not list(folder.path.rglob("*.partial"))
    assert len(train(config, tmp_path / "run", screen=quiet).metrics) == 3


def test_a_truncated_checkpoint_is_named_and_not_overwritten(small, quiet, tmp_path):
    config = small("at", epochs=1)
    run = train(config, tmp_path / "run", screen=quiet)
    path = run.folder.checkpoint("last")
    path.write_bytes(path.read_bytes()[:-100])
    torn = path.read_bytes()
    with pytest.raises(UserError, match=r"last\.safetensors is truncated"):
        train(config, tmp_path / "run", screen=quiet)
    assert path.read_bytes() == torn


def test_a_checkpoint_of_another_model_is_refused(small, quiet, tmp_path):
    small_run = train(small("at", epochs=1), tmp_path / "a", screen=quiet)
    config = small("at", epochs=1, model="wrn-10-1")
    other = RunFolder(tmp_path / "b")
    other.write_config(config)
    other.checkpoint("last").parent.mkdir()
    other.checkpoint("last").write_bytes(small_run.folder.checkpoint("last").read_bytes())
    with pytest.raises(UserError, match="another model"):
        train(config, tmp_path / "b", screen=quiet)


def test_without_held_out_images_the_best_is_the_last(small, quiet, tmp_path):
    run = train(small("at", holdout=0, epochs=1), tmp_path / "run", screen=quiet)
    assert run.metrics[0]["measured_on"] == "test"
    last = load_checkpoint(run.folder.checkpoint("last"))[0]
    for name, tensor in load_checkpoint(run.folder.checkpoint("best"))[0].items():
        assert torch.equal(tensor, last[name])


def test_a_fork_shares_the_burn_in_to_the_bit(small, quiet, tmp_path):
    train(small(epochs=3), tmp_path / "part", screen=quiet)
    fork = small(epochs=3, init_from=f"{tmp_path / 'part'}@1")
    run = train(fork, tmp_path / "fork", screen=quiet)
    assert files_of(run).keys() == {"last", "best"}
    mine, theirs = (load_checkpoint(RunFolder(tmp_path / d).checkpoint("last"))[0] for d in ("fork", "part"))
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs)
    assert [row["epoch"] for row in run.metrics] == [2, 3]
    assert "forked from" in (run.dir / "log.txt").read_text()


def test_a_fork_from_an_epoch_that_was_not_kept_names_those_that_were(small, quiet, tmp_path):
    train(small(epochs=2), tmp_path / "part", screen=quiet)
    with pytest.raises(UserError, match=r"no checkpoint after epoch 2; there are: 1"):
        train(small(init_from=f"{tmp_path / 'part'}@2"), tmp_path / "fork", screen=quiet)


def test_equal_configs_give_equal_weights_and_another_seed_does_not(small, quiet, tmp_path):
    a, b, c = (
        train(small("at", epochs=1, seed=s), tmp_path / name, screen=quiet)
        for s, name in ((0, "a"), (0, "b"), (1, "c"))
    )
    assert files_of(a) == files_of(b)
    assert files_of(a)["last"] != files_of(c)["last"]


def test_metrics_are_json_lines(small, quiet, tmp_path):
    run = train(small("at", epochs=1), tmp_path / "run", screen=quiet)
    assert [json.loads(line) for line in (run.dir / "metrics.jsonl").read_text().splitlines()] == run.metrics


@pytest.mark.parametrize("method", ["trades", "mart", "part-t", "part-m"])
def test_every_method_trains(small, quiet, tmp_path, method):
    run = train(small(method, epochs=2), tmp_path / "run", screen=quiet)
    assert all(torch.isfinite(p).all() for p in run.model.parameters())


def test_a_batch_size_that_does_not_divide_the_data_sees_every_image(small, quiet, tmp_path, monkeypatch):
    seen = []
    original = train_module.train_step
    monkeypatch.setattr(train_module, "train_step", lambda *a: (seen.append(len(a[2].labels)), original(*a)))
    train(small("at", epochs=1, batch_size=130), tmp_path / "run", screen=quiet)
    assert seen == [130, 130, 130, 10]


def test_a_fork_into_the_middle_of_a_renewal_has_maps_of_its_own(small, quiet, tmp_path):
    train(small(keep=(2,)), tmp_path / "part", screen=quiet)
    stored = {"rule": "mean", "every": 4}
    run = train(small(epochs=4, mask=stored, init_from=f"{tmp_path / 'part'}@2"), tmp_path / "fork", screen=quiet)
    assert all(0 < row["high_fraction"] < 1 for row in run.metrics)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 1}, "seed: 0 there, 1 here"),  # other held-out images: the parent has trained on them
        ({"normalize": True}, "normalize"),
        ({"holdout": 50}, "holdout"),
        ({"ema": 0.5}, "ema"),
        ({"epochs": 2, "init_from": "@2"}, "leaves nothing to train"),
        ({"init_from": "nonsense"}, "is not RUN@EPOCH"),
    ],
)
def test_a_fork_that_would_not_be_one_is_refused_before_anything_is_written(small, quiet, tmp_path, change, message):
    train(small(keep=(2,)), tmp_path / "part", screen=quiet)
    at = change.pop("init_from", "@1")
    config = small(init_from=at if at == "nonsense" else f"{tmp_path / 'part'}{at}", **change)
    with pytest.raises(UserError, match=message):
        train(config, tmp_path / "fork", screen=quiet)
    assert not (tmp_path / "fork" / "config.json").exists()


def test_a_layer_that_gives_no_map_is_refused_before_burn_in(small, quiet, tmp_path):
    with pytest.raises(UserError, match="layer 'linear' gives"):
        train(small(mask={"rule": "mean", "layer": "linear"}), tmp_path / "run", screen=quiet)


def test_an_epoch_of_dead_maps_is_said_aloud(small, quiet, tmp_path, monkeypatch):
    monkeypatch.setattr(stored_maps, "class_map", lambda learner, model, phase, x, y, clean: torch.zeros(len(x), 8, 8))
    run = train(small(mask={"rule": "mean", "every": 1}, epochs=2), tmp_path / "run", screen=quiet)
    assert run.metrics[1]["dead_cams"] == 400
    assert "every heat map of this epoch was dead" in (run.dir / "log.txt").read_text()


@pytest.mark.parametrize("method", ["at", "part", "part-t"])
def test_mma_trains_with_a_start_for_every_target(small, quiet, tmp_path, method):
    attack = {"name": "mma", "steps": 1, "step_size": "8/255"}
    run = train(small(method, epochs=2, attack=attack), tmp_path / "run", screen=quiet)
    assert all(torch.isfinite(p).all() for p in run.model.parameters())


def test_bf16_trains_as_fp32_does_up_to_rounding(small, quiet, tmp_path):
    a, b = (train(small("part", precision=p), tmp_path / p, screen=quiet) for p in ("fp32", "bf16"))
    assert a.metrics[-1]["loss"] == pytest.approx(b.metrics[-1]["loss"], rel=0.02)
    assert a.metrics[-1]["loss"] != b.metrics[-1]["loss"]


def test_labels_that_the_set_does_not_know_are_refused(small, quiet, tmp_path, monkeypatch):
    images, labels = data.load("shapes", split="train")
    wrong = dataclasses.replace(data.SETS["shapes"], load=lambda split, root: (images, labels + 1))
    monkeypatch.setitem(data.SETS, "shapes", wrong)
    with pytest.raises(UserError, match="label 10 is out of range; 10 classes are numbered 0 to 9"):
        train(small("at"), tmp_path / "run", screen=quiet)
    assert not (tmp_path / "run").exists()


def test_the_best_is_never_a_burn_in_epoch(small, quiet, tmp_path, monkeypatch):
    grows = itertools.count(1)
    monkeypatch.setattr(train_module.probe, "read", lambda *_, **__: Reading(0.5, 0.5, float(next(grows))))
    run = train(small(epochs=3), tmp_path / "run", screen=quiet)
    assert load_checkpoint(run.folder.checkpoint("best"))[1]["epoch"] == 2


def test_all_of_a_run_happens_while_its_device_is_the_current_one(small, quiet, tmp_path, monkeypatch):
    """Among several GPUs a graph is captured on the current one, wherever the weights are: it would be empty."""
    inside, learners = [], []

    @contextlib.contextmanager
    def current(device):
        inside.append(device)
        yield
        inside.clear()

    def learner(*args):
        learners.append(list(inside))
        return Learner(*args)

    def step(*args):
        assert inside == [torch.device("cpu")]
        train_step(*args)

    for name, stand_in in (("current", current), ("Learner", learner), ("train_step", step)):
        monkeypatch.setattr(train_module, name, stand_in)
    train(small("at", epochs=1), tmp_path / "run", screen=quiet)
    assert learners == [[torch.device("cpu")]]
