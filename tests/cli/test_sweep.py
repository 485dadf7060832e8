"""`pixelpart sweep`: its output, its exit codes, its mistakes."""

import json
import re
from statistics import fmean

import pytest

from command_line import mistake
from pixelpart import recipes
from pixelpart.cli.main import main
from pixelpart.evaluation.statistics import wilson
from pixelpart.evaluation.store import with_checksum
from pixelpart.files import exclusive_lock
from pixelpart.report.arms import collect, find_arms
from pixelpart.report.run import read_runs
from pixelpart.runs import RunFolder

GRID = """
base = "shapes-at"
attacks = "natural"
images = 40
[set]
epochs = 1
holdout = 10
probe = 16
batch_size = 50
attack.steps = 1
[grid]
"""


@pytest.fixture
def grid(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def write(varied):
        (tmp_path / "grid.toml").write_text(GRID + varied)
        return tmp_path / "grid.toml"

    return write


def test_sweep_prints_the_table_and_starts_only_what_is_missing(grid, tmp_path, capsys):
    args = ["sweep", str(grid("seed = [0, 1]")), "--device", "cpu"]
    assert main([*args, "--status", "--json"]) == 0
    assert [row["state"] for row in json.loads(capsys.readouterr().out)] == ["missing", "missing"]
    assert list(tmp_path.iterdir()) == [tmp_path / "grid.toml"]
    assert main([*args, "--table", "table.csv"]) == 0
    out, err = capsys.readouterr()
    lines = [line.split() for line in out.splitlines()]
    assert lines[0] == ["run", "seed", "epochs", "budget", "natural", "seconds", "state"]
    assert [line[1:4] + line[8:] for line in lines[1:3]] == [["0", "1", "8.00", "done"], ["1", "1", "8.00", "done"]]
    assert out.splitlines()[-1] == "2 done"
    assert "2/2 seed=1: done" in err
    assert err.index("seed=0: started") < err.index("1/2 seed=0: done") < err.index("seed=1: started")
    assert len((tmp_path / "table.csv").read_text().splitlines()) == 3
    assert main(["sweep", str(grid("seed = [0, 1, 2]")), "--device", "cpu"]) == 0
    assert "1/1 seed=2: done" in " ".join(capsys.readouterr().err.replace("shapes-at", "seed=2").split())


def test_accuracies_are_printed_in_percent_with_intervals_and_the_mean_of_each_arm(grid, tmp_path, capsys):
    """The ends of a run's interval are Wilson's for 40 images; those of a mean are those of the report."""
    args = ["sweep", str(grid("seed = [0, 1]\neps = ['4/255', '8/255']")), "--device", "cpu", "--quiet"]
    assert main(args) == 0
    shown = [re.split("  +", line) for line in capsys.readouterr().out.splitlines()]
    assert main([*args, "--status", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert all(0 <= row["natural"] <= 1 for row in rows)
    for cells, row in zip(shown[1:5], rows, strict=True):
        low, high = wilson(round(40 * row["natural"]), 40)
        star = "*" * bool(row["natural warnings"])
        assert cells[5] == f"{100 * row['natural']:.2f}% [{100 * low:.2f}%, {100 * high:.2f}%]{star}"
    means = shown.index(["mean over seeds", "seeds", "budget", "natural"])
    for (arm, seeds, budget, mean), eps in zip(shown[means + 1 : means + 3], ("4/255", "8/255"), strict=True):
        group = [row for row in rows if row["eps"] == eps]
        runs = [tmp_path / "sweeps/grid/runs" / row["run"] for row in group]
        found = collect(find_arms(read_runs(runs)))
        cell = found.cell(found.arms[0], found.columns["natural"])
        assert (arm, seeds, budget) == (f"eps={eps}", "2", f"{eps[0]}.00")
        ends = "[{:.2f}%, {:.2f}%]".format(*cell.interval) + "*" * any(row["natural warnings"] for row in group)
        assert mean == f"{100 * fmean(row['natural'] for row in group):.2f}% {ends}"
    assert main(["sweep", str(grid("seed = [0]")), "--device", "cpu", "--quiet"]) == 0
    assert "mean over seeds" not in capsys.readouterr().out


def test_the_table_shows_that_an_arm_without_a_mask_keeps_eps_whatever_mask_mean_is(grid, capsys):
    args = ["sweep", str(grid("'mask.rule' = ['none', 'mean']\n[set.mask]\nmean = '6/255'")), "--device", "cpu"]
    assert main([*args, "--quiet", "--json"]) == 0
    assert [row["budget"] for row in json.loads(capsys.readouterr().out)] == [8.0, 6.0]


def test_a_tex_table_has_a_row_for_each_arm(grid, tmp_path, capsys):
    args = ["sweep", str(grid("seed = [0, 1]")), "--device", "cpu", "--quiet"]
    assert main([*args, "--table", "table.tex"]) == 0
    mean = re.split("  +", capsys.readouterr().out.splitlines()[-3])
    lines = (tmp_path / "table.tex").read_text().splitlines()
    assert lines[lines.index(r"\midrule") + 1 : lines.index(r"\bottomrule")] == [
        " & ".join(cell.replace("%", r"\%") for cell in mean) + r" \\"
    ]


def test_a_collapsed_arm_is_marked_in_the_table_in_the_means_and_in_the_tex_file(grid, tmp_path, capsys):
    path = grid("seed = [0, 1]\n'optim.lr' = [0.01, 0.02]")
    assert main(["sweep", str(path), "--device", "cpu", "--quiet", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    for row in rows:  # one seed of the second arm
        file = tmp_path / "sweeps/grid/runs" / row["run"] / "eval.json"
        content = json.loads(file.read_text())
        warnings = ["all images are predicted as class 2"] * (row["seed"] == 1 and row["optim.lr"] == 0.02)
        content["entries"] = [with_checksum(entry | {"warnings": warnings}) for entry in content["entries"]]
        file.write_text(json.dumps(content))
    assert main(["sweep", str(path), "--status", "--table", "table.tex"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert ["%]*" in line for line in lines[1:5]] == [False, False, False, True]
    notes = ["n = 40 test images; best checkpoint", "* natural: all images are predicted as class 2"]
    assert lines[5:7] == notes
    assert ["%]*" in line for line in lines[9:11]] == [False, True]
    text = (tmp_path / "table.tex").read_text()
    assert text.count(r"\%]* \\") == 1
    below = [r"\end{tabular}", "", r"{\footnotesize", *(rf"{note}\par" for note in notes), "}"]
    assert text.splitlines()[-len(below) :] == below


def test_failed_arm_is_exit_code_1(grid, capsys):
    args = ["sweep", str(grid("'optim.lr' = [0.1, 1e30]")), "--device", "cpu"]
    assert main(args) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "1 done, 1 failed"
    assert main([*args, "--status"]) == 0
    assert "the loss was not finite at" in capsys.readouterr().out


def test_ctrl_c_says_how_far_it_came(grid, capsys, monkeypatch):
    done = []

    def perform(task, screen):
        if done:
            raise KeyboardInterrupt
        done.append(task)
        return ""

    monkeypatch.setattr("pixelpart.sweeps.jobs.perform", perform)
    assert main(["sweep", str(grid("seed = [0, 1, 2]")), "--device", "cpu"]) == 130
    assert capsys.readouterr().err.splitlines()[-1] == "stopped after 1 of 3 runs; the same command resumes"


WRONG = {
    "'mask.control' = ['shuffled', 'shuffeld']": "unknown mask.control 'shuffeld'; did you mean shuffled? choose from",
    "'mask.source' = ['gradcam', 'gradcom']": "unknown mask.source 'gradcom'; did you mean gradcam",
    "'mask.layer' = ['layer3', 'layer9']": "unknown layer 'layer9'; choose from features, layer1",
    "model = ['tiny-cnn', 'nosuch']": "unknown model 'nosuch'; choose from",
    "model = ['tiny-cnn', 'nosuch:net']": "no module 'nosuch'",
    "data = ['shapes', 'mnist']": "unknown data set 'mnist'; choose from",
    "data = ['shapes', 'nosuch:load']": "no module 'nosuch'",
    "'attack.name' = ['pgd', 'fgsm']": "unknown attack 'fgsm'; choose from ",
    "'objective.name' = ['at', 'tradse']": "unknown objective 'tradse'; did you mean trades? choose from",
    "'optim.schedule' = ['step', 'linear']": "unknown schedule 'linear'; choose from",
    "init_from = ['', 'run@7']": "cannot fork run: holdout: ",
}


@pytest.mark.parametrize("varied", WRONG)
def test_wrong_value_in_one_arm_ends_the_sweep_before_any_job(grid, tmp_path, capsys, varied):
    path = grid(f"{varied}\n[set.mask]\nrule = 'mean'")
    RunFolder(tmp_path / "run").write_config(recipes.shapes("at", epochs=1))
    for options in ([], ["--on", "slurm"]):
        err = mistake(capsys, ["sweep", path, "--device", "cpu", "--out", "out", *options], WRONG[varied])
        assert len(err.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_mistakes_are_one_line(grid, tmp_path, capsys, monkeypatch):
    path = grid("seed = [0]")
    assert len(mistake(capsys, ["sweep", "no.toml"], "cannot read no.toml").splitlines()) == 1
    assert len(mistake(capsys, ["sweep", path, "--on", "moon"], "unknown place 'moon'; choose from").splitlines()) == 1
    with exclusive_lock(tmp_path / "out" / ".lock", wait=False):
        args = ["sweep", path, "--out", "out"]
        assert len(mistake(capsys, args, "another process is working in out").splitlines()) == 1
    monkeypatch.setenv("PATH", str(tmp_path))
    assert len(mistake(capsys, ["sweep", path, "--on", "slurm"], "there is no sbatch on the PATH").splitlines()) == 1
    monkeypatch.setitem(__import__("sys").modules, "submitit", None)
    assert len(mistake(capsys, ["sweep", path, "--on", "slurm"], "pip install 'pixelpart[slurm]'").splitlines()) == 1
