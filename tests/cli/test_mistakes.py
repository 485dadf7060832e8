"""A user's mistake is one line and exit code 2, and changes no file."""

import os

import pytest

from command_line import TINY, files, mistake
from pixelpart.engine import train as train_module
from pixelpart.runs import RunFolder, load_checkpoint

WRONG = [
    (["nope"], "unknown command 'nope'; choose from "),
    (["trian"], "unknown command 'trian'; did you mean train? choose from bench, "),
    (["train", "cifar10"], "unknown recipe 'cifar10'; did you mean cifar10-at or "),
    (["train", "shape-part"], "unknown recipe 'shape-part'; did you mean shapes-part or "),
    (["train", "nonsense"], "unknown recipe 'nonsense'; `pixelpart train` lists all"),
    (["train", "runs/a"], "no run folder runs/a; `pixelpart train` lists the recipes"),
    (["train", "."], ". is not a run folder: it has no config.json"),
    (["train", "--epochs", "3"], "name a recipe first: pixelpart train RECIPE --epochs ..."),
    (["train", "shapes-at", "--dataset", "shapes"], "unknown option '--dataset'; did you mean --data or "),
    (
        ["train", "shapes-at", "--data", "mnist"],
        "unknown data set 'mnist'; choose from cifar10, cifar100, folder:PATH, ",
    ),
    (
        ["train", "shapes-at", "--model", "vgg"],
        "unknown model 'vgg'; choose from deit-small, module:function, ",
    ),
    (
        ["train", "shapes-at", "--mask.source", "grad"],
        "unknown mask.source 'grad'; did you mean gradcam or ",
    ),
    (["train", "shapes-at", "--holdout", "160"], "cannot hold out 160 of 160"),
    (["train", "shapes-at", "--device", "toaster"], "no device 'toaster' here; choose from cpu"),
    (["train", "shapes-at", "--device", "meta"], "no device 'meta' here; choose from cpu"),
    (["train", "shapes-at", "--device", "hpu"], "no device 'hpu' here; choose from cpu"),
    (["train", "shapes-at", "--optim.lr", "1e300"], "optim.lr: Input should be less than or equal to"),
    (["train", "shapes-at", "--model", "wrn-10-9999"], "weights; the limit is 1,000,000,000"),
    (["train", "shapes-at", "--out", "na\udcffme"], "'na\\udcffme' is not UTF-8"),
    (["train", "nothing.toml"], "cannot read config nothing.toml"),
    (["train", "cifar10-at", "--model", "tiny-cnn", "--data-root", "nothing"], "no cifar10 under nothing"),
    (["evaluate"], "required: MODEL"),
    (["evaluate", "nothing"], "nothing is not a run folder"),
    (["evaluate", "nothing", "--eps", "x"], "'x' is not a number"),
    (["evaluate", "nothing", "--images", "0"], "'0' is not a whole number above 0"),
    (
        ["evaluate", "nothing", "--attacks", "pgd"],
        "unknown attack 'pgd'; did you mean pgd20? choose from natural, pgdK",
    ),
    (["evaluate", "nothing.pt"], "nothing.pt is not a run folder"),
    (["evaluate", "nothing.safetensors"], "no checkpoint at nothing.safetensors"),
    (["evaluate", "no.module:make", "--data", "shapes"], "no module 'no'"),
    (["evaluate", "my.py:make", "--data", "shapes"], "'my.py:make' is not module:function"),
    (["check", "nothing"], "nothing is not a run folder"),
    (["compare", "a"], "write `compare RUN ... --with RUN ...`"),
    (["report", "nothing"], "nothing is not a run folder"),
    (["data", "burn"], "unknown data command 'burn'; choose from get, list, verify"),
    (["bench", "trian"], "unknown bench 'trian'; did you mean train? choose from "),
    (["evaluate", "nothing", "--network", "m:f"], "unknown option '--network'; "),
    (["data", "get"], "write `data list`, `data get NAME` or `data verify NAME`"),
    (
        ["data", "get", "mnist"],
        "unknown data set 'mnist'; choose from cifar10, cifar100, folder:PATH, ",
    ),
    (["data", "verify", "cifar10", "--data-root", "nothing"], "no cifar10 under nothing; run `pixelpart data get"),
    (["experiment", "theory", "--arms", "AT"], "theory has no arms: leave out --arms"),
    (["demo", "--seed", "x"], "invalid int value: 'x'"),
]


@pytest.mark.parametrize(("args", "message"), WRONG, ids=[" ".join(args) for args, _ in WRONG])
def test_mistake_is_one_line_and_writes_nothing(args, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert len(mistake(capsys, args, message).splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--eps", "0"], "eps 0 is out of range: choose a number above 0"),
        (["--eps", "8"], "8/255"),
        (["--images", "161"], "images 161 is more than the 160 available"),
        (["--checkpoint", "epoch-7"], "no checkpoint 'epoch-7' in"),
    ],
)
def test_wrong_evaluation_leaves_the_run_unchanged(args, message, capsys, copied):
    before = files(copied)
    mistake(capsys, ["evaluate", copied, *args], message)
    assert files(copied) == before


def test_other_config_and_locked_folder_are_refused(capsys, copied):
    before = files(copied)
    command = ["train", copied / "config.json", "--out", copied, "--device", "cpu"]
    mistake(capsys, [*command, "--seed", "1"], "(seed: 0 != 1)")
    with RunFolder(copied).locked():
        mistake(capsys, command, "another process")
    assert files(copied) == before


def test_loss_that_is_not_finite_exits_with_1_and_keeps_the_last_good_checkpoint(capsys, tmp_path, monkeypatch):
    command = ["train", "shapes-at", *TINY, "--epochs", "3", "--keep", "1", "--out", str(tmp_path / "run")]
    monkeypatch.setitem(train_module.SCHEDULES, "cyclic", lambda optim, epoch, epochs: 1e30 if epoch > 1 else 0.1)
    err = mistake(capsys, command, "the loss was not finite", code=1)
    last = RunFolder(tmp_path / "run").checkpoint("last")
    assert f"the last good checkpoint is {last}, step 3" in err
    tensors, facts = load_checkpoint(last)
    assert facts["epoch"] == 1
    assert all(tensor.isfinite().all() for tensor in tensors.values())


def test_full_disk_exits_with_1_and_one_line(capsys, monkeypatch, tmp_path):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    err = mistake(capsys, ["train", "shapes-at", *TINY, "--out", tmp_path / "new", "--quiet"], "No space left", code=1)
    assert len(err.splitlines()) == 1
