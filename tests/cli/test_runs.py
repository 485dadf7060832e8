"""`pixelpart runs`: the table, --json and --delete."""

import io
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from command_line import mistake, run_python
from metrics_rows import metrics_row
from pixelpart import listing
from pixelpart.cli import runs as command
from pixelpart.cli.main import main
from pixelpart.listing import read_run
from pixelpart.runs import RunFolder
from run_results import write_run

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def make(path, *, right=None, epoch=4, **changes):
    """A run; `right`: how many of 100 images are correct under pgd20."""
    config = {"recipe": "shapes-part", "epochs": 4, "seed": 7}
    results = {} if right is None else {"natural": np.arange(100) < 80, "pgd20": np.arange(100) < right}
    write_run(Path(path), results, config=config, **changes)
    RunFolder(path).write_metrics([metrics_row(e, natural=0.755, pgd=0.25) for e in range(1, epoch + 1)])
    return Path(path)


def output(capsys, *args):
    assert main(["runs", *args]) == 0
    return capsys.readouterr().out


def test_table_has_recipe_seed_epoch_accuracies_attack_and_state(capsys):
    assert output(capsys) == "no runs below the current folder\n"
    make("a", right=45)
    make("b", right=45, warnings=["gradients are zero"], checkpoint="last", split="held-out", eps=4 / 255)
    make("c", epoch=2)
    assert output(capsys) == (
        "run  recipe       seed  epoch  natural  robust  attack                       state\n"
        "a    shapes-part  7     4/4    80.0%    45.0%   pgd20                        finished\n"
        "b    shapes-part  7     4/4    80.0%*   45.0%*  pgd20@4/255, last, held-out  finished\n"
        "c    shapes-part  7     2/4    75.5%~   25.0%~  pgd10                        unfinished\n"
        "~ measured during training, not by `pixelpart evaluate`\n"
        "* has warnings, which `pixelpart evaluate RUN` prints\n"
        "3 runs: 2 finished, 1 unfinished\n"
    )


def test_settings_are_the_fields_in_which_runs_of_one_recipe_differ_apart_from_the_seed(capsys):
    masked = {"recipe": "part", "mask": {"rule": "mean"}, "burn_in": {"epochs": 1}}
    configs = {
        "x/1": {"recipe": "at", "eps": "4/255", "eps_low": 0.01},  # eps_low is not used without a mask
        "x/2": {"recipe": "at", "eps": "8/255"},
        "x/3": {"recipe": "at", "eps": "8/255", "seed": 1},
        "y/1": masked | {"eps_low": "6/255"},
        "y/2": masked | {"eps_low": "7/255", "init_from": "y/1@1"},  # shares the burn-in of the run next to it
        "z": {"recipe": "other", "eps": "2/255"},
    }
    for path, config in configs.items():
        write_run(Path(path), {}, config=config)
    rows = [re.split("  +", line) for line in output(capsys).splitlines()[:-1]]
    assert rows[0][:5] == ["run", "recipe", "seed", "settings", "epoch"]
    assert {row[0]: row[3] for row in rows[1:]} == {
        "x/1": "eps=4/255", "x/2": "eps=8/255", "x/3": "eps=8/255", "y/1": "eps_low=6/255", "y/2": "eps_low=7/255",
        "z": "0/80",  # the only one of its recipe: then comes the epoch
    }  # fmt: skip
    assert "settings" not in output(capsys, "--json")


def test_json_has_what_the_table_shows(capsys):
    make("a", right=45)
    (run,) = json.loads(output(capsys, "a", "--json"))
    assert (run["run"], run["recipe"], run["seed"], run["epoch"], run["epochs"]) == ("a", "shapes-part", 7, 4, 4)
    assert (run["state"], run["natural"]["accuracy"], run["data"], run["model"]) == (
        "finished",
        0.8,
        "shapes",
        "resnet18",
    )
    assert run["robust"] == {
        "accuracy": 0.45, "attack": "pgd20", "eps": 8 / 255, "images": 100, "split": "test", "checkpoint": "best",
        "warnings": [],
    }  # fmt: skip
    assert output(capsys, "--json") != "[]"
    assert main(["runs", "b", "--json"]) == 2


