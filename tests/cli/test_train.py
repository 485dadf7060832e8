"""`pixelpart train`: a complete run, a config file, and Ctrl-C."""

import html
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from command_line import SOME, TINY, files, mistake
from pixelpart import data, models, recipes
from pixelpart.cli.main import main
from pixelpart.config import Config, read_config
from pixelpart.runs import Run, RunFolder, read_facts
from pixelpart.version import code_version

OWN = """
import pixelpart as pp

def small(num_classes):
    return pp.models.build("tiny-cnn", num_classes=num_classes)

smaller = small

def load(split):
    images, labels = pp.data.load("shapes", split=split)
    return images.numpy(), labels.numpy()
"""


def forget_user_code():
    models.USER_MODELS.clear()
    data.USER_SETS.clear()


@pytest.fixture
def own_code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cli_nets.py").write_text(OWN)
    yield
    forget_user_code()
    sys.modules.pop("cli_nets", None)


@pytest.mark.parametrize(
    ("flags", "note"),
    [
        (
            ["shapes-at", "--mask.source", "layercam", "--eps-low", "4/255"],
            "no effect without a mask: --mask.source, --eps-low;",
        ),
        (["shapes-part", "--keep", "1,3"], "--keep 3 has no effect: epochs is 1"),
        (["shapes-part", "--eps-low", "4/255", "--keep", "1"], None),
        (["shapes-part", "--mask.rule", "none"], None),
    ],
)
def test_flags_without_effect_are_reported(flags, note, tmp_path, capsys):
    short = [*TINY, "--epochs", "1", "--burn-in.epochs", "0"]
    assert main(["train", flags[0], *short, *flags[1:], "--out", str(tmp_path / "run")]) == 0
    err = capsys.readouterr().err
    assert (note or "") in err
    assert ("no effect" in err) == (note is not None)


def test_output_without_a_terminal_is_one_plain_line_per_epoch(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "shapes-at", *TINY, "--epochs", "2", "--seed", "7"]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    lines = err.splitlines()
    assert lines[0].startswith(f"pixelpart {code_version()} on ")
    names = [line.split(":")[0] for line in lines[1:]]
    assert names == ["shapes-at", "epoch 1/2 plain", "epoch 2/2 plain", "collapsed", "best", "next"]  # so few steps
    assert "\x1b" not in err
    run = Run("runs/shapes-at-7")  # the default folder
    assert run.config.seed == 7
    best = min(run.metrics, key=lambda row: row["robust_ce"])
    text = "best: epoch {epoch} (lowest robust cross-entropy), natural {natural:.1%}, pgd {pgd:.1%} (held-out)"
    assert lines[-2] == text.format_map(best)
    assert lines[-1] == "next: pixelpart evaluate runs/shapes-at-7"


def test_quiet_run_prints_nothing_and_one_without_held_out_images_has_no_best(tmp_path, capfd):
    out = tmp_path / "run"
    assert main(["train", "shapes-at", *TINY, "--holdout", "0", "--epochs", "2", "--out", str(out), "--quiet"]) == 0
    assert capfd.readouterr() == ("", "")
    last = (
        "last: epoch 2, natural {natural:.1%}, pgd {pgd:.1%} (test); no images were held out, so best is the last epoch"
    )
    assert (out / "log.txt").read_text().endswith(f" {last.format_map(Run(out).metrics[-1])}\n")


def test_finished_run_is_reported_and_left_unchanged(copied, capsys):
    before = files(copied / "checkpoints")
    for command in ([copied / "config.json", "--out", copied], [copied]):
        assert main(["train", *map(str, command), "--device", "cpu"]) == 0
        assert "is finished: 2 epochs" in capsys.readouterr().err
        assert files(copied / "checkpoints") == before


