"""Runs below a folder are found, summarised and deleted, and nothing else is."""

import json

import numpy as np
import pytest

from metrics_rows import metrics_row
from pixelpart.config import Config
from pixelpart.errors import UserError
from pixelpart.files import exclusive_lock
from pixelpart.listing import check_deletable, delete_run, find_folders, find_runs, read_run
from pixelpart.runs import RunFolder
from pixelpart.runs.folder import CARD_MARK
from run_results import write_run


def flags(right, n=100):
    return np.arange(n) < right


def make(folder, results=(), *, epoch=None, **config):
    """A run folder with results (correct of 100 images by attack) and a row of metrics for its last epoch."""
    config = {"recipe": "shapes-at", "epochs": 4} | config
    write_run(folder, {name: flags(right) for name, right in dict(results).items()}, config=config)
    if epoch:
        RunFolder(folder).write_metrics([metrics_row(e, natural=0.7, pgd=0.4) for e in range(1, epoch + 1)])
    return folder


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def paths(*words):
    return [str(run.path) for run in find_runs(words)]


# -- finding


def test_runs_of_all_depths_are_found_and_other_folders_are_not(here):
    for name in ("a", "sweeps/grid/runs/0f", "experiments/demo/runs/1b", "a/inner"):
        make(here / name)
    for name in ("node", ".hidden/run", "list", "truncated", "empty"):
        (here / name).mkdir(parents=True)
    make(here / ".cache" / "b")
    (here / "node" / "config.json").write_text('{"name": "left-pad"}')
    (here / "list" / "config.json").write_text("[1, 2]")
    (here / "truncated" / "config.json").write_text("{")
    (here / "a" / "checkpoints").mkdir()
    (here / "a" / "checkpoints" / "config.json").write_text(Config().to_json())  # not looked for in there
    (here / "linked").symlink_to(here / "sweeps")
    assert paths() == ["a", "a/inner", "experiments/demo/runs/1b", "sweeps/grid/runs/0f"]
    assert paths("linked") == ["linked/grid/runs/0f"]  # but a link that is named is followed
    assert paths(".cache") == [".cache/b"]
    assert list(find_folders(here / "empty")) == []


def test_runs_are_sorted_by_folder_recipe_seed_and_number(here):
    make(here / "x" / "part-10", recipe="shapes-at", seed=3)
    make(here / "x" / "part-9", recipe="shapes-at", seed=3)
    make(here / "x" / "0", recipe="shapes-part")
    make(here / "x" / "z", recipe="shapes-at", seed=0)
    make(here / "a10" / "r")
    make(here / "a9" / "r")
    assert paths() == ["a9/r", "a10/r", "x/z", "x/part-9", "x/part-10", "x/0"]


def test_a_word_is_a_folder_or_a_pattern_of_a_path_a_name_or_a_recipe(here):
    for name, recipe in {"runs/at-1": "shapes-at", "runs/at-12": "shapes-at", "old/at-1": "cifar10-part"}.items():
        make(here / name, recipe=recipe)
    assert paths("runs") == ["runs/at-1", "runs/at-12"]
    assert paths("runs/at-1") == ["runs/at-1"]
    assert paths("at-1") == ["old/at-1", "runs/at-1"]
    assert paths("cifar10-*") == ["old/at-1"]
    assert paths("runs/*2", "old") == ["old/at-1", "runs/at-12"]
    assert paths(str(here / "o*" / "*")) == [str(here / "old/at-1")]
    for word, message in {"at-2": "no run matches 'at-2'", "runs/at-2": "did you mean runs/at-1"}.items():
        with pytest.raises(UserError, match=message):
            find_runs([word])
    (here / "empty").mkdir()
    with pytest.raises(UserError, match="no runs in empty"):
        find_runs(["empty"])


# -- what is listed


def test_state_is_read_from_metrics_and_locks(here):
    assert (read_run(make(here / "new")).state, read_run(make(here / "new")).epoch) == ("unfinished", 0)
    assert read_run(make(here / "begun", epoch=3)).state == "unfinished"
    done = make(here / "done", epoch=4)
    assert read_run(done).state == "finished"
    with RunFolder(done).locked():
        assert read_run(done).state == "running"
    assert read_run(done).state == "finished"
    (done / "README.md").write_text(f"---\n{CARD_MARK}\n---\n")
    assert read_run(done).state == "exported"
    job = make(here / "grid" / "runs" / "0f", epoch=4)  # trained, and evaluated now
    with exclusive_lock(here / "grid" / "jobs" / "0f.lock", wait=False):
        assert read_run(job).state == "running"


