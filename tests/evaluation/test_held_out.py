"""Evaluation on the training images that a run held out."""

import json

import numpy as np
import pytest
import torch

from checkpoints import facts_of
from pixelpart.cli.main import main
from pixelpart.comparison.compare import compare
from pixelpart.config import Config
from pixelpart.data import shapes
from pixelpart.engine import training_data
from pixelpart.errors import UserError
from pixelpart.evaluation.evaluate import evaluate
from pixelpart.evaluation.target import load_target
from pixelpart.report import write_report
from pixelpart.runs import save_checkpoint
from pixelpart.runtime.progress import Screen
from pixelpart.runtime.world import World
from run_results import write_run

HELD = {"split": "held-out", "attacks": "natural", "device": "cpu"}


def first_epoch(config):
    screen = Screen(quiet=True)
    loader, *_ = training_data.load(config, None, device=torch.device("cpu"), world=World(), screen=screen)
    return [loader.batch(0, step) for step in range(loader.steps)]


def trained_on(config):
    """The training images that the batches of an epoch hold, as bytes."""
    batches = [batch.images for batch in first_epoch(config)]
    return {image.mul(255).round().byte().numpy().tobytes() for image in torch.cat(batches)}


def held_out(run, **settings):
    """The held-out images of a run as bytes, in their order."""
    return [image.numpy().tobytes() for image in load_target(run, split="held-out", **settings).pictures.images]


def test_the_held_out_images_are_those_that_the_run_does_not_train_on(make_run):
    run = make_run(holdout=700, seed=3)
    images, labels = shapes.generate("train")
    everything = [image.numpy().tobytes() for image in images]
    seen = trained_on(run.config)
    expected = [number for number, image in enumerate(everything) if image not in seen]
    assert len(expected) == 700
    target = load_target(run, split="held-out")
    assert held_out(run) == [everything[number] for number in expected]
    assert target.pictures.labels.tolist() == labels[expected].tolist()
    assert held_out(run, images=5) == held_out(run)[:5]


def test_runs_share_their_held_out_images_if_they_share_holdout_seed(make_run):
    def images(**settings):
        return held_out(make_run(holdout=64, **settings))

    assert images(seed=1) != images(seed=2)
    assert images(seed=1, holdout_seed=7) == images(seed=2, holdout_seed=7)
    assert images(seed=1, holdout_seed=7) == images(seed=7) != images(seed=1, holdout_seed=8)
    assert images(seed=1, holdout_seed="same") == images(seed=1)


def test_holdout_seed_changes_the_held_out_images_and_nothing_else():
    assert trained_on(Config(holdout=64, seed=1, holdout_seed=7)) == trained_on(Config(holdout=64, seed=7))
    plain, other = (first_epoch(Config(holdout=0, seed=1, **more)) for more in ({}, {"holdout_seed": 7}))
    assert all(a.index.equal(b.index) for a, b in zip(plain, other, strict=True))


def test_a_held_out_result_is_the_models_accuracy_there_and_leaves_the_test_result(make_run):
    run = make_run(holdout=100)
    test = evaluate(run, attacks="natural", images=100, device="cpu")
    before = json.loads((run.dir / "eval.json").read_text())["entries"]
    result = evaluate(run, **HELD)
    x, y = load_target(run, split="held-out").pictures.first(100)
    assert result.flags["natural"].tolist() == (run.model.eval()(x).argmax(1) == y).tolist()
    assert result["natural"].entry["split"] == "held-out"
    assert "n = 100 held-out" in str(result)
    assert "held-out" not in str(test)
    after = json.loads((run.dir / "eval.json").read_text())["entries"]
    assert after == [*before, *result.entries]
    again = evaluate(run, **HELD)
    assert again["natural"].reused
    assert again.entries == result.entries
    tested = evaluate(run, attacks="natural", images=100, device="cpu")
    assert tested["natural"].reused
    assert tested.entries == before == test.entries


def test_a_checkpoint_file_knows_its_held_out_images(make_run, tmp_path):
    run = make_run(holdout=50)
    state = {f"model.{name}": value for name, value in run.model.state_dict().items()}
    save_checkpoint(file := tmp_path / "best.safetensors", state, facts_of(run.config))
    assert np.array_equal(evaluate(file, **HELD).flags["natural"], evaluate(run, **HELD).flags["natural"])


def test_the_command_line_evaluates_held_out_images(make_run, capsys):
    run = make_run(holdout=50)
    assert main(["evaluate", str(run.dir), "--split", "held-out", "--attacks", "natural", "--device", "cpu"]) == 0
    assert "n = 50 held-out" in capsys.readouterr().out
    assert main(["evaluate", str(run.dir), "--split", "train"]) == 2
    assert "unknown split 'train'; choose from held-out, test" in capsys.readouterr().err


def test_only_a_run_that_held_images_out_has_held_out_images(make_run, plane, pair):
    run = make_run(holdout=50)
    for subject, data, message in (
        (run, pair, "are of shapes; omit data"),
        (run, "svhn", "are of shapes; omit data"),
        (plane, pair, "a module held out no images: split 'held-out' needs a run"),
    ):
        with pytest.raises(UserError, match=message):
            evaluate(subject, data=data, **HELD)
    with pytest.raises(UserError, match="its config has holdout 0"):
        evaluate(make_run(holdout=0), **HELD)


# -- compare and report keep test and held-out results apart


@pytest.fixture
def groups(tmp_path):
    """Two methods of two seeds with both kinds of results; on held-out images the order is reversed."""
    random, found = np.random.default_rng(0), {}
    for name, test, held in (("at", 0.9, 0.3), ("part", 0.6, 0.8)):
        found[name] = [tmp_path / f"{name}-{seed}" for seed in range(2)]
        for seed, folder in enumerate(found[name]):
            config = {"seed": seed, "epochs": 80 if name == "at" else 81}
            for split, accuracy in (("held-out", held), ("test", test)):
                flags = {attack: random.random(300) < accuracy for attack in ("natural", "pgd20")}
                write_run(folder, flags, config=config, split=split, pixels=split, interval=[0.0, 1.0])
    return found


def test_compare_reads_test_results_unless_held_out_ones_are_requested(groups):
    test, held = compare(groups), compare(groups, split="held-out")
    assert [row.attack for row in test.rows] == [row.attack for row in held.rows] == ["natural", "pgd20"]
    assert test["pgd20"].difference.estimate > 0.2
    assert held["pgd20"].difference.estimate < -0.4
    assert {row["split"] for row in test.as_json()["rows"]} == {"test"}
    assert "best checkpoint, held-out images;" in str(held)
    assert "held-out" not in str(test)


def test_compare_does_not_fall_back_on_held_out_results(tmp_path, capsys):
    flags = {"natural": np.random.default_rng(0).random(50) < 0.5}
    a, b = (write_run(tmp_path / name, flags, split="held-out", pixels=name) for name in "ab")
    with pytest.raises(UserError, match=r"no results of the best checkpoint in .*a, .*b; see pixelpart evaluate"):
        compare({"a": [a], "b": [b]})
    assert main(["compare", str(a), "--with", str(b), "--split", "held-out"]) == 2
    assert f"natural was measured on other pictures in {b} (n = 50) than in {a} (n = 50)\n" in capsys.readouterr().err


def test_the_report_shows_test_and_held_out_results_in_rows_of_their_own(groups, tmp_path):
    page = write_report([folder for folders in groups.values() for folder in folders], tmp_path / "r.html").read_text()
    assert page.count("held-out training images") == 4
    assert "best checkpoint, held-out images of shapes" in page
    assert "best checkpoint, test images of shapes" in page
