"""What is done with a run, with a user's own code and with data sets, the whole way."""

import json
import re
import shutil
import sys

import pytest

from command_line import run_python
from pixelpart.cli.main import main
from pixelpart.evaluation.checks import behaviours
from pixelpart.evaluation.checks.obfuscation import ObfuscationReport


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
        assert {key for key in mine if mine[key] != theirs[key]} <= {"subject", "checkpoint", "flags", "seconds", "sum"}
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
    assert rows[2].startswith("* natural, pgd2: the model was in train mode")
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
    text = "import sys\nfrom pixelpart.cli.main import main\nsys.path.pop(0)\nsys.exit(main())"
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


def test_check_exits_with_3_on_suspicion_only_if_it_is_to_be_strict(copied, trained, capsys, monkeypatch):
    monkeypatch.setattr(behaviours, "POINTS", 2)
    other = shutil.copytree(trained, copied.parent / "other")
    shutil.copy(other / "checkpoints" / "epoch-1.safetensors", other / "checkpoints" / "best.safetensors")
    args = ["check", str(copied), "--images", "8", "--surrogate", str(other), "--device", "cpu", "--step-size", "1e-4"]
    assert main(args) == 0
    assert main([*args, "--strict"]) == 3
    assert "verdict: suspicious" in capsys.readouterr().out
    monkeypatch.setattr(ObfuscationReport, "verdict", "as expected")
    assert main([*args, "--strict"]) == 0


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
