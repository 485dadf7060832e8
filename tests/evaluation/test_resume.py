"""A killed or stopped evaluation continues from the tries that it had settled, to the same flags."""

import contextlib
import json
import subprocess
import sys

import numpy as np
import pytest
import torch

from pixelpart.attacks.batching import Try
from pixelpart.cli.main import main
from pixelpart.evaluation import measure as measure_module
from pixelpart.evaluation.evaluate import evaluate
from pixelpart.evaluation.partial import PartialResult
from searches import EPS, evaluated, partial_files, stop_after

pytestmark = pytest.mark.usefixtures("short_searches")


@pytest.fixture
def settings(labelled, tmp_path):
    return {"data": labelled, "attacks": "autoattack", "eps": EPS, "out": tmp_path, "name": "net"}


def unkept(settings):
    return {name: value for name, value in settings.items() if name not in ("out", "name")}


@pytest.mark.parametrize("stop", [2, 30, 60])
def test_tries_settled_before_ctrl_c_are_not_repeated(net, settings, driver, tmp_path, stop):
    expected = evaluate(net, **unkept(settings))
    for tries in (driver["started"], driver["settled"]):
        tries.clear()
    with pytest.raises(KeyboardInterrupt):
        evaluate(net, **settings, progress=stop_after(stop))
    settled = set(driver["settled"])
    assert settled
    assert len(partial_files(tmp_path)) == 1
    assert not (tmp_path / "eval.json").exists()
    driver["started"].clear()
    result = evaluate(net, **settings)
    assert not settled & set(driver["started"])
    assert result.flags["autoattack"].tolist() == expected.flags["autoattack"].tolist()
    assert not result["autoattack"].reused
    assert partial_files(tmp_path) == []


def test_many_interruptions_lead_to_the_same_flags(net, settings, monkeypatch):
    expected = evaluate(net, **unkept(settings))
    add, sessions = PartialResult.add, []

    def limited(partial, *outcome):
        add(partial, *outcome)
        sessions[-1] += 1
        if sessions[-1] == 7:
            raise KeyboardInterrupt

    monkeypatch.setattr(PartialResult, "add", limited)
    result = None
    while result is None:
        sessions.append(0)
        with contextlib.suppress(KeyboardInterrupt):
            result = evaluate(net, **settings)
    assert 7 < len(sessions) < 30
    assert result.flags["autoattack"].tolist() == expected.flags["autoattack"].tolist()


def test_progress_continues_where_it_was(net, settings):
    settings |= {"attacks": "apgd-t"}
    first, second, stop = [], [], stop_after(20)
    with pytest.raises(KeyboardInterrupt):
        evaluate(net, **settings, progress=lambda *news: (first.append(news), stop()))
    evaluate(net, **settings, progress=lambda *news: second.append(news))
    _, done, total, note = first[-1]
    assert second[0][2:] == (total, note)
    assert second[0][1] >= done
    assert second[-1][1:3] == (total, total)


def test_an_evaluation_killed_by_sigkill_is_continued_by_the_next(run, driver, capsys):
    code = f"""
import os, signal
from pixelpart.attacks import VERSIONS
from pixelpart.cli.main import main
from pixelpart.evaluation.partial import PartialResult
from searches import short

VERSIONS["standard"] = short()
original, count = PartialResult.add, 0
def add(self, *outcome):
    global count
    original(self, *outcome)
    count += 1
    if count == 5:
        os.kill(os.getpid(), signal.SIGKILL)
PartialResult.add = add
main({evaluated(run)!r})
"""
    killed = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {sys.path!r}\n{code}"], capture_output=True, text=True
    )
    assert killed.returncode == -9, killed.stderr[-2000:]
    (partial,) = partial_files(run.dir)
    lines = [line.split() for line in partial.read_text().splitlines()[1:]]
    settled = {Try(search, int(sample), int(number)) for search, sample, number, _, _ in lines}
    assert len(settled) == 5
    assert main(evaluated(run)) == 0
    assert driver["started"]
    assert not settled & set(driver["started"])
    assert partial_files(run.dir) == []
    (entry,) = json.loads(capsys.readouterr().out)
    expected = evaluate(run.model, data="shapes", attacks="autoattack", images=40, device="cpu")
    assert np.load(run.dir / entry["flags"]).tolist() == expected.flags["autoattack"].tolist()


@pytest.mark.parametrize("damage", [lambda content: content[:-9], lambda content: content.replace(b"1", b"2")])
def test_a_damaged_partial_file_costs_time_and_changes_no_flag(net, settings, tmp_path, damage):
    expected = evaluate(net, **unkept(settings))
    with pytest.raises(KeyboardInterrupt):
        evaluate(net, **settings, progress=stop_after(35))
    (partial,) = partial_files(tmp_path)
    partial.write_bytes(damage(partial.read_bytes()))
    assert evaluate(net, **settings).flags["autoattack"].tolist() == expected.flags["autoattack"].tolist()


@pytest.mark.parametrize("change", [{"eps": EPS / 2}, {"seed": 1}, {"images": 10}, {"weights": True}])
def test_other_settings_or_weights_do_not_use_the_settled_tries(net, settings, driver, change):
    with pytest.raises(KeyboardInterrupt):
        evaluate(net, **settings, progress=stop_after(35))
    if change.pop("weights", False):
        with torch.no_grad():
            net.linear.bias[0] += 0.3
    settings |= change
    driver["started"].clear()
    kept = evaluate(net, **settings)
    asked = list(driver["started"])
    expected = evaluate(net, **unkept(settings))
    assert kept.flags["autoattack"].tolist() == expected.flags["autoattack"].tolist()
    assert asked == driver["started"][len(asked) :]


def test_pgd_continues_from_its_settled_tries(net, settings, monkeypatch, tmp_path):
    settings |= {"attacks": "pgd4x3", "step_size": 0.01, "batch_size": 5}
    expected = evaluate(net, **unkept(settings))
    tried, original = [], measure_module.start_images

    def noting(index, *rest, restart, **more):
        tried.extend((sample, restart) for sample in index.tolist())
        return original(index, *rest, restart=restart, **more)

    monkeypatch.setattr(measure_module, "start_images", noting)
    with pytest.raises(KeyboardInterrupt):
        evaluate(net, **settings, progress=stop_after(3))
    before = set(tried)
    assert before
    tried.clear()
    result = evaluate(net, **settings)
    assert tried
    assert not before & set(tried)
    assert result.flags["pgd4x3"].tolist() == expected.flags["pgd4x3"].tolist()
    assert partial_files(tmp_path) == []
