"""`pixelpart train`: a run to its end, from a config's file, and after Ctrl-C."""

import signal
import subprocess
import sys
import time

import pytest

from command_line import SOME, TINY, files, mistake
from pixelpart import recipes
from pixelpart.cli.main import main
from pixelpart.config import Config, read_config
from pixelpart.runs import Run, RunFolder, load_checkpoint

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


# -- stopped

PROGRAM = f"""
import dataclasses, sys, torch
torch.set_num_threads(1)
from pixelpart import data
from pixelpart.cli.main import main
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
