"""A run as its user meets it: it starts, finishes, forks, refuses mistakes, and never loses what was saved."""

import contextlib
import copy
import dataclasses
import errno
import itertools
import json
import os
import shutil
import signal
import time

import pytest
import torch

from pixelpart import data, draws
from pixelpart.engine import train as train_module
from pixelpart.engine.messages import EPOCH_COLUMNS
from pixelpart.engine.metrics import ProbeResult
from pixelpart.engine.signals import Stopped
from pixelpart.engine.train import train
from pixelpart.errors import Diverged, UserError
from pixelpart.masks import BudgetPolicy
from pixelpart.runs import Run, RunFolder, load_checkpoint
from pixelpart.runtime.device import machine
from pixelpart.runtime.progress import Screen
from pixelpart.version import code_version
from steps import decay_at
from stopping import files_of, stop_after
from terminals import screen_on_terminal, visible_lines

FIELDS = [
    "epoch", "phase", "loss", "lr", "natural", "pgd", "robust_ce", "measured_on", "train_natural", "train_pgd",
    "budget_mean", "high_fraction", "dead_cams", "damage", "seconds", "images_per_second",
]  # fmt: skip


def log_of(run):
    return (run.dir / "log.txt").read_text()


def test_a_run_writes_metrics_checkpoints_and_a_log(small, quiet, tmp_path):
    run = train(small(), tmp_path / "run", screen=quiet)
    assert run.config == small()
    assert [row["epoch"] for row in run.metrics] == [1, 2, 3]
    assert [row["phase"] for row in run.metrics] == ["burn-in", "mask", "mask"]
    assert list(run.metrics[0]) == FIELDS
    written = [json.loads(line) for line in (run.dir / "metrics.jsonl").read_text().splitlines()]
    assert [{name: row[name] for name in row if name != "sum"} for row in written] == run.metrics
    assert run.metrics[0]["budget_mean"] == pytest.approx(8 / 255)
    high = run.metrics[1]["high_fraction"]
    assert 0 < high < 1
    assert run.metrics[1]["budget_mean"] == pytest.approx((7 + high) / 255, rel=1e-5)
    assert not run.model.training
    first, second = log_of(run).splitlines()[:2]
    assert first.endswith(f" pixelpart {code_version()} on {machine(torch.device('cpu'))}")
    assert "3 epochs of 4 steps on cpu, uncompiled" in second


def shown_table(screen):
    """What is above the table, its rows, and what is below it."""
    lines = visible_lines(screen)
    head = lines.index(next(line for line in lines if line.split() == list(EPOCH_COLUMNS)))
    bar = lines.index(next(line for line in lines[head:] if line.startswith("shapes-part ")))
    return lines[:head], [line.split() for line in lines[head + 1 : bar]], lines[bar + 1 :]


def test_on_a_terminal_epochs_are_rows_of_a_table_which_remains_after_ctrl_c_and_continues(
    small, tmp_path, monkeypatch
):
    screen = screen_on_terminal(width=60)
    with monkeypatch.context() as patch:
        stop_after(patch, 7)  # in the middle of the second epoch
        with pytest.raises(KeyboardInterrupt):
            train(small(), tmp_path / "run", screen=screen)
    above, rows, below = shown_table(screen)
    assert [row[:2] for row in rows] == [["1/3", "burn-in"], ["2/3", "mask"]]
    assert len(rows[1]) == 4  # neither loss nor accuracy yet
    assert below == ["stopped after step 7; the same command resumes from there"]
    stopping = "stopping: finishes the step in progress, then saves; a second Ctrl-C stops at once and loses"
    assert stopping in " ".join(above)
    assert above[0].startswith("pixelpart ")
    assert any(line.startswith("shapes-part: 3 epochs") for line in above)
    assert screen.console.file.getvalue().count("\x1b[?25h") >= screen.console.file.getvalue().count("\x1b[?25l")

    screen = screen_on_terminal(width=60)
    run = train(small(), tmp_path / "run", screen=screen)
    _, rows, _ = shown_table(screen)
    measured = [(f"{row['loss']:.4f}", f"{row['natural']:.1%}", f"{row['pgd']:.1%}") for row in run.metrics]
    assert [tuple(row[2:5]) for row in rows] == measured
    assert log_of(run).count("pgd on training images") == 3
    assert not [line for line in visible_lines(screen) if "pgd on training images" in line]