def test_command_for_more_epochs_of_a_finished_run_goes_on_from_its_end(copied, capsys):
    err = mistake(capsys, ["train", copied, "--epochs", "3", "--device", "cpu"], "(epochs: 2 != 3); it is finished")
    command = shlex.split(err.strip().partition("to continue: ")[2])
    assert command[:2] == ["pixelpart", "train"]
    assert main([*command[1:], "--device", "cpu"]) == 0
    assert f"forked from {copied}@2, at step 6" in capsys.readouterr().err
    more = Run(f"{copied}-3")
    assert [row["epoch"] for row in more.metrics] == [3]
    assert more.config == Run(copied).config.model_copy(update={"epochs": 3, "init_from": f"{copied}@2"})


def test_flags_that_would_change_a_run_are_refused_and_name_the_field(copied, capsys):
    before = files(copied)
    mistake(
        capsys, ["train", copied, "--seed", "1", "--mask.rule", "soft"], "(seed: 0 != 1; mask.rule: 'mean' != 'soft')"
    )
    mistake(capsys, ["train", copied, "--epochs", "1", "--burn-in.epochs", "0"], "choose another --out")
    assert files(copied) == before
    assert main(["train", str(copied), "--seed", "0", "--device", "cpu"]) == 0  # the same value changes nothing


def test_run_with_user_code_is_resumed_only_if_the_flags_name_it(own_code, capsys):
    flags = ["--model", "cli_nets:small", "--data", "cli_nets:load"]
    command = ["train", "shapes-at", *TINY, *flags, "--epochs", "2", "--out", "run"]
    assert main(command) == 0
    RunFolder("run").checkpoint("last").unlink()  # not finished
    forget_user_code()
    mistake(capsys, ["train", "run", *flags[:2]], "data set 'cli_nets:load' is user code")
    forget_user_code()
    mistake(capsys, ["train", "run", *flags[2:]], "pass --model cli_nets:small or call pp.models.use")
    forget_user_code()
    assert main(["train", "run", *flags, "--device", "cpu"]) == 0
    assert "epochs of 3 steps on cpu" in capsys.readouterr().err
    forget_user_code()
    for more in (["evaluate", "run", "--attacks", "natural", *flags], ["explain", "run", *flags]):
        assert main([*more, "--device", "cpu"]) == 0
    mistake(
        capsys,
        ["evaluate", "run", "--model", "resnet18"],
        "--model resnet18 does not match run, whose network is cli_n",
    )
    err = mistake(
        capsys, ["train", "run", *flags, "--epochs", "3"], "--model cli_nets:small --data cli_nets:load --epochs 3"
    )
    assert main([*shlex.split(err.partition("to continue: ")[2])[1:], "--device", "cpu"]) == 0


def test_commands_of_the_report_of_a_run_with_user_code_can_be_pasted(own_code, capsys):
    flags = ["--model", "cli_nets:small", "--data", "cli_nets:load"]
    assert main(["train", "shapes-at", *TINY, *flags, "--epochs", "1", "--out", "run"]) == 0
    assert capsys.readouterr().err.endswith(
        "next: pixelpart evaluate run --model cli_nets:small --data cli_nets:load\n"
    )

    def commands():
        forget_user_code()
        assert main(["report", "run"]) == 0
        page = html.unescape(Path("report.html").read_text())
        return {c for c in re.findall(r"pixelpart [^<`\n]+", page) if not c.startswith("pixelpart report")}

    for expected in ({"train", "evaluate", "explain"}, {"train", "evaluate"}):  # before and after the evaluation
        found = commands()
        assert {command.split()[1] for command in found} == expected
        for command in found:
            forget_user_code()
            assert main([*shlex.split(command)[1:], "--device", "cpu"]) == 0, command


