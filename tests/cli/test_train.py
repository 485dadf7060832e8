"""`pixelpart train`: a complete run, a config file, and Ctrl-C."""

import signal
import subprocess
import sys
import time

from command_line import SOME, TINY, files, mistake
from pixelpart import recipes
from pixelpart.cli.main import main
from pixelpart.config import Config, read_config
from pixelpart.runs import Run, RunFolder, read_facts


def test_output_without_a_terminal_is_one_plain_line_per_epoch(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "shapes-at", *TINY, "--epochs", "2", "--seed", "7"]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    lines = [line for line in err.splitlines() if not line.startswith("collapsed: ")]  # possible in so short a run
    assert [line.split(":")[0] for line in lines] == ["shapes-at", "epoch 1/2 plain", "epoch 2/2 plain"]
    assert "\x1b" not in err
    assert Run("runs/shapes-at-7").config.seed == 7  # the default folder


def test_finished_run_is_reported_and_left_unchanged(copied, capsys):
    before = files(copied / "checkpoints")
    assert main(["train", str(copied / "config.json"), "--out", str(copied), "--device", "cpu"]) == 0
    assert "is finished: 2 epochs" in capsys.readouterr().err
    assert files(copied / "checkpoints") == before


def test_printed_config_is_the_same_run(capsys, tmp_path):
    flags = ["--eps-low", "6/255", "--mask.rule", "zscore", "--optim.decay-at", "3,5", "--normalize", "true"]
    changes = {"eps_low": "6/255", "mask": {"rule": "zscore"}, "optim": {"decay_at": [3, 5]}, "normalize": True}
    for name, recipe in recipes.RECIPES.items():
        assert main(["train", name, *flags, "--print-config"]) == 0
        text = capsys.readouterr().out
        (tmp_path / "my.toml").write_text(text)
        assert 'eps_low = "6/255"' in text
        assert read_config(tmp_path / "my.toml").hash() == recipe(**changes).hash()
        assert main(["train", str(tmp_path / "my.toml"), "--print-config"]) == 0
        assert capsys.readouterr().out == text


def test_flags_override_a_config_file(capsys, tmp_path):
    (tmp_path / "my.toml").write_text('eps_low = "5/255"\nseed = 3\n[mask]\nrule = "soft"\n')
    assert main(["train", str(tmp_path / "my.toml"), "--seed", "4", "--mask.every", "2", "--print-config"]) == 0
    (tmp_path / "out.toml").write_text(capsys.readouterr().out)
    assert read_config(tmp_path / "out.toml") == Config(eps_low="5/255", seed=4, mask={"rule": "soft", "every": 2})


PROGRAM = f"""
import dataclasses, sys, torch
torch.set_num_threads(1)
from pixelpart import data
from pixelpart.cli.main import main
some = lambda split, root: tuple(tensor[:{SOME}] for tensor in data.shapes.generate(split))
data.SETS["shapes"] = dataclasses.replace(data.SETS["shapes"], load=some)
sys.exit(main(sys.argv[1:]))
"""


def test_ctrl_c_saves_and_exits_with_130_and_the_same_command_resumes(tmp_path, capsys):
    out, epochs = tmp_path / "run", 15
    command = ["train", "shapes-at", *TINY, "--epochs", str(epochs), "--out", str(out)]
    child = subprocess.Popen([sys.executable, "-c", PROGRAM, *command], stderr=subprocess.PIPE, text=True)
    folder = RunFolder(out)
    deadline = time.monotonic() + 100
    while not folder.read_metrics() and child.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    child.send_signal(signal.SIGSTOP)  # so that the run cannot end meanwhile
    mistake(capsys, command, "another process is working in")
    child.send_signal(signal.SIGINT)
    child.send_signal(signal.SIGCONT)
    _, err = child.communicate(timeout=100)
    assert child.returncode == 130
    assert "Traceback" not in err
    step = read_facts(folder.checkpoint("last"))["position"]["step"]
    assert f"stopped after step {step};" in err.splitlines()[-1]
    assert 3 <= step < 3 * epochs

    assert main(command) == 0
    assert f"resumed at step {step}: " in capsys.readouterr().err
    assert [row["epoch"] for row in Run(out).metrics] == list(range(1, epochs + 1))