@pytest.mark.parametrize("width", [100, 80, 60, 45])
def test_table_fits_the_width_of_a_terminal(width):
    for seed in range(3):
        make(f"sweeps/a-grid-with-a-long-name/runs/{seed:016x}", right=45)
    lines = command.table(listing.find_runs(), width=width).splitlines()[:-1]
    assert all(len(line) <= width for line in lines)
    assert all(line.split()[0].endswith(f"{seed:03x}") for seed, line in enumerate(lines[1:]))
    assert {"epoch", "natural", "robust", "state"} <= set(lines[0].split())


def test_listing_does_not_import_torch():
    make("a", right=45)
    code = "import sys; from pixelpart.cli.main import main; main(['runs']); sys.exit('torch' in sys.modules)"
    result = run_python("-c", code)
    assert result.returncode == 0
    assert "pgd20" in result.stdout


def test_delete_needs_names(capsys):
    mistake(capsys, ["runs", "--delete"], "name the runs to delete")


# -- deleting


def test_what_train_evaluate_and_explain_have_written_is_deleted_completely(copied, capsys):
    assert main(["evaluate", str(copied), "--attacks", "natural,pgd1", "--images", "20", "--device", "cpu"]) == 0
    assert main(["explain", str(copied), "--images", "2", "--device", "cpu"]) == 0
    assert main(["runs", str(copied), "--delete", "--yes"]) == 0
    assert capsys.readouterr().err.splitlines()[-1] == f"deleted {copied}"
    assert not copied.exists()


def test_every_file_that_the_reference_lists_for_a_run_folder_is_deleted():
    text = (ROOT / "docs" / "reference.md").read_text().partition("## A run folder")[2].partition("###")[0]
    cells = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    run = make("a")
    for name in [*(name for cell in cells for name in re.findall("`(.*?)`", cell)), "done.json", "measures/"]:
        path = run / (f"{name}file{listing.FOLDERS[name[:-1]][0]}" if name.endswith("/") else name)
        path.parent.mkdir(exist_ok=True)
        path.touch()
    assert listing.delete_run(run) == []


def test_without_a_terminal_deletion_needs_yes(capsys, monkeypatch):
    make("a")
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    mistake(capsys, ["runs", "a", "--delete"], "--delete needs --yes when stdin is not a terminal")
    assert read_run(Path("a")).state == "finished"


@pytest.mark.parametrize(("answer", "gone"), [("y\n", True), ("\n", False), ("n\n", False), ("", False)])
def test_on_a_terminal_deletion_asks(capsys, monkeypatch, answer, gone):
    make("a")
    terminal = io.StringIO(answer)
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stdin", terminal)
    assert main(["runs", "a", "--delete"]) == (0 if gone else 1)
    assert "delete 1 run? [y/N] " in capsys.readouterr().err
    assert Path("a").exists() != gone


def test_only_named_runs_are_deleted_and_all_or_none(capsys):
    for name in ("grid/runs/1", "grid/runs/1/inner", "grid/runs/2", "keep"):
        make(name)
    mistake(capsys, ["runs", "grid", "--delete", "--yes"], "grid is not a run folder; 'grid/*' means the runs below it")
    with RunFolder("grid/runs/2").locked():
        mistake(capsys, ["runs", "grid/*", "--delete", "--yes"], "grid/runs/2 is in use by pid")
    assert len(listing.find_runs()) == 4
    assert main(["runs", "grid/runs/1", "--delete", "--yes"]) == 0
    assert "grid/runs/1; these are not files of a run and remain: grid/runs/1/inner" in capsys.readouterr().err
    assert main(["runs", "grid/*", "--delete", "--yes"]) == 0
    assert [str(run.path) for run in listing.find_runs()] == ["keep"]
