"""Accuracy on corrupted images: equal to hand-counted flags, stored at once, and reused only for the same images."""

import copy
import json

import numpy as np
import pytest
import torch
from PIL import Image

from pixelpart.cli.main import main
from pixelpart.data.corruptions import CORRUPTIONS, corrupt, frost, source
from pixelpart.errors import UserError
from pixelpart.evaluation import corruptions as module
from pixelpart.evaluation import store
from pixelpart.evaluation.corruptions import DRAWN, CorruptionResult, corruptions, mean_accuracy
from pixelpart.evaluation.results import Outcome
from pixelpart.evaluation.statistics import wilson

N = 24


@pytest.fixture(autouse=True)
def _no_package(monkeypatch):
    monkeypatch.setattr(frost.importlib.util, "find_spec", lambda name: None)


@pytest.fixture
def images(net):
    """Images labelled with the network's own predictions, apart from every fourth."""
    x = torch.randint(256, (N, 3, 6, 6), dtype=torch.uint8, generator=torch.Generator().manual_seed(3))
    y = net(x / 255).argmax(1)
    y[::4] = (y[::4] + 1) % 5
    return x, y


@pytest.fixture
def measure(net, images, tmp_path):
    def measure(model=net, *, given=images, names="fog,contrast", severities=(1, 5), **settings):
        settings = {"out": tmp_path / "out", "name": "net"} | settings
        return corruptions(model, data=given, names=names, severities=severities, **settings)

    return measure


def reused(result):
    return [result.clean.reused, *(outcome.reused for outcome in result.outcomes.values())]


# -- numbers


def test_each_accuracy_is_the_share_of_correct_corrupted_images(measure, net, images):
    messages = []
    result = measure(progress=lambda *message: messages.append(message))
    x, y = images
    assert result.clean.accuracy == 0.75
    assert list(result.outcomes) == [("fog", 1), ("fog", 5), ("contrast", 1), ("contrast", 5)]
    for (name, severity), outcome in result.outcomes.items():
        correct = net(corrupt(x, name, severity) / 255).argmax(1) == y
        assert np.array_equal(outcome.right, correct)
        assert outcome.accuracy == int(correct.sum()) / N
        assert outcome.interval == wilson(int(correct.sum()), N)
    counts = [done for title, done, total, note in messages if title == "classifying"]
    assert counts == sorted(counts)
    assert messages[-1][:3] == ("classifying", 5 * N, 5 * N)
    assert messages[-1][3].startswith("contrast-5 ")
    assert ("corrupting", N, N, "fog") in messages


def outcome_of(flags):
    flags = np.array(flags, bool)
    correct, n = int(flags.sum()), len(flags)
    entry = {"attack": "x", "accuracy": correct / n, "interval": [0.0, 1.0], "n": n, "warnings": [], "settings": {}}
    return Outcome(entry, flags, reused=False)


def test_the_interval_of_a_mean_counts_images_not_versions():
    cells = {("fog", 1): [1, 1, 0, 0], ("fog", 2): [1, 0, 0, 0], ("snow", 1): [1, 1, 1, 0]}
    result = CorruptionResult(outcome_of([1] * 4), {cell: outcome_of(flags) for cell, flags in cells.items()})
    mean, low, high = result.mean("fog")
    assert mean == 3 / 8
    # shares 1, 1/2, 0, 0: variance 0.171875; z²/n = 0.960365; (0.375 + 0.480182 ± sqrt(0.165063 + 0.230575)) / 1.960365
    assert (low, high) == pytest.approx((0.115377, 0.757095), abs=2e-6)
    assert result.mean()[0] == pytest.approx(6 / 12)
    same = {(name, 1): outcome_of([1, 1, 0, 0]) for name in ("fog", "snow", "frost")}
    result = CorruptionResult(outcome_of([1] * 4), same)
    assert result.mean() == result.mean("fog")


def test_the_interval_of_a_mean_is_wilsons_where_the_versions_of_an_image_agree():
    """Also where all images agree: 20 of 20 have 1/(1 + z²/20) = 0.838875 as the lower end, not 1."""
    for correct in (0, 1, 7, 20):
        flags = np.stack([np.arange(20) < correct] * 5)
        mean, *interval = mean_accuracy(flags)
        assert mean == correct / 20
        assert interval == pytest.approx(wilson(correct, 20), abs=1e-12)
    assert interval == pytest.approx([0.838875, 1.0], abs=1e-6)
    assert mean_accuracy(np.ones((5, 1), bool)) == pytest.approx((1.0, *wilson(1, 1)))


def test_one_wrong_version_does_not_make_the_interval_narrower():
    flags = np.ones((5, 20), bool)
    flags[4, 3] = False
    assert mean_accuracy(flags)[1] < 0.838875


def test_all_corruptions_and_severities_are_the_default(net, images):
    x, y = images
    result = corruptions(net, data=(x[:4], y[:4]))
    assert len(result.outcomes) == 95
    assert result.names == ["frost-drawn" if name == "frost" else name for name in CORRUPTIONS]
    assert result.severities == [1, 2, 3, 4, 5]
    assert result.clean.entry["flags"] is None