def test_model_is_given_once_for_each_network_of_several_runs(own_code, capsys):
    names = ["small", "smaller"]
    for name in names:
        flags = ["--model", f"cli_nets:{name}", "--data", "cli_nets:load"]
        assert main(["train", "shapes-at", *TINY, *flags, "--epochs", "1", "--out", name]) == 0
    forget_user_code()
    evaluation = ["evaluate", *names, "--attacks", "natural", "--data", "cli_nets:load", "--model", "cli_nets:small"]
    mistake(capsys, evaluation, "pass --model cli_nets:smaller")  # before anything is evaluated
    assert not RunFolder("small").path.joinpath("eval.json").exists()
    assert main([*evaluation, "--model", "cli_nets:smaller", "--device", "cpu"]) == 0
    assert [line for line in capsys.readouterr().out.splitlines() if line.endswith(":")] == ["small:", "smaller:"]


def test_print_config_refuses_what_train_refuses_and_writes_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for flags, message in {
        "--mask.rule medain": "unknown mask.rule 'medain'",
        "--mask.layer layer9": "unknown layer 'layer9'",
        "--attack.name pdg": "unknown attack 'pdg'; did you mean pgd?",
        "--model resnet81": "unknown model 'resnet81'; did you mean resnet18",
        "--data mnist": "unknown data set 'mnist'",
        "--data folder:nowhere --size 32": "nowhere",
        "--size 64": "--size is for folder:PATH",
        "--num-classes 5": "num_classes and classes are for data sets of your own",
        "--optim.schedule linear": "unknown schedule 'linear'",
        "--holdout 6000": "cannot hold out 6000 of 6000 training images",
        "--init-from nowhere": "nowhere is not a run folder",
        "--init-from nowhere@3": "nowhere is not a run folder",
        "--device gpu": "no device 'gpu' here",
    }.items():
        mistake(capsys, ["train", "shapes-part", *flags.split(), "--print-config"], message)
        assert list(tmp_path.iterdir()) == []


def test_print_config_of_a_run_refuses_what_train_refuses_in_its_folder(copied, capsys):
    for flags, message in {
        "--eps 4/255": "holds a run with another config (eps:",
        "--epochs 3": "it is finished; to continue: ",
        f"--epochs 9 --init-from {copied}@7 --out {copied}-9": "has no checkpoint after epoch 7",
        f"--init-from {copied}@2 --out {copied}-2": f"a fork goes on after epoch 2; --init-from {copied} starts",
    }.items():
        mistake(capsys, ["train", str(copied), *flags.split(), "--print-config"], message)
    more = ["--epochs", "3", "--init-from", f"{copied}@2", "--out", f"{copied}-3"]
    assert main(["train", str(copied), *more, "--print-config"]) == 0


def test_threads_are_those_of_torch_in_every_command(copied, monkeypatch):
    asked = []
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    assert main(["train", str(copied), "--threads", "3", "--device", "cpu"]) == 0
    assert main(["evaluate", str(copied), "--attacks", "natural", "--threads", "2", "--device", "cpu"]) == 0
    assert main(["explain", str(copied), "--threads", "1", "--device", "cpu"]) == 0
    assert asked == [3, 2, 1]


def test_recipes_are_a_table(capsys):
    for args in ([], ["--list"], ["--help"]):
        assert main(["train", *args]) == 0
        lines = capsys.readouterr().out.splitlines()
        rows = [line.split()[0] for line in lines if line.split() and "METHOD" in line.split()[0]]
        names = {row.replace("METHOD", method) for row in rows for method in recipes.METHODS}
        assert names - set(recipes.METHODS) == set(recipes.RECIPES)


def test_printed_config_is_the_same_run(capsys, tmp_path):
    flags = ["--eps-low", "6/255", "--mask.rule", "zscore", "--optim.decay-at", "3,5", "--normalize", "true"]
    changes = {"eps_low": "6/255", "mask": {"rule": "zscore"}, "optim": {"decay_at": [3, 5]}, "normalize": True}
    for name, recipe in recipes.RECIPES.items():
        if name.startswith(("tinyimagenet-", "folder-")) or not re.search("-(at|part-t)(-|$)", name):
            continue  # each other data set and variant, with and without a mask; the networks are built
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
some = lambda split, *_: tuple(tensor[:{SOME}] for tensor in data.shapes.generate(split))
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
