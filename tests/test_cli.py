"""The command line as a person or a script meets it: exit codes, one line for a mistake, and nothing lost."""

import dataclasses
import functools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest

from pixelpart import __version__, data, recipes
from pixelpart.cli import COMMANDS, main
from pixelpart.config import Config, read_config
from pixelpart.data import cifar10
from pixelpart.engine import train as train_module
from pixelpart.evaluation import behaviours
from pixelpart.run import Run
from pixelpart.runfolder import RunFolder, load_checkpoint

SOME = 160
TINY = ["--batch-size", "50", "--holdout", "10", "--probe", "16", "--attack.steps", "1", "--device", "cpu"]


@functools.cache
def some(split):
    return tuple(tensor[:SOME] for tensor in data.shapes.generate(split))


@functools.cache
def some_masks(split):
    return data.shapes.object_masks(split)[:SOME]


def few():
    return dataclasses.replace(data.SETS["shapes"], load=lambda split, root: some(split), masks=some_masks)


@pytest.fixture(autouse=True)
def _few(monkeypatch):
    """`shapes`, but the first few images of it."""
    monkeypatch.setitem(data.SETS, "shapes", few())


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A finished run, made by the command line; tests that change it take a copy."""
    out = tmp_path_factory.mktemp("cli") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(data.SETS, "shapes", few())
        assert main(["train", "shapes-part", *TINY, "--epochs", "2", "--burn-in.epochs", "1", "--out", str(out)]) == 0
    return out


@pytest.fixture
def copied(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "copied")


def files(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}


def mistake(capsys, args, message, code=2):
    """Runs a command that has to fail: this code, one line on stderr with this in it, nothing on stdout."""
    capsys.readouterr()
    assert main([str(arg) for arg in args]) == code
    out, err = capsys.readouterr()
    assert out == ""
    last = err.splitlines()[-1]
    assert last.startswith("pixelpart: ")
    assert message in last
    assert "Traceback" not in err
    return err


def run_python(*args, **settings):
    return subprocess.run([sys.executable, *args], capture_output=True, text=True, timeout=50, **settings)


# -- what there is


def test_no_command_and_help_list_every_command(capsys):
    for args in ([], ["--help"], ["-h"]):
        assert main(args) == 0
        out, err = capsys.readouterr()
        assert err == ""
        assert all(f"  {name} " in out for name in COMMANDS)


def test_version_is_the_packages(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"pixelpart {__version__}\n"


@pytest.mark.parametrize("command", [*COMMANDS, "train shapes-at"])
def test_every_command_has_help(capsys, command):
    assert main([*command.split(), "--help"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith(f"usage: pixelpart {command.split()[0]}")
    assert err == ""


def test_help_of_a_recipe_shows_its_own_values(capsys):
    assert main(["train", "cifar10-part", "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "first epochs, trained without the mask (here: 20)" in text
    assert "--mask.rule RULE which pixels keep eps" in text


# -- the whole way


def test_training_leaves_a_run_and_tells_of_every_epoch(trained):
    run = Run(trained)
    assert run.config.recipe == "shapes-part"
    assert [row["phase"] for row in run.metrics] == ["burn-in", "mask"]
    assert {path.stem for path in (trained / "checkpoints").iterdir()} == {"best", "last", "epoch-1"}


def test_off_a_terminal_training_prints_one_plain_line_an_epoch(tmp_path, capsys):
    assert main(["train", "shapes-at", *TINY, "--epochs", "2", "--out", str(tmp_path / "run")]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    lines = [line for line in err.splitlines() if not line.startswith("collapsed: ")]  # so short a run may be that
    assert [line.split(":")[0] for line in lines] == ["shapes-at", "epoch 1/2 plain", "epoch 2/2 plain"]
    assert "\x1b" not in err


def test_quiet_prints_nothing(tmp_path, capsys):
    assert main(["train", "shapes-at", *TINY, "--epochs", "1", "--out", str(tmp_path / "run"), "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")


def test_a_run_goes_to_a_folder_named_after_recipe_and_seed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "shapes-at", *TINY, "--epochs", "1", "--seed", "7", "--quiet"]) == 0
    assert Run(tmp_path / "runs" / "shapes-at-7").config.seed == 7


def test_a_finished_run_says_so_and_is_left_alone(copied, capsys):
    before = files(copied / "checkpoints")
    config = read_config(copied / "config.json")
    assert main(["train", str(copied / "config.json"), "--out", str(copied), "--device", "cpu"]) == 0
    assert "is finished: 2 epochs" in capsys.readouterr().err
    assert files(copied / "checkpoints") == before
    assert read_config(copied / "config.json") == config


def test_evaluate_prints_a_table_and_writes_it_down(copied, capsys):
    args = ["evaluate", str(copied), "--attacks", "natural,pgd4", "--images", "60", "--device", "cpu"]
    assert main(args) == 0
    out, _ = capsys.readouterr()
    rows = [line.split() for line in out.splitlines()]
    assert [row[0] for row in rows] == ["natural", "pgd4"]
    assert all(row[-3] == "60" and row[-1] == "s" for row in rows)
    assert main(args) == 0
    assert all(line.endswith(" kept") for line in capsys.readouterr().out.splitlines())
    assert (copied / "eval.json").exists()


def test_json_is_the_entries_and_nothing_else(copied, capsys):
    args = ["evaluate", str(copied), "--attacks", "natural,pgd2x2", "--images", "60", "--device", "cpu", "--json"]
    assert main([*args, "--eps", "4/255", "--step-size", "3/255", "--seed", "5", "--checkpoint", "last"]) == 0
    natural, pgd = json.loads(capsys.readouterr().out)
    assert natural["attack"] == "natural"
    assert natural["accuracy"] == natural["correct"] / 60
    assert (pgd["attack"], pgd["eps"], pgd["seed"], pgd["checkpoint"]) == ("pgd2x2", 4 / 255, 5, "last")
    assert pgd["settings"] == {"steps": 2, "step_size": 3 / 255, "restarts": 2}
    assert pgd["interval"][0] <= pgd["accuracy"] <= pgd["interval"][1]


def test_a_checkpoint_taken_out_of_its_folder_gives_the_figures_of_its_run(copied, tmp_path, capsys):
    shutil.copy(copied / "checkpoints" / "best.safetensors", tmp_path / "model.safetensors")
    flags = ["--attacks", "natural,pgd4", "--images", "60", "--device", "cpu", "--json"]
    entries = []
    for model in (copied, tmp_path / "model.safetensors"):
        assert main(["evaluate", str(model), *flags]) == 0
        entries.append(json.loads(capsys.readouterr().out))
    for mine, theirs in zip(*entries, strict=True):
        assert mine["fingerprint"] == theirs["fingerprint"]
        assert {key for key in mine if mine[key] != theirs[key]} <= {"subject", "checkpoint", "flags", "seconds"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copied", "model.safetensors"]


OWN = "import pixelpart as pp\ndef small():\n    print('hello')\n    return pp.models.build('tiny-cnn')\n"


@pytest.fixture
def own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cli_models.py").write_text(OWN)
    yield "cli_models:small"
    sys.modules.pop("cli_models", None)


def test_a_function_is_evaluated_and_kept_where_out_says(own, tmp_path, capsys):
    args = ["evaluate", own, "--data", "shapes", "--attacks", "natural,pgd2", "--device", "cpu"]
    assert main(args) == 0
    out, err = capsys.readouterr()
    rows = out.splitlines()
    assert [row.split()[0] for row in rows[:2]] == ["natural", "pgd2"]
    assert all(re.search(r"  n = 160 +\d+\.\d s \*$", row) for row in rows[:2])
    assert rows[2].startswith("* natural, pgd2: the model came in train mode")
    assert rows[3].startswith("* pgd2: steps * step_size < eps (2 * 2/255 < 8/255)")
    assert err == "hello\nthese results are not kept; --out FOLDER keeps them\n"
    assert {path.name for path in tmp_path.iterdir()} <= {"cli_models.py", "__pycache__"}

    said = []
    for _ in range(2):
        assert main([*args, "--out", "kept", "--json"]) == 0
        out, err = capsys.readouterr()
        assert err == "hello\n"
        said.append(json.loads(out))
    assert said[0] == said[1] == json.loads((tmp_path / "kept" / "eval.json").read_text())["entries"]
    assert [entry["subject"] for entry in said[0]] == [own, own]


def test_a_function_is_found_by_the_installed_command_too(own, tmp_path):
    text = "import sys\nfrom pixelpart.cli import main\nsys.path.pop(0)\nsys.exit(main())"
    result = run_python("-c", text, "evaluate", own.replace("small", "smal"), "--data", "shapes", cwd=tmp_path)
    assert result.returncode == 2
    assert result.stderr == "pixelpart: cli_models has no 'smal'; did you mean small?\n"


def test_check_prints_a_verdict_for_each_behaviour_and_writes_it_down(copied, trained, capsys, monkeypatch):
    monkeypatch.setattr(behaviours, "POINTS", 2)
    other = shutil.copytree(trained, copied.parent / "other")
    shutil.copy(other / "checkpoints" / "epoch-1.safetensors", other / "checkpoints" / "best.safetensors")
    args = ["check", str(copied), "--images", "8", "--surrogate", str(other), "--device", "cpu"]
    assert main(args) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert [line[:11].strip() for line in out.splitlines()[:5]] == [
        "one step", "black box", "unbounded", "random", "growing eps",
    ]  # fmt: skip
    assert out.splitlines()[-1].startswith("verdict: ")
    assert main([*args, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said == json.loads((copied / "check.json").read_text())
    assert (said["n"], said["checkpoint"], len(said["behaviours"])) == (8, "best", 5)


def test_report_prints_the_path_of_the_page(copied, capsys, tmp_path):
    assert main(["evaluate", str(copied), "--attacks", "natural", "--images", "20", "--device", "cpu", "--quiet"]) == 0
    capsys.readouterr()
    assert main(["report", str(copied), "--out", str(tmp_path / "page.html")]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'page.html'}\n"
    assert "<html" in (tmp_path / "page.html").read_text()


def test_data_list_tells_what_is_there(capsys, tmp_path):
    assert main(["data", "list", "--data-root", str(tmp_path), "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["shapes"]["status"] == "generated"
    assert rows["cifar10"]["status"] == "missing"
    assert main(["data", "list", "--data-root", str(tmp_path)]) == 0
    assert [line.split()[:2] for line in capsys.readouterr().out.splitlines()] == [
        ["shapes", "generated"],
        ["cifar10", "missing"],
        ["cifar100", "missing"],
        ["svhn", "missing"],
        ["tinyimagenet", "missing"],
    ]
    assert list(tmp_path.iterdir()) == []


def test_the_embedded_set_needs_no_fetching(capsys, tmp_path):
    for what in ("get", "verify"):
        assert main(["data", what, "shapes", "--data-root", str(tmp_path)]) == 0
        assert "generated" in capsys.readouterr().out


# -- a config in and out


@pytest.mark.parametrize("recipe", sorted(recipes.RECIPES))
def test_a_printed_config_read_again_is_the_same_run(recipe, capsys, tmp_path):
    flags = ["--eps-low", "6/255", "--mask.rule", "zscore", "--optim.decay-at", "3,5", "--normalize", "true"]
    assert main(["train", recipe, *flags, "--print-config"]) == 0
    text = capsys.readouterr().out
    (tmp_path / "my.toml").write_text(text)
    config = read_config(tmp_path / "my.toml")
    assert config.eps_low == 6 / 255
    assert 'eps_low = "6/255"' in text
    assert (
        config.hash()
        == recipes.RECIPES[recipe](
            eps_low="6/255", mask={"rule": "zscore"}, optim={"decay_at": [3, 5]}, normalize=True
        ).hash()
    )
    assert main(["train", str(tmp_path / "my.toml"), "--print-config"]) == 0
    assert capsys.readouterr().out == text


def test_training_a_printed_config_gives_the_recipes_very_bytes(capsys, tmp_path):
    flags = [*TINY, "--epochs", "1"]
    assert main(["train", "shapes-at", *flags, "--print-config"]) == 0
    (tmp_path / "my.toml").write_text(capsys.readouterr().out)
    assert main(["train", "shapes-at", *flags, "--out", str(tmp_path / "a"), "--quiet"]) == 0
    assert main(["train", str(tmp_path / "my.toml"), "--device", "cpu", "--out", str(tmp_path / "b"), "--quiet"]) == 0
    a, b = (RunFolder(tmp_path / name).checkpoint("last").read_bytes() for name in "ab")
    assert a == b


def test_flags_go_over_a_file(capsys, tmp_path):
    (tmp_path / "my.toml").write_text('eps_low = "5/255"\nseed = 3\n[mask]\nrule = "soft"\n')
    assert main(["train", str(tmp_path / "my.toml"), "--seed", "4", "--mask.every", "2", "--print-config"]) == 0
    (tmp_path / "out.toml").write_text(capsys.readouterr().out)
    expected = Config(eps_low="5/255", seed=4, mask={"rule": "soft", "every": 2})
    assert read_config(tmp_path / "out.toml") == expected


# -- mistakes

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
        err = mistake(capsys, command, "not finite", code=1)
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


# -- processes of their own


def test_the_module_and_the_command_are_the_same_program():
    result = run_python("-m", "pixelpart", "train", "shapes-at", "--eps", "1/0")
    assert result.returncode == 2
    assert result.stderr == "pixelpart: shapes-at: eps: '1/0' is not a number or a fraction such as 8/255\n"
    assert result.stdout == ""


@pytest.mark.parametrize(
    "args", [["--help"], ["train", "shapes-at", "--help"], ["train", "shapes-at", "--print-config"]]
)
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_has_gone_is_no_reason_for_a_traceback(args, unbuffered):
    read, write = os.pipe()
    os.close(read)
    env = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    result = subprocess.run(
        [sys.executable, "-m", "pixelpart", *args], stdout=write, stderr=subprocess.PIPE, text=True, env=env, timeout=50
    )
    os.close(write)
    assert result.stderr == ""
    assert result.returncode in (0, 1)


def test_closed_stdout_is_no_reason_either():
    result = subprocess.run(f"{sys.executable} -m pixelpart --help >&-", shell=True, stderr=subprocess.PIPE, timeout=50)
    assert (result.returncode, result.stderr) == (0, b"")


PROGRAM = f"""
import dataclasses, sys, torch
torch.set_num_threads(1)
from pixelpart import data
from pixelpart.cli import main
some = lambda split, root: tuple(tensor[:{SOME}] for tensor in data.shapes.generate(split))
data.SETS["shapes"] = dataclasses.replace(data.SETS["shapes"], load=some)
sys.exit(main(sys.argv[1:]))
"""


def test_ctrl_c_saves_and_exits_with_130_and_the_same_command_goes_on(tmp_path, capsys):
    out = tmp_path / "run"
    command = ["train", "shapes-at", *TINY, "--epochs", "25", "--out", str(out)]
    child = subprocess.Popen([sys.executable, "-c", PROGRAM, *command], stderr=subprocess.PIPE, text=True)
    folder = RunFolder(out)
    deadline = time.monotonic() + 40
    while not folder.read_metrics() and child.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    mistake(capsys, command, "another process is working in")  # while it runs
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=30)
    assert child.returncode == 130
    assert "Traceback" not in err
    assert "the same command goes on from there" in err.splitlines()[-1]
    step = load_checkpoint(folder.checkpoint("last"))[1]["position"]["step"]
    assert f"stopped after step {step};" in err
    assert 3 <= step < 75

    assert main(command) == 0
    assert f"resumed at step {step}: " in capsys.readouterr().err
    assert [row["epoch"] for row in Run(out).metrics] == list(range(1, 26))