def test_equal_configs_give_equal_bytes_and_a_finished_run_is_left_unchanged(small, quiet, tmp_path):
    a, b, c = (
        train(small("at", epochs=1, seed=seed), tmp_path / name, screen=quiet)
        for seed, name in ((0, "a"), (0, "b"), (1, "c"))
    )
    assert files_of(a) == files_of(b)
    assert files_of(a)["last"] != files_of(c)["last"]
    metrics = a.metrics
    train(a.config, a.dir, screen=quiet)
    assert (files_of(a), a.metrics) == (files_of(b), metrics)
    assert "is finished" in log_of(a)


# -- averaged weights


def test_the_average_of_a_run_and_of_its_fork_equals_a_plain_loop_over_the_weights(small, quiet, tmp_path, monkeypatch):
    """The fork goes on with the step at which it forked."""
    step, after = train_module.train_step, []

    def spy(state, *args):
        if not after:
            after.append({name: tensor.clone() for name, tensor in state.model.state_dict().items()})
        step(state, *args)
        after.append({name: tensor.clone() for name, tensor in state.model.state_dict().items()})

    monkeypatch.setattr(train_module, "train_step", spy)
    train(small("at", epochs=1, keep=(1,)), tmp_path / "run", screen=quiet)
    run = train(small("at", epochs=3, init_from=f"{tmp_path / 'run'}@1"), tmp_path / "fork", screen=quiet)
    mean, *rest = after
    for t, weights in enumerate(rest):
        d = decay_at(t, 0.99)
        mean = {name: d * mean[name] + (1 - d) * w if w.is_floating_point() else w for name, w in weights.items()}
    assert len(rest) == 12
    saved = load_checkpoint(run.folder.checkpoint("last"))[0]
    for name, tensor in mean.items():
        torch.testing.assert_close(saved[f"average.{name}"], tensor, rtol=1e-6, atol=1e-7, msg=name)


def test_after_24_steps_the_averaged_weights_are_as_accurate_as_the_raw_ones(small, quiet, tmp_path, monkeypatch):
    """Noise with one of three colours brighter: learned in 24 steps, not at once."""
    g = draws.generator(0, "test")
    y = torch.arange(440) % 3
    x = torch.randint(160, (440, 3, 32, 32), generator=g)
    x[torch.arange(440), y] += 40
    changed = dataclasses.replace(data.SETS["shapes"], load=lambda split, *_: (x.byte(), y))
    monkeypatch.setitem(data.SETS, "shapes", changed)
    settings = {"epochs": 6, "batch_size": 64, "holdout": 200, "probe": 200, "eps": 2 / 255, "augment": "none"}
    raw, averaged = (
        train(small("at", ema=ema, **settings), tmp_path / f"{ema}", screen=quiet).metrics[-1] for ema in (0.0, 0.99)
    )
    assert raw["loss"] == averaged["loss"]
    assert raw["natural"] > 0.9
    assert averaged["natural"] > raw["natural"] - 0.02
    assert averaged["pgd"] > raw["pgd"] - 0.03


# -- the best checkpoint


def test_the_best_epoch_has_the_lowest_robust_cross_entropy_after_burn_in(small, quiet, tmp_path, monkeypatch):
    """Two probes an epoch, held-out second; burn-in would be the best."""
    values = itertools.chain.from_iterable((9.0, value) for value in (1.0, 3.0, 2.0, 4.0))
    monkeypatch.setattr(train_module.metrics, "probe", lambda *_, **__: ProbeResult(0.5, 0.5, next(values)))
    run = train(small(epochs=4), tmp_path / "run", screen=quiet)
    assert load_checkpoint(run.folder.checkpoint("best"))[1]["epoch"] == 3


def test_without_held_out_images_the_best_is_the_last(small, quiet, tmp_path):
    run = train(small("at", holdout=0, epochs=1), tmp_path / "run", screen=quiet)
    assert run.metrics[0]["measured_on"] == "test"
    last = load_checkpoint(run.folder.checkpoint("last"))[0]
    for name, tensor in load_checkpoint(run.folder.checkpoint("best"))[0].items():
        assert torch.equal(tensor, last[name])


# -- forks


def test_a_fork_with_the_same_settings_ends_in_the_same_bits(small, quiet, tmp_path):
    train(small(), tmp_path / "part", screen=quiet)
    run = train(small(init_from=f"{tmp_path / 'part'}@1"), tmp_path / "fork", screen=quiet)
    mine, theirs = (load_checkpoint(RunFolder(tmp_path / d).checkpoint("last"))[0] for d in ("fork", "part"))
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs)
    assert [row["epoch"] for row in run.metrics] == [2, 3]
    assert "forked from" in log_of(run)