def test_robust_is_the_lowest_accuracy_at_the_usual_eps_of_one_checkpoint_on_test_images(here):
    run = make(here / "run", {"natural": 80, "pgd20": 50, "apgd": 45}, epoch=4, attack={"steps": 7})
    write_run(run, {"pgd20@16/255": flags(10)}, config=json.loads((run / "config.json").read_text()), eps=16 / 255)
    for changes in (
        {"split": "held-out"},
        {"checkpoint": "last"},
        {"dataset": "cifar10"},
        {"subject": "other.safetensors"},
    ):
        write_run(run, {"pgd20": flags(1)}, config=json.loads((run / "config.json").read_text()), **changes)
    listed = read_run(run)
    assert (listed.natural.accuracy, listed.natural.split, listed.natural.checkpoint) == (0.8, "test", "best")
    assert (listed.robust.accuracy, listed.robust.attack, listed.robust.images) == (0.45, "apgd", 100)


def test_of_each_attack_the_result_on_the_most_images_counts(here):
    run = make(here / "run", {"natural": 80, "pgd20": 50, "apgd": 45}, epoch=4)
    config = json.loads((run / "config.json").read_text())
    write_run(run, {"pgd20": flags(1, 11), "natural": flags(1, 11)}, config=config)
    robust = read_run(run).robust
    assert (robust.accuracy, robust.attack, robust.images) == (0.45, "apgd", 100)
    write_run(run, {"mma20": flags(3, 11)}, config=config)  # the only result of this attack
    robust = read_run(run).robust
    assert (robust.attack, robust.images) == ("mma20", 11)


def test_without_results_the_values_of_the_last_epoch_are_shown(here):
    listed = read_run(make(here / "run", epoch=2, attack={"steps": 7}, eps="6/255", holdout=64))
    assert (listed.natural.accuracy, listed.natural.checkpoint) == (0.7, None)
    assert (listed.robust.accuracy, listed.robust.attack, listed.robust.eps) == (0.4, "pgd7", 6 / 255)
    assert (listed.robust.images, listed.robust.split) == (64, "held-out")
    listed = read_run(make(here / "half", {"pgd20": 30}, epoch=2))
    assert (listed.natural.checkpoint, listed.robust.checkpoint) == (None, "best")
    assert read_run(make(here / "new")).natural is None
    plain = read_run(make(here / "plain", epoch=2, eps=0))
    assert (plain.natural.accuracy, plain.robust) == (0.7, None)


def test_files_that_cannot_be_read_are_reported_and_do_not_hide_other_runs(here):
    make(here / "good", epoch=4)
    run = make(here / "eval", epoch=4)
    (run / "eval.json").write_text("{")
    (make(here / "newer") / "config.json").write_text(json.dumps({"schema_version": 1, "recipe": "x", "novel": 3}))
    found = {str(run.path): run for run in find_runs()}
    assert (found["eval"].state, found["eval"].robust.accuracy) == ("finished", 0.4)
    assert "cannot read eval/eval.json" in found["eval"].problem
    assert found["newer"].state == "unreadable"
    assert found["newer"].problem.startswith("newer/config.json: novel: no such field")
    assert found["good"].problem == ""


# -- deleting


def test_deleting_removes_the_files_of_a_run_and_keeps_all_others(here):
    outside = here / "outside"
    outside.mkdir()
    (outside / "a.safetensors").write_text("weights")
    run = make(here / "run", {"natural": 80, "pgd20": 40}, epoch=4)
    (run / "checkpoints").mkdir()
    (run / "checkpoints" / "last.safetensors").write_text("weights")
    assert delete_run(run) == []
    assert not run.exists()

    run = make(here / "run", {"natural": 80}, epoch=4)
    (run / "checkpoints").symlink_to(outside)
    (run / "explain.json").symlink_to(outside / "a.safetensors")
    (run / "eval" / "mine.txt").write_text("mine")
    (run / "notes.txt").write_text("mine")
    make(run / "inner")
    left = delete_run(run)
    assert [path.name for path in left] == ["checkpoints", "eval", "explain.json", "inner", "notes.txt"]
    assert [path.name for path in (run / "eval").iterdir()] == ["mine.txt"]
    assert (outside / "a.safetensors").read_text() == "weights"
    assert paths() == ["run/inner"]


def test_locked_runs_links_and_other_folders_are_not_deleted(here):
    run = make(here / "run", epoch=4)
    with RunFolder(run).locked(), pytest.raises(UserError, match="run is in use by pid"):
        delete_run(run)
    (here / "link").symlink_to(run)
    with pytest.raises(UserError, match="link is a symbolic link; delete the run at "):
        delete_run(here / "link")
    with pytest.raises(UserError, match="is not a run folder"):
        check_deletable(here)
    assert read_run(run).state == "finished"
