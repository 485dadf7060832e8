"""evaluate, check, report and data: what each prints and writes."""

import json
import shutil
import sys

import pytest

from command_line import files, mistake
from pixelpart.cli.main import main
from pixelpart.evaluation.checks import behaviours

EVALUATE = ["--images", "60", "--device", "cpu"]


def test_evaluate_prints_a_table_and_reuses_it(copied, capsys):
    args = ["evaluate", str(copied), "--attacks", "natural,pgd4", *EVALUATE]
    assert main(args) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [row[0] for row in rows] == ["natural", "pgd4", "*"]  # so short a training predicts one class
    assert all("60" in row for row in rows[:2])
    written = (copied / "eval.json").read_bytes()
    assert main(args) == 0
    capsys.readouterr()
    assert (copied / "eval.json").read_bytes() == written


def test_evaluate_json_is_the_list_of_entries(copied, capsys):
    args = ["evaluate", str(copied), "--attacks", "natural,pgd2x2", *EVALUATE, "--json"]
    assert main([*args, "--eps", "4/255", "--step-size", "3/255", "--seed", "5", "--checkpoint", "last"]) == 0
    natural, pgd = json.loads(capsys.readouterr().out)
    assert (natural["attack"], natural["accuracy"]) == ("natural", natural["correct"] / 60)
    assert (pgd["attack"], pgd["eps"], pgd["seed"], pgd["checkpoint"]) == ("pgd2x2", 4 / 255, 5, "last")
    assert pgd["settings"] == {"steps": 2, "step_size": 3 / 255, "restarts": 2}
    assert pgd["interval"][0] <= pgd["accuracy"] <= pgd["interval"][1]


def test_several_models_are_evaluated_in_turn_after_all_were_looked_up(copied, capsys):
    file, flags = str(copied / "checkpoints" / "best.safetensors"), ["--attacks", "natural", *EVALUATE]
    before = files(copied)
    mistake(capsys, ["evaluate", copied, copied.parent / "copyed", *flags], f"did you mean {copied}?")
    mistake(capsys, ["evaluate", copied, file, *flags, "--name", "x"], "--name x names one model, not 2")
    assert files(copied) == before
    assert main(["evaluate", str(copied), file, *flags, "--json"]) == 0
    entries = json.loads(capsys.readouterr().out)
    assert [entry["model"] for entry in entries] == [str(copied), file]
    assert entries[0]["fingerprint"] == entries[1]["fingerprint"]
    assert main(["evaluate", str(copied), file, *flags]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("*")]
    assert (lines[0], lines[2]) == (f"{copied}:", f"{file}:")
    assert lines[1].startswith("natural ")
    assert lines[3].startswith("natural ")


def test_checkpoint_outside_its_folder_gives_the_flags_of_its_run(copied, tmp_path, capsys):
    shutil.copy(copied / "checkpoints" / "best.safetensors", tmp_path / "model.safetensors")
    entries = []
    for model in (copied, tmp_path / "model.safetensors"):
        assert main(["evaluate", str(model), "--attacks", "pgd4", *EVALUATE, "--json"]) == 0
        entries += json.loads(capsys.readouterr().out)
    assert entries[0]["fingerprint"] == entries[1]["fingerprint"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copied", "model.safetensors"]


@pytest.fixture
def own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = "import pixelpart as pp\ndef small():\n    print('hello')\n    return pp.models.build('tiny-cnn')\n"
    (tmp_path / "cli_models.py").write_text(text)
    yield "cli_models:small"
    sys.modules.pop("cli_models", None)


def test_user_function_is_evaluated_and_its_prints_go_to_stderr(own, tmp_path, capsys):
    assert main(["evaluate", own, "--data", "shapes", "--attacks", "natural,pgd2", *EVALUATE]) == 0
    out, err = capsys.readouterr()
    rows = out.splitlines()
    assert [row.split()[0] for row in rows[:2]] == ["natural", "pgd2"]
    assert rows[2].startswith("* natural, pgd2: all 60 images")  # it is untrained
    assert rows[3].startswith("* pgd2: ")  # 2 steps of 2/255 do not reach 8/255
    assert err.startswith("hello\nthese results are not stored; ")
    assert {path.name for path in tmp_path.iterdir()} <= {"cli_models.py", "__pycache__"}


def test_check_prints_its_report_and_strict_exits_with_3_if_suspicious(copied, trained, capsys, monkeypatch):
    monkeypatch.setattr(behaviours, "POINTS", 2)
    other = shutil.copytree(trained, copied.parent / "other")
    shutil.copy(other / "checkpoints" / "epoch-1.safetensors", other / "checkpoints" / "best.safetensors")
    args = ["check", str(copied), "--images", "8", "--surrogate", str(other), "--device", "cpu", "--step-size", "1e-4"]
    assert main(args) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert [line[:11].strip() for line in out.splitlines()[:5]] == [
        "one step", "black box", "unbounded", "random", "growing eps",
    ]  # fmt: skip
    assert out.splitlines()[-1].startswith("verdict: suspicious")
    assert main([*args, "--strict", "--json"]) == 3
    report = json.loads(capsys.readouterr().out)
    assert report == json.loads((copied / "check.json").read_text())
    assert (report["n"], report["checkpoint"], len(report["behaviours"])) == (8, "best", 5)


def test_report_prints_the_path_of_the_page(copied, capsys, tmp_path):
    assert main(["report", str(copied), "--out", str(tmp_path / "page.html")]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'page.html'}\n"
    assert "<html" in (tmp_path / "page.html").read_text()


def test_data_lists_and_verifies_sets(capsys, tmp_path):
    root = ["--data-root", str(tmp_path)]
    assert main(["data", "list", *root, "--json"]) == 0
    rows = {row["name"]: row["status"] for row in json.loads(capsys.readouterr().out)}
    assert rows == {"shapes": "generated"} | dict.fromkeys(("cifar10", "cifar100", "svhn", "tinyimagenet"), "missing")
    assert main(["data", "list", *root]) == 0
    assert [line.split()[:2] for line in capsys.readouterr().out.splitlines()] == [list(row) for row in rows.items()]
    for what in ("get", "verify"):
        assert main(["data", what, "shapes", *root]) == 0
        assert "generated" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []
