"""The demo on few images: two runs, trained, evaluated and explained; a second call reuses everything."""

import pytest

from command_line import few
from pixelpart import data, recipes
from pixelpart.cli.main import main
from pixelpart.evaluation.store import read_entries
from pixelpart.report import curves
from pixelpart.runs import Run

TINY = {"epochs": 2, "batch_size": 50, "holdout": 10, "probe": 16, "attack": {"steps": 1, "step_size": "8/255"}}


@pytest.fixture(autouse=True)
def _tiny(monkeypatch):
    monkeypatch.setitem(data.SETS, "shapes", few())
    monkeypatch.setattr(curves, "PANELS", curves.PANELS[:1])
    for name, method in (("shapes-at", "at"), ("shapes-part", "part")):
        small = TINY | ({"burn_in": {"epochs": 1}} if method == "part" else {})
        monkeypatch.setitem(
            recipes.RECIPES, name, lambda small=small, method=method, **given: recipes.shapes(method, **small, **given)
        )


def test_demo_writes_a_report_and_a_second_call_reuses_everything(tmp_path, capsys):
    command = ["demo", "--out", str(tmp_path / "demo"), "--seed", "3", "--device", "cpu"]
    assert main(command) == 0
    first = capsys.readouterr()
    assert first.out == f"{tmp_path / 'demo' / 'report.html'}\n"
    page = (tmp_path / "demo" / "report.html").read_text()
    assert "AT and PART on shapes" in page
    assert page.count("<img") >= 12
    assert all("about these two models, not about the methods" in text for text in (page, first.err))
    for name, rule in (("shapes-at", "none"), ("shapes-part", "mean")):
        run = Run(tmp_path / "demo" / name)
        assert (run.config.mask.rule, run.config.seed, len(run.metrics)) == (rule, 3, 2)
        entries = read_entries(run.dir)
        assert {entry["attack"] for entry in entries} == {"natural", "pgd20"}
        assert all(entry["n"] == 160 and entry["checkpoint"] == "best" for entry in entries)
    written = {path: path.read_bytes() for name in ("*.safetensors", "eval.json") for path in tmp_path.rglob(name)}

    assert main(command) == 0
    second = capsys.readouterr()
    assert second.err.count("is finished: 2 epochs") == 2
    assert "epoch 1/2" in first.err
    assert "epoch 1/2" not in second.err
    assert {path: path.read_bytes() for path in written} == written
