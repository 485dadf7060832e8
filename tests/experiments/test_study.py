"""The study's first stage on made-up runs: blind until all are there, then the deviation, then D."""

import hashlib
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from metrics_rows import metrics_row
from pixelpart.cli.main import main
from pixelpart.evaluation.attack_spec import parse_attack
from pixelpart.evaluation.statistics import wilson
from pixelpart.evaluation.store import add_entry, fingerprint, with_checksum
from pixelpart.experiments.common import distances
from pixelpart.experiments.common.experiment import Runner, load
from pixelpart.experiments.study import EXTENDED, PART

N = 2000
NATURAL = {"U6": 1260, "U7": 1230, "U7.5": 1210, "U8": 1190, "U9": 1150, PART: 1215}  # correct images
ROBUST = {"U6": 800, "U7": 850, "U7.5": 871, "U8": 890, "U9": 921, PART: 880}


def add_run(root, label, seed, shift=0, autoattack=None):
    """A finished run of this arm: the first images are classified correctly, `shift` more under attack.

    With `autoattack`, that attack was run too, and leaves this many images fewer than apgd.
    """
    own = load("study")
    config = own.arms(own.scales["paper"])[label].model_copy(update={"seed": seed})
    folder = root / f"{label.replace('|', '-')} {seed}"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(config.to_json())
    rows = (metrics_row(epoch, budget_mean=config.eps, seconds=1.0) for epoch in range(1, config.epochs + 1))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    correct_under = {"natural": NATURAL[label], "apgd": ROBUST[label] + shift}
    if autoattack is not None:
        correct_under["autoattack"] = ROBUST[label] + shift - autoattack
    for attack, correct in correct_under.items():
        spec, flags = parse_attack(attack), np.arange(N) < correct
        key = hashlib.sha256(f"{folder} {attack}".encode()).hexdigest()[:32]
        entry = {
            "attack": attack, "subject": "run", "checkpoint": "last", "dataset": "cifar10", "split": "test",
            "accuracy": correct / N, "interval": list(wilson(correct, N)), "correct": correct, "n": N, "eps": spec.eps,
            "settings": {}, "seed": spec.seed, "precision": "fp32", "warnings": [], "seconds": 1.0,
            "fingerprint": fingerprint(flags), "key": key, "probe": [],
        }  # fmt: skip
        add_entry(folder, with_checksum(entry), flags)


@pytest.fixture
def runs(tmp_path):
    def make(shift=0):
        """All 36 runs; seeds differ by up to `shift` images."""
        for label in NATURAL:
            for seed in range(100, 108 if label in EXTENDED else 104):
                add_run(tmp_path / "runs", label, seed, shift=shift * (-1) ** seed)
        return tmp_path / "runs"

    return make


@pytest.fixture
def study(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(distances, "STUDIES", 20)

    def run(*args):
        out = tmp_path / "out"
        code = main(["experiment", "study", "--scale", "paper", "--out", str(out), "--quiet", *map(str, args)])
        return code, capsys.readouterr().out, out / "study"

    return run


def test_nothing_is_shown_before_all_runs_are_there(runs, study):
    root = runs()
    (root / "8-7 CAM 105" / "config.json").unlink()
    code, text, folder = study("--from", root)
    assert code == 0
    assert text.startswith("35 of 36 runs are there: U6 4 of 4, ")
    assert "8|7 CAM 7 of 8" in text
    assert "%" not in text
    assert not folder.exists()


def test_a_run_of_another_seed_does_not_take_the_place_of_a_missing_one(runs, study):
    root = runs()
    for label, missing, there in ((PART, 107, 108), ("U6", 103, 104)):
        (root / f"{label.replace('|', '-')} {missing}" / "config.json").unlink()
        add_run(root, label, there)
    _, text, folder = study("--from", root)
    assert text.startswith("34 of 36 runs are there: U6 3 of 4, ")
    assert not folder.exists()


def test_a_run_that_is_not_evaluated_is_named_and_nothing_is_shown(runs, study):
    root = runs()
    add_run(root, PART, 108)
    (root / "U7 102" / "eval.json").unlink()
    _, text, folder = study("--from", root)
    assert "U7 102" in text
    assert not folder.exists()


def test_a_large_deviation_asks_for_four_more_seeds_and_then_d_is_computed(runs, study):
    root = runs(shift=8)  # robust accuracy deviates by 0.4 points
    add_run(root, "U8", 108)
    _, text, folder = study("--from", root)
    assert "need seeds 108 to 111: --seeds 12" in text
    assert study("--from", root, "--seeds", "12")[1].startswith("37 of 48 runs are there")
    assert not folder.exists()
    for label in NATURAL:
        for seed in range(109 if label == "U8" else 108, 114):
            add_run(root, label, seed)
    _, text, folder = study("--from", root, "--seeds", "13")
    assert "| U8 | seeds 100 to 111 | 2000 |" in text
    assert "| U6 | seeds 100 to 103 | 2000 |" in text
    assert "Distance from the uniform curve" in text


def test_d_is_the_distance_from_a_weighted_quadratic_and_further_seeds_are_not_used(runs, study):
    root = runs()
    add_run(root, PART, 108, shift=100)
    _, text, folder = study("--from", root)
    uniform = [label for label in NATURAL if label != PART]
    seeds = [8 if label in EXTENDED else 4 for label in uniform]
    curve = np.polyfit([NATURAL[u] / N for u in uniform], [ROBUST[u] / N for u in uniform], 2, w=np.sqrt(seeds))
    expected = ROBUST[PART] / N - np.polyval(curve, NATURAL[PART] / N)
    found = json.loads((folder / "result.json").read_text())["analysis"]["distances"][PART]
    assert found["estimate"] == pytest.approx(expected, abs=1e-9)
    assert found["verdict"] == "above the curve"
    low, high = found["interval 97.5 %"]
    assert 0 < low < found["interval"][0] < found["interval 90 %"][0] < found["estimate"] < high
    assert "| 8\\|7 CAM | seeds 100 to 107 | 2000 |" in text
    assert (folder / "figure.png").read_bytes().startswith(b"\x89PNG")


def test_the_table_has_the_intervals_that_decide_and_judges_the_checks(runs, study, monkeypatch):
    root = runs()
    for label, fewer in (("U8", 2), ("U7.5", 2), (PART, 3)):  # of 2,000 images: 0.10, 0.10 and 0.15 points
        shutil.rmtree(root / f"{label.replace('|', '-')} 104")
        add_run(root, label, 104, autoattack=fewer)
    _, text, folder = study("--from", root)
    found = json.loads((folder / "result.json").read_text())["analysis"]
    d = found["distances"][PART]
    for name in ("interval 90 %", "interval 97.5 %"):
        assert "| [{:+.2f}, {:+.2f}] |".format(*(100 * end for end in d[name])) in text
    for check in (found["negative control"]["U7.5"], found["secant"][PART]):
        numbers = (100 * number for number in (check["estimate"], *check["interval"]))
        assert "| {:+z.2f} [{:+z.2f}, {:+z.2f}] |".format(*numbers) in text
    assert found["apgd minus AutoAttack"] == pytest.approx({"U8": 0.1, "U7.5": 0.1, PART: 0.15})
    assert "| largest difference between arms |  | 0.050, not less than 0.05 |" in text
    shown = re.search(r"([\d.]+)% of 20 studies .*; (inside|outside) 3.5 to 6.5 %", text)
    assert shown[2] == ("inside" if 3.5 <= float(shown[1]) <= 6.5 else "outside")
    monkeypatch.setattr(distances, "ALARMS", (1.1, 1.2))
    assert "; outside 3.5 to 6.5 %" in study("--from", root)[1]


def test_fewer_seeds_are_not_a_way_to_look_early(runs, study, capsys):
    assert study("--from", runs(), "--seeds", "2")[0] == 2


@pytest.mark.parametrize(("scale", "seeds"), [("paper", 4), ("demo", 8)])
def test_arms_of_the_curve_have_fewer_seeds_at_paper_scale_only(scale, seeds):
    own = load("study")
    runner = Runner("study", own, own.scales[scale], Path(), range(8))
    assert (len(runner.planned("U6")), len(runner.planned("U8"))) == (seeds, 8)
