"""A mistake is one line and an exit code, and nothing is lost."""

import json
import os

import pytest

from command_line import TINY, files, mistake
from pixelpart.cli.main import main
from pixelpart.data import cifar10
from pixelpart.engine import train as train_module
from pixelpart.runs import Run, RunFolder, load_checkpoint

WRONG = [
    (["nope"], "unknown command 'nope'; choose from "),
    (["train", "cifar10"], "unknown recipe 'cifar10'; choose from cifar10-at, "),
    (["train", "shapes-at", "--nope", "3"], "unknown option '--nope'"),
    (["train", "shapes-at", "--dataset", "mnist"], "unknown data set 'mnist'; choose from cifar10, cifar100, shapes"),
    (["train", "shapes-at", "--model", "vgg"], "unknown model 'vgg'; choose from deit-small, preactresnet18, resnet18"),
    (["train", "shapes-at", "--eps-low", "9/255"], "eps_low 9/255 is above eps 8/255"),
    (["train", "shapes-at", "--eps", "-1/255"], "not '-1/255'"),
    (["train", "shapes-at", "--burn-in.eps", "-0.1"], "not '-0.1'"),
    (["train", "shapes-at", "--eps", "1/0"], "'1/0' is not a number"),
    (
        ["train", "shapes-at", "--mask.cam", "grad"],
        "unknown cam 'grad'; choose from gradcam, gradient-rollout, layercam",
    ),
    (["train", "shapes-at", "--holdout", "160"], "cannot hold out 160 of 160"),
    (["train", "shapes-at", "--device", "toaster"], "no device 'toaster' here; choose from cpu"),
    (["train", "nothing.toml"], "cannot read config nothing.toml"),
    (["train", "shapes-at", "extra"], "unexpected argument 'extra'"),
    (["evaluate"], "required: MODEL"),
    (["evaluate", "nothing"], "nothing is not a run folder"),
    (["evaluate", "nothing", "--eps", "x"], "'x' is not a number"),
    (["evaluate", "nothing", "--attacks", "pgd"], "unknown attack 'pgd'; choose from natural, pgdK"),
    (
        ["evaluate", "nothing.pt"],
        "nothing.pt is not a run folder: there is nothing of that name; give a run folder, a ",
    ),
    (
        ["evaluate", "no.module:make"],
        "no.module:make brings no test images; give data (--data), one of cifar10, cifar100, shapes",
    ),
    (["evaluate", "no.module:make", "--data", "shapes"], "no module 'no', neither in this folder nor among"),
    (["evaluate", "no.module:make", "--data", "mnist"], "unknown data set 'mnist'; choose from cifar10, cifar100"),
    (["evaluate", "my.py:make", "--data", "shapes"], "'my.py:make' is not module:function; write mymodels:robust"),
    (["evaluate", "nothing.pt2", "--data", "shapes"], "no file nothing.pt2"),
    (["evaluate", "nothing.safetensors"], "no checkpoint at nothing.safetensors"),
    (["check"], "required: MODEL"),
    (["check", "nothing"], "nothing is not a run folder"),
    (["check", "nothing", "--images", "0"], "'0' is not a whole number above 0"),
    (["check", "no.module:make"], "no.module:make brings no test images"),
    (["report"], "required: RUN"),
    (["report", "nothing"], "nothing is not a run folder"),
    (["data", "burn"], "invalid choice: 'burn'"),
    (["data", "get"], "say `data list`, `data get NAME` or `data verify NAME`"),
    (["data", "list", "shapes"], "say `data list`"),
    (["data", "get", "mnist"], "unknown data set 'mnist'; choose from cifar10, cifar100, shapes"),
    (["data", "verify", "cifar10", "--data-root", "nothing"], "no cifar10 under nothing; run `pixelpart data get"),
    (["train", "cifar10-at", "--model", "tiny-cnn", "--data-root", "nothing"], "no cifar10 under nothing"),
    (["demo", "--seed", "x"], "invalid int value: 'x'"),
]


@pytest.mark.parametrize(("args", "message"), WRONG, ids=[" ".join(args) for args, _ in WRONG])
def test_a_mistake_is_one_line_and_exit_2_and_nothing_is_written(args, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    err = mistake(capsys, args, message)
    assert len(err.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--eps", "0"], "eps 0 is not above 0"),
        (["--eps", "8"], "8/255"),
        (["--images", "161"], "images 161 is more than the 160 there are"),
        (["--images", "0"], "images 0 is not a whole number above 0"),
        (["--batch-size", "0"], "batch_size 0 is not a whole number above 0"),
        (["--checkpoint", "epoch-7"], "no checkpoint 'epoch-7' in"),
        (["--device", "toaster"], "'toaster'"),
    ],
)
def test_a_wrong_evaluation_leaves_the_run_as_it_was(args, message, capsys, copied):
    before = files(copied)
    mistake(capsys, ["evaluate", copied, *args], message)
    assert files(copied) == before