def test_a_fork_computes_stored_maps_also_between_two_renewals(small, quiet, tmp_path):
    train(small(epochs=2, keep=(2,)), tmp_path / "part", screen=quiet)
    stored = {"rule": "mean", "every": 4}
    run = train(small(epochs=3, mask=stored, init_from=f"{tmp_path / 'part'}@2"), tmp_path / "fork", screen=quiet)
    assert all(0 < row["high_fraction"] < 1 for row in run.metrics)


def test_a_run_from_the_weights_of_another_starts_anew_with_its_best_model(small, quiet, tmp_path, monkeypatch):
    parent = train(small("at", eps=0.0, epochs=2), tmp_path / "plain", screen=quiet)
    starts, step = [], train_module.train_step

    def spy(state, *args):
        starts.append([copy.deepcopy(m.state_dict()) for m in (state.model, state.average.model)])
        step(state, *args)

    monkeypatch.setattr(train_module, "train_step", spy)
    config = small("part", epochs=2, seed=1, init_from=str(parent.dir))
    run = train(config, tmp_path / "hard", screen=quiet, stop_after=1)
    assert all(torch.equal(s[name], tensor) for s in starts[0] for name, tensor in parent.model.state_dict().items())
    assert len(starts) == 4
    assert f"the initial weights are those of {parent.dir}" in log_of(run)
    shutil.rmtree(parent.dir)  # no longer needed
    run = train(config, tmp_path / "hard", screen=quiet)
    assert [row["epoch"] for row in run.metrics] == [1, 2]


def test_a_run_starts_only_from_a_finished_run_of_the_same_network(small, quiet, tmp_path):
    parent = train(small("at", epochs=2), tmp_path / "plain", screen=quiet, stop_after=1)
    for model, message in (("tiny-cnn", "only 1 of its 2 epochs"), ("resnet18", "model: 'tiny-cnn' != 'resnet18'")):
        with pytest.raises(UserError, match=message):
            train(small("at", init_from=str(parent.dir), model=model), tmp_path / "run", screen=quiet)
    assert not (tmp_path / "run").exists()


@pytest.fixture
def parent(small, quiet, tmp_path):
    """A run of two epochs with a checkpoint of the first."""
    train(small("at", epochs=2, keep=(1,)), tmp_path / "parent", screen=quiet)
    return tmp_path / "parent"


def test_a_fork_that_does_not_fit_its_parent_is_refused_before_anything_is_written(small, quiet, tmp_path, parent):
    cases = [
        ({"seed": 1}, "seed: 0 != 1"),  # other held-out images: the parent has trained on them
        ({"holdout": 30}, "holdout"),
        ({"ema": 0.5}, "ema"),
        ({"optim": {"name": "adamw"}}, "optim.name: 'sgd' != 'adamw'"),
        ({"epochs": 1}, "no epochs left to train"),
        ({"init_from": f"{parent}@3"}, r"no checkpoint after epoch 3; kept epochs: 1"),
    ]
    for change, message in cases:
        config = small("at", **{"epochs": 2, "init_from": f"{parent}@1"} | change)
        with pytest.raises(UserError, match=message):
            train(config, tmp_path / "fork", screen=quiet)
        assert not (tmp_path / "fork" / "config.json").exists()


# -- mistakes and accidents


def test_a_folder_of_another_config_or_of_other_files_is_refused(small, quiet, tmp_path):
    train(small("at", epochs=1), tmp_path / "run", screen=quiet)
    with pytest.raises(UserError, match=r"eps_low: '7/255' != '6/255'"):
        train(small("at", epochs=1, eps_low=6 / 255), tmp_path / "run", screen=quiet)
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(UserError, match="not a run folder"):
        train(small("at"), tmp_path, screen=quiet)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"
    with RunFolder(tmp_path / "locked").locked(), pytest.raises(UserError, match="another process"):
        train(small("at"), tmp_path / "locked", screen=quiet)


