"""Accuracy on corrupted images: each cell as counted by hand, kept as it comes, reused only for the same question."""

import copy
import dataclasses
import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from pixelpart import data
from pixelpart.cli.main import main
from pixelpart.data.corruptions import CORRUPTIONS, corrupt, frost, source
from pixelpart.errors import UserError
from pixelpart.evaluation import corruptions as corruptions_module
from pixelpart.evaluation import store
from pixelpart.evaluation.corruptions import DRAWN, Corrupted, corruptions
from pixelpart.evaluation.result import Outcome
from pixelpart.evaluation.statistics import wilson

N = 24


@pytest.fixture(autouse=True)
def _no_package(monkeypatch):
    monkeypatch.setattr(frost.importlib.util, "find_spec", lambda name: None)


@pytest.fixture
def some(net):
    """Images whose labels are what the network says of target, but for every fourth."""
    x = torch.randint(256, (N, 3, 6, 6), dtype=torch.uint8, generator=torch.Generator().manual_seed(3))
    y = net(x / 255).argmax(1)
    y[::4] = (y[::4] + 1) % 5
    return x, y


@pytest.fixture
def ask(net, some, tmp_path):
    def ask(model=net, *, given=some, names="fog,contrast", severities=(1, 5), **settings):
        kept = {"out": tmp_path / "out", "name": "net"}
        return corruptions(model, data=given, names=names, severities=severities, **kept | settings)

    return ask


def reused(result):
    return [result.clean.reused, *(outcome.reused for outcome in result.outcomes.values())]


# -- figures


def test_each_cell_is_the_share_of_corrupted_images_that_are_right(ask, net, some):
    result = ask()
    x, y = some
    assert result.clean.accuracy == 0.75
    assert list(result.outcomes) == [("fog", 1), ("fog", 5), ("contrast", 1), ("contrast", 5)]
    for (name, severity), outcome in result.outcomes.items():
        right = net(corrupt(x, name, severity) / 255).argmax(1) == y
        assert np.array_equal(outcome.right, right)
        assert outcome.accuracy == int(right.sum()) / N
        assert outcome.interval == wilson(int(right.sum()), N)


def outcome_of(flags):
    flags = np.array(flags, bool)
    correct, n = int(flags.sum()), len(flags)
    entry = {"attack": "x", "accuracy": correct / n, "interval": [0.0, 1.0], "n": n, "warnings": [], "settings": {}}
    return Outcome(entry, flags, reused=False)


def test_versions_of_one_image_count_as_one():
    cells = {("fog", 1): [1, 1, 0, 0], ("fog", 2): [1, 0, 0, 0], ("snow", 1): [1, 1, 1, 0]}
    result = Corrupted(outcome_of([1] * 4), {cell: outcome_of(flags) for cell, flags in cells.items()})
    mean, low, high = result.mean("fog")
    assert mean == 3 / 8
    spread = np.std([1, 0.5, 0, 0], ddof=1) / 2
    assert high - mean == pytest.approx(1.959964 * spread, abs=1e-6)
    assert low == 0  # never below
    assert result.mean()[0] == pytest.approx(6 / 12)
    same = Corrupted(outcome_of([1] * 4), {(name, 1): outcome_of([1, 1, 0, 0]) for name in ("fog", "snow", "frost")})
    assert same.mean() == same.mean("fog")


def test_all_corruptions_at_all_severities_unless_told(net, some):
    result = corruptions(net, data=some)
    assert len(result.outcomes) == 95
    assert result.names == ["frost-drawn" if name == "frost" else name for name in CORRUPTIONS]
    assert result.severities == [1, 2, 3, 4, 5]
    assert result.clean.entry["flags"] is None


def test_the_table_has_a_line_for_each_corruption(ask):
    lines = str(ask(names="fog,frost")).splitlines()
    assert lines[0].split() == ["corruption", "1", "5", "mean"]
    assert [line.split()[0] for line in lines[1:5]] == ["fog", "frost-drawn", "mean", "clean"]
    assert [line.endswith("*") for line in lines[1:5]] == [False, True, True, False]
    assert lines[5] == f"n = {N}, corrupted images: generated"
    assert lines[6] == f"* {DRAWN}"


def test_drawn_frost_is_doubted_and_pictures_are_not(ask, tmp_path):
    for name in frost.PICTURES:
        Image.fromarray(np.full((60, 60, 3), 99, np.uint8)).save(tmp_path / name)
    assert ask(names="frost")["frost-drawn", 1].warnings == [DRAWN]
    assert ask(names="frost", frost=tmp_path)["frost", 1].warnings == []


def test_official_files_are_used_where_they_are_named(ask, net, some, tmp_path):
    x, y = some
    folder = tmp_path / "C"
    folder.mkdir()
    np.save(folder / "labels.npy", np.tile(y.numpy().astype(np.uint8), 5))
    stack = torch.cat([x.roll(severity, 3) for severity in range(1, 6)])
    np.save(folder / "fog.npy", stack.permute(0, 2, 3, 1).numpy())
    result = ask(names="fog", folder=folder)
    assert np.array_equal(result["fog", 5].right, net(x.roll(5, 3) / 255).argmax(1) == y)
    assert result["fog", 5].entry["settings"] == {"corruption": "fog", "severity": 5, "source": "files"}
    assert str(result).splitlines()[-1] == f"n = {N}, corrupted images: files"
    with pytest.raises(UserError, match=r"C lacks snow\.npy"):
        ask(names="fog,snow", folder=folder)