def test_another_config_in_the_folder_is_refused_by_field(capsys, copied):
    before = files(copied)
    config = copied / "config.json"
    mistake(capsys, ["train", config, "--out", copied, "--seed", "1"], "(seed: 0 there, 1 here)")
    assert files(copied) == before


def test_a_wrong_fork_is_refused_and_the_folder_is_still_free(capsys, tmp_path, trained):
    command = ["train", "shapes-at", *TINY, "--epochs", "2", "--quiet", "--out", str(tmp_path / "fork")]
    mistake(capsys, [*command, "--init-from", "part"], "init_from 'part' is not RUN@EPOCH")
    mistake(capsys, [*command, "--init-from", f"{trained}@2"], "keeps no checkpoint after epoch 2; there are: 1")
    assert main([*command, "--init-from", f"{trained}@1"]) == 0
    assert [row["epoch"] for row in Run(tmp_path / "fork").metrics] == [2]


def test_a_checkpoint_of_another_model_is_refused(capsys, copied):
    settings = json.loads((copied / "config.json").read_text()) | {"model": "wrn-10-1"}
    (copied / "config.json").write_text(json.dumps(settings))
    before = files(copied)
    mistake(capsys, ["evaluate", copied, "--device", "cpu"], "best.safetensors belongs to another model")
    mistake(capsys, ["train", copied / "config.json", "--out", copied, "--device", "cpu"], "belongs to another model")
    assert files(copied) == before


def test_a_truncated_checkpoint_is_refused(capsys, copied):
    for path in (copied / "checkpoints").iterdir():
        path.write_bytes(path.read_bytes()[:-50])
    before = files(copied)
    mistake(capsys, ["evaluate", copied, "--device", "cpu"], "best.safetensors is truncated")
    mistake(capsys, ["train", copied / "config.json", "--out", copied, "--device", "cpu"], "last.safetensors is trunc")
    assert files(copied) == before


def test_a_data_file_with_a_wrong_sum_is_refused_and_left_alone(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(cifar10, "PER_FILE", 2)
    folder = tmp_path / "data" / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    for name in cifar10.BATCHES:
        (folder / f"{name}.bin").write_bytes(bytes(2 * cifar10.WIDTH))
    before = files(tmp_path)
    root = ["--data-root", tmp_path / "data"]
    for command in (["data", "verify", "cifar10"], ["data", "get", "cifar10"], ["train", "cifar10-at", "--quiet"]):
        mistake(capsys, [*command, *root], "is not CIFAR-10: pixels and labels hash to")
    (folder / "test_batch.bin").write_bytes(b"short")
    mistake(capsys, ["data", "verify", "cifar10", *root], "test_batch.bin has 5 bytes, not the 6,146")
    assert files(tmp_path).keys() == before.keys()


def test_a_second_process_in_the_folder_is_refused(capsys, copied):
    before = files(copied)
    with RunFolder(copied).locked():
        mistake(capsys, ["train", copied / "config.json", "--out", copied, "--device", "cpu"], "another process")
    assert files(copied) == before


def test_a_loss_that_is_not_finite_is_exit_1_and_the_last_good_checkpoint_stays(capsys, tmp_path, monkeypatch):
    command = ["train", "shapes-at", *TINY, "--epochs", "3", "--keep", "1", "--out", str(tmp_path / "run")]

    def explode(optim, epoch, epochs):
        return 1e30 if epoch > 1 else 0.1

    with monkeypatch.context() as patch:
        patch.setitem(train_module.SCHEDULES, "cyclic", explode)
        err = mistake(capsys, command, "the loss was not finite", code=1)
    last = RunFolder(tmp_path / "run").checkpoint("last")
    assert f"the last good checkpoint is {last}, step 3" in err
    tensors, facts = load_checkpoint(last)
    assert facts["epoch"] == 1
    assert all(tensor.isfinite().all() for tensor in tensors.values())


def test_a_full_disk_is_exit_1_and_one_line(capsys, copied, monkeypatch, tmp_path):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    err = mistake(capsys, ["train", "shapes-at", *TINY, "--out", tmp_path / "new", "--quiet"], "No space left", code=1)
    assert len(err.splitlines()) == 1