def test_ctrl_c_is_answered_during_the_measurement_and_a_second_one_ends_it(small, tmp_path, monkeypatch):
    lines, original = [], train_module.metrics.probe

    def interrupted(*args, **settings):
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(1000):
            if (tmp_path / "run" / "log.txt").read_text().count("stopping: "):
                break
            time.sleep(0.01)
        lines.append((tmp_path / "run" / "log.txt").read_text().splitlines()[-1])
        os.kill(os.getpid(), signal.SIGINT)
        return original(*args, **settings)

    monkeypatch.setattr(train_module.metrics, "probe", interrupted)
    with pytest.raises(KeyboardInterrupt) as caught:
        train(small("at"), tmp_path / "run", screen=Screen(quiet=True))
    assert not isinstance(caught.value, Stopped)
    assert "stopping: finishes the measurement after epoch 1, then saves; a second Ctrl-C stops at once" in lines[0]
    last = (tmp_path / "run" / "log.txt").read_text().splitlines()[-1]
    assert last.endswith("stopped without saving; the same command resumes from the last checkpoint")


@pytest.fixture
def stopped(small, quiet, tmp_path, monkeypatch):
    """The config and the folder of a run that was stopped after step 5."""
    config = small("at")
    with monkeypatch.context() as patch:
        stop_after(patch, 5)
        with pytest.raises(KeyboardInterrupt):
            train(config, tmp_path / "run", screen=quiet)
    return config, Run(tmp_path / "run").folder


def test_a_loss_that_is_not_finite_ends_the_run_and_keeps_the_last_good_checkpoint(stopped, quiet, monkeypatch):
    config, folder = stopped
    good = folder.checkpoint("last").read_bytes()
    monkeypatch.setitem(train_module.SCHEDULES, config.optim.schedule, lambda *_: 1e30)
    with pytest.raises(Diverged, match=r"the loss was not finite .* step 5"):
        train(config, folder.path, screen=quiet)
    assert folder.checkpoint("last").read_bytes() == good


def test_a_full_disk_destroys_no_checkpoint(stopped, quiet, monkeypatch):
    config, folder = stopped
    good = folder.checkpoint("last").read_bytes()

    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            train(config, folder.path, screen=quiet)
    assert folder.checkpoint("last").read_bytes() == good
    assert not list(folder.path.rglob("*.partial"))
    assert len(train(config, folder.path, screen=quiet).metrics) == 3


def test_a_truncated_or_foreign_checkpoint_is_refused_and_not_overwritten(stopped, small, quiet, tmp_path):
    config, folder = stopped
    path = folder.checkpoint("last")
    other = RunFolder(tmp_path / "other")
    other.write_config(small("at", model="wrn-10-1"))
    other.checkpoint("last").parent.mkdir()
    other.checkpoint("last").write_bytes(path.read_bytes())
    with pytest.raises(UserError, match="another model"):
        train(small("at", model="wrn-10-1"), other.path, screen=quiet)
    path.write_bytes(path.read_bytes()[:-100])
    torn = path.read_bytes()
    with pytest.raises(UserError, match=r"last\.safetensors is truncated"):
        train(config, folder.path, screen=quiet)
    assert path.read_bytes() == torn


def test_an_epoch_of_dead_maps_is_logged(small, quiet, tmp_path, monkeypatch):
    monkeypatch.setattr(BudgetPolicy, "maps", lambda self, inputs: torch.zeros(len(inputs.x), 8, 8))
    run = train(small(mask={"rule": "mean", "every": 1}, epochs=2), tmp_path / "run", screen=quiet)
    assert run.metrics[1]["dead_cams"] == 200
    assert "every heat map of this epoch was zero" in log_of(run)


def test_a_run_happens_while_its_device_is_the_current_device(small, quiet, tmp_path, monkeypatch):
    """With several GPUs a graph is captured on the current one, wherever the weights are: it would be empty."""
    inside, seen = [], []

    @contextlib.contextmanager
    def current(device):
        inside.append(device)
        yield
        inside.clear()

    for name in ("TrainingState", "train_step"):
        original = getattr(train_module, name)
        monkeypatch.setattr(train_module, name, lambda *args, call=original: seen.append([*inside]) or call(*args))
    monkeypatch.setattr(train_module, "current", current)
    train(small("at", epochs=1), tmp_path / "run", screen=quiet)
    assert seen == [[torch.device("cpu")]] * 5  # the state and four steps


def test_only_a_config_is_trained(tmp_path):
    with pytest.raises(UserError, match=r"train takes a config such as .*, not a Flatten"):
        train(torch.nn.Flatten(), tmp_path / "run")