def test_progress_goes_over_all_cells(ask):
    told = []
    ask(progress=lambda *news: told.append(news))
    counts = [done for what, done, total, note in told if what == "classifying"]
    assert counts == sorted(counts)
    assert told[-1][:3] == ("classifying", 5 * N, 5 * N)
    assert told[-1][3].startswith("contrast-5 ")
    assert ("corrupting", N, N, "fog") in told


# -- what is kept


def test_a_second_call_has_everything_again(ask, tmp_path, monkeypatch):
    first = ask()
    monkeypatch.setattr(corruptions_module, "natural", None)
    monkeypatch.setattr(source, "corrupt", None)
    before = (tmp_path / "out" / "corruptions.json").read_bytes()
    second = ask()
    assert all(reused(second))
    assert second.entries == first.entries
    assert second.mean() == first.mean()
    assert (tmp_path / "out" / "corruptions.json").read_bytes() == before
    assert not (tmp_path / "out" / "eval.json").exists()


def test_more_is_added_to_what_is_there(ask, tmp_path):
    ask()
    assert reused(ask(names="contrast,snow", severities=(5, 2))) == [True, False, False, False, True]
    assert len(store.read_entries(tmp_path / "out", "corruptions.json")) == 8


def test_what_was_stopped_goes_on(ask, monkeypatch):
    natural, calls = corruptions_module.natural, []

    def stopped(*args, **settings):
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return natural(*args, **settings)

    monkeypatch.setattr(corruptions_module, "natural", stopped)
    with pytest.raises(KeyboardInterrupt):
        ask()
    assert reused(ask()) == [True, True, True, False, False]


def test_another_model_other_images_and_another_generator_are_asked_anew(ask, net, some, monkeypatch):
    ask()
    other = copy.deepcopy(net)
    with torch.no_grad():
        other.linear.bias[0] += 1e-3
    assert not any(reused(ask(other, name="other")))
    assert all(reused(ask()))
    x = some[0].clone()
    x[0, 0, 0, 0] ^= 1
    assert not any(reused(ask(given=(x, some[1]), name="moved")))
    monkeypatch.setattr(source, "generator_version", lambda: "another")
    assert reused(ask()) == [True, False, False, False, False]


def test_a_flipped_flag_is_noticed(ask, tmp_path):
    entry = ask()["fog", 5].entry
    path = tmp_path / "out" / entry["flags"]
    np.save(path, ~np.load(path))
    assert reused(ask()) == [True, True, False, True, True]


# -- mistakes


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"names": "fog,rain"}, "unknown corruption 'rain'; choose from brightness"),
        ({"names": []}, "no corruptions named; choose from gaussian_noise"),
        ({"severities": (0,)}, "unknown severity 0; choose from 1, 2, 3, 4, 5"),
        ({"severities": (1.0,)}, "unknown severity 1.0; choose from 1, 2, 3, 4, 5"),
        ({"severities": ()}, "no severities named"),
        ({"images": 0}, "images 0 is not a whole number above 0"),
        ({"images": 99}, "images 99 is more than the 24 available"),
        ({"batch_size": True}, "batch_size True is not a whole number above 0"),
        ({"folder": "nowhere"}, "no file nowhere/labels.npy"),
        ({"frost": "nowhere"}, "nowhere lacks frost1.png"),
    ],
)
def test_mistakes_are_told_in_one_line(settings, said, ask):
    with pytest.raises(UserError) as caught:
        ask(**settings)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_floats_are_refused(ask, some):
    with pytest.raises(UserError, match="corruptions need uint8 images, not float32"):
        ask(given=(some[0] / 255, some[1]))


# -- the command line


@pytest.fixture
def few(monkeypatch):
    x = torch.randint(256, (12, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    pair = x, torch.arange(12) % 10
    shapes = dataclasses.replace(data.SETS["shapes"], load=lambda split, root: pair, counts={"test": 12})
    monkeypatch.setitem(data.SETS, "shapes", shapes)


def test_the_command_prints_a_table_and_keeps_the_entries(few, run, capsys):
    command = ["corruptions", str(run.dir), "--names", "fog,snow", "--severities", "1,3", "--device", "cpu"]
    assert main(command) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[0].split() == ["corruption", "1", "3", "mean"]
    assert err == "corrupted images: generated, with generated frost\n"
    assert main([*command, "--json", "--quiet"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    told = json.loads(out)
    assert told["means"].keys() == {"fog", "snow"}
    assert [entry["attack"] for entry in told["entries"]] == ["clean", "fog-1", "fog-3", "snow-1", "snow-3"]
    assert told["entries"] == json.loads((run.dir / "corruptions.json").read_text())["entries"]
    assert told["mean"]["accuracy"] == pytest.approx(np.mean([entry["accuracy"] for entry in told["entries"][1:]]))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--names", "fog,rain"], "unknown corruption 'rain'; choose from"),
        (["--severities", "6"], "unknown severity 6; choose from 1, 2, 3, 4, 5"),
        (["--severities", "high"], "'high' is not a whole number above 0"),
        (["--folder", "nowhere"], "no file nowhere/labels.npy"),
        (["--severity", "1"], "unknown option '--severity'; did you mean --severities"),
    ],
)
def test_mistakes_exit_with_2_and_one_line(options, said, few, run, capsys):
    assert main(["corruptions", str(run.dir), *options]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert err.count("\n") == 1


def test_scipy_is_imported_late():
    code = "import sys, pixelpart.evaluation.evaluate, pixelpart.cli.main; sys.exit('scipy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