def test_the_table_has_a_line_per_corruption_and_a_warning_for_drawn_frost(measure, tmp_path):
    lines = str(measure(names="fog,frost")).splitlines()
    assert lines[0].split() == ["corruption", "1", "5", "mean"]
    assert [line.split()[0] for line in lines[1:5]] == ["fog", "frost-drawn", "mean", "clean"]
    assert [line.endswith("*") for line in lines[1:5]] == [False, True, True, False]
    assert lines[5:] == [f"n = {N}, corrupted images: generated", f"* {DRAWN}"]
    for name in frost.PICTURES:
        Image.fromarray(np.full((60, 60, 3), 99, np.uint8)).save(tmp_path / name)
    assert measure(names="frost", frost=tmp_path)["frost", 1].warnings == []


def test_the_files_of_cifar_10_c_are_used_if_given(measure, net, images, tmp_path):
    x, y = images
    folder = tmp_path / "C"
    folder.mkdir()
    np.save(folder / "labels.npy", np.tile(y.numpy().astype(np.uint8), 5))
    stack = torch.cat([x.roll(severity, 3) for severity in range(1, 6)])
    np.save(folder / "fog.npy", stack.permute(0, 2, 3, 1).numpy())
    result = measure(names="fog", folder=folder)
    assert np.array_equal(result["fog", 5].right, net(x.roll(5, 3) / 255).argmax(1) == y)
    assert result["fog", 5].entry["settings"] == {"corruption": "fog", "severity": 5, "source": "files"}
    with pytest.raises(UserError, match=r"snow\.npy"):
        measure(names="fog,snow", folder=folder)


# -- stored results


def test_stored_results_are_reused_and_new_ones_added(measure, tmp_path, monkeypatch):
    first = measure()
    before = (tmp_path / "out" / "corruptions.json").read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(module, "natural", None)
        patch.setattr(source, "corrupt", None)
        second = measure()
    assert all(reused(second))
    assert second.entries == first.entries
    assert (tmp_path / "out" / "corruptions.json").read_bytes() == before
    assert not (tmp_path / "out" / "eval.json").exists()
    assert reused(measure(names="contrast,snow", severities=(5, 2))) == [True, False, False, False, True]
    assert len(store.read_entries(tmp_path / "out", "corruptions.json")) == 8


def test_an_interrupted_measurement_continues(measure, monkeypatch):
    natural, calls = module.natural, []

    def interrupted(*args, **settings):
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return natural(*args, **settings)

    monkeypatch.setattr(module, "natural", interrupted)
    with pytest.raises(KeyboardInterrupt):
        measure()
    assert reused(measure()) == [True, True, True, False, False]


def test_nothing_is_reused_for_other_weights_images_generators_or_corrupt_flags(
    measure, net, images, tmp_path, monkeypatch
):
    measure()
    other = copy.deepcopy(net)
    with torch.no_grad():
        other.linear.bias[0] += 1e-3
    assert not any(reused(measure(other, out=tmp_path / "other")))
    x = images[0].clone()
    x[0, 0, 0, 0] ^= 1
    assert not any(reused(measure(given=(x, images[1]), out=tmp_path / "other")))
    entry = measure()["fog", 5].entry
    np.save(tmp_path / "out" / entry["flags"], ~np.load(tmp_path / "out" / entry["flags"]))
    assert reused(measure()) == [True, True, False, True, True]
    monkeypatch.setattr(source, "generator_version", lambda: "another")
    changed = measure()
    assert reused(changed) == [True, False, False, False, False]
    assert changed["fog", 5].entry["pixels"] != entry["pixels"]  # `compare` must not mix the two


# -- mistakes and the command line


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"names": "fog,rain"}, "unknown corruption 'rain'; choose from brightness"),
        ({"names": []}, "no corruptions given; choose from gaussian_noise"),
        ({"severities": (0,)}, "unknown severity 0; choose from 1, 2, 3, 4, 5"),
        ({"severities": ()}, "no severities given"),
        ({"batch_size": True}, "batch_size True is not"),
        ({"folder": "nowhere"}, "no file nowhere/labels.npy"),
        ({"frost": "nowhere"}, "frost1.png"),
    ],
)
def test_mistakes_are_reported_in_one_line(settings, message, measure):
    with pytest.raises(UserError) as caught:
        measure(**settings)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_command_prints_a_table_and_stores_the_entries(run, capsys):
    command = ["corruptions", str(run.dir), "--names", "fog,snow", "--severities", "1,3", "--images", "12"]
    assert main(command) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[0].split() == ["corruption", "1", "3", "mean"]
    assert err.startswith("corrupted images: ")
    assert main([*command, "--json", "--quiet"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    content = json.loads(out)
    assert content["means"].keys() == {"fog", "snow"}
    assert [entry["attack"] for entry in content["entries"]] == ["clean", "fog-1", "fog-3", "snow-1", "snow-3"]
    assert content["entries"] == json.loads((run.dir / "corruptions.json").read_text())["entries"]
    accuracies = [entry["accuracy"] for entry in content["entries"][1:]]
    assert content["mean"]["accuracy"] == pytest.approx(np.mean(accuracies))
    assert main(["corruptions", str(run.dir), "--severities", "6"]) == 2
    assert "unknown severity 6; choose from 1, 2, 3, 4, 5" in capsys.readouterr().err
