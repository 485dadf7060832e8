"""The demo, cut down: two runs, each trained, attacked and explained, and a second call that has nothing to do."""

import dataclasses
import functools
import json

import pytest

from pixelpart import data, recipes
from pixelpart.cli.main import main
from pixelpart.experiments.demo import run_demo
from pixelpart.runtime.progress import Screen

TINY = {"epochs": 2, "batch_size": 50, "holdout": 10, "probe": 16, "attack": {"steps": 1, "step_size": "8/255"}}


@functools.cache
def some(split):
    return tuple(tensor[:160] for tensor in data.shapes.generate(split))


@pytest.fixture(autouse=True)
def _tiny(monkeypatch):
    masks = functools.cache(lambda split: data.shapes.object_masks(split)[:160])
    entry = dataclasses.replace(data.SETS["shapes"], load=lambda split, root: some(split), masks=masks)
    monkeypatch.setitem(data.SETS, "shapes", entry)
    for name, method in (("shapes-at", "at"), ("shapes-part", "part")):
        small = TINY | ({"burn_in": {"epochs": 1}} if method == "part" else {})
        monkeypatch.setitem(
            recipes.RECIPES, name, lambda small=small, method=method, **given: recipes.shapes(method, **small, **given)
        )


def test_the_demo_trains_attacks_and_explains_at_and_part(tmp_path):
    runs = run_demo(tmp_path, seed=3, device="cpu", screen=Screen(quiet=True))
    assert [run.dir for run in runs] == [tmp_path / "shapes-at", tmp_path / "shapes-part"]
    assert [run.config.mask.rule for run in runs] == ["none", "mean"]
    assert [run.config.seed for run in runs] == [3, 3]
    for run in runs:
        assert len(run.metrics) == 2
        entries = json.loads((run.dir / "eval.json").read_text())
        entries = entries["entries"] if isinstance(entries, dict) else entries
        assert {entry["attack"] for entry in entries} == {"natural", "pgd20"}
        assert all(entry["n"] == 160 and entry["checkpoint"] == "best" for entry in entries)


def test_the_command_writes_the_page_and_a_second_call_reuses_everything(tmp_path, capsys):
    command = ["demo", "--out", str(tmp_path / "demo"), "--device", "cpu"]
    assert main(command) == 0
    first = capsys.readouterr()
    assert first.out == f"{tmp_path / 'demo' / 'report.html'}\n"
    page = (tmp_path / "demo" / "report.html").read_text()
    assert "AT and PART on shapes" in page
    assert page.count("<img") >= 12
    weights = {path: path.read_bytes() for path in tmp_path.rglob("*.safetensors")}
    evals = {path: path.read_bytes() for path in tmp_path.rglob("eval.json")}
    assert len(evals) == 2

    assert main(command) == 0
    second = capsys.readouterr()
    assert second.err.count("is finished: 2 epochs") == 2
    assert "epoch 1/2" in first.err
    assert "epoch 1/2" not in second.err
    assert {path: path.read_bytes() for path in weights} == weights
    assert {path: path.read_bytes() for path in evals} == evals
