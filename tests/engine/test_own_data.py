"""Training on a user's images and code, the eps ramp, and runs that collapse."""

import dataclasses
import json
import shutil
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from pixelpart import data, draws, recipes
from pixelpart.cli.main import main
from pixelpart.config import Config, config_from
from pixelpart.data import augment
from pixelpart.engine import metrics
from pixelpart.engine.messages import collapse_line, settings_line
from pixelpart.engine.metrics import collapsed_class
from pixelpart.engine.plan import build_plan
from pixelpart.engine.state import TrainingState
from pixelpart.engine.step import StepBatch, train_step
from pixelpart.engine.train import train
from pixelpart.engine.training_data import load, with_data_fields
from pixelpart.errors import UserError
from pixelpart.runs import Run
from pixelpart.runtime.progress import Screen
from pixelpart.runtime.world import World

SMALL = ["--epochs", "1", "--holdout", "4", "--probe", "4", "--batch-size", "16", "--attack.steps", "1", "--quiet"]


@pytest.fixture(autouse=True)
def _place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PIXELPART_DATA", str(tmp_path / "root"))
    monkeypatch.setattr(data, "USER_SETS", {})
    yield
    sys.modules.pop("own_set", None)


@pytest.fixture
def photos(tmp_path):
    rng = np.random.default_rng(0)
    for name, level in (("dark", 0), ("light", 200), ("middle", 100)):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(10, 20):  # of which 14 and 18 are test images
            pixels = (level + rng.integers(0, 50, (24, 20, 3))).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{i}.png")
    return tmp_path / "photos"


TRAIN = ["train", "shapes-at", "--data", "folder:photos", "--size", "16", "--out", "run", *SMALL]
EVALUATE = ["evaluate", "run", "--attacks", "natural", "--quiet"]


def test_a_folder_is_trained_on_and_its_run_opens_without_it(photos, capsys):
    (photos / "dark" / "bad.jpg").write_bytes(b"x")
    assert main(TRAIN) == 2
    assert "photos/dark/bad.jpg is not an image" in capsys.readouterr().err
    assert main([*TRAIN, "--skip-bad"]) == 0
    config = Run("run").config
    assert (config.dataset, config.size, config.skip_bad, config.num_classes) == ("folder:photos", 16, True, 3)
    assert config.classes == ("dark", "light", "middle")
    assert "photos/dark/bad.jpg" in (photos.parent / "run" / "log.txt").read_text()
    assert main(EVALUATE) == 0
    assert main([*TRAIN, "--skip-bad"]) == 0  # the run is finished
    shutil.rmtree(photos)
    assert Run("run").load("last")[0](torch.rand(2, 3, 16, 16)).shape == (2, 3)


def test_a_folder_recipe_writes_what_it_chose_and_resumes(photos, capsys):
    """24 training images: too few to hold some out; a flag decides what follows from it."""
    half = Image.new("RGBA", (20, 24), (0, 0, 0, 0))
    half.save(photos / "light" / "10.png")
    command = ["train", "folder-part", "--data", "folder:photos", "--size", "16", "--epochs", "4", "--eps", "16/255"]
    command += ["--attack.steps", "1", "--quiet", "--out"]
    assert main([*command, "run"]) == 0
    config = Run("run").config
    assert (config.holdout, config.batch_size, config.epochs, config.burn_in.epochs) == (0, 16, 4, 1)
    assert (config.eps_low, config.auto) == (14 / 255, ())
    log = (photos.parent / "run" / "log.txt").read_text()
    assert "24 images to train on, 0 held out, 3 classes, colour: --model tiny-cnn" in log
    assert log.count("transparent pictures (1) are put on white") == 1
    assert "6 other images of the folder are kept for testing" in log
    assert "exceeds" not in log
    assert main([*command, "run"]) == 0  # finished
    assert main(["train", "run/config.json", "--quiet", "--out", "again"]) == 0
    assert Run("again").config == config
    assert main([*command, "big", "--batch-size", "5000"]) == 0
    assert "--batch-size 5000 exceeds the 24 training images" in (photos.parent / "big" / "log.txt").read_text()
    assert main([*command, "run", "--background", "sky"]) == 2
    assert "background: 'sky' is not a colour such as black" in capsys.readouterr().err


@pytest.mark.parametrize(("method", "end"), [("at", "--eps-ramp 32"), ("part-t", "--objective.beta 3")])
def test_the_settings_name_beta_where_the_loss_has_one_and_a_start_without_an_attack(method, end):
    assert settings_line(recipes.fill_in(recipes.folder(method), 3000), 2400).endswith(f"{end}; burn-in has no attack")
    assert "no attack" not in settings_line(recipes.fill_in(recipes.folder(method), 10_000), 9_000)
    without = recipes.fill_in(recipes.folder(method, burn_in={"epochs": 0}), 3000)
    assert "no attack" not in settings_line(without, 2400)


def test_grey_rectangular_pictures_are_trained_on_evaluated_and_explained(photos):
    for path in photos.rglob("*.png"):
        Image.open(path).convert("L").save(path)
    command = ["train", "folder-part", "--data", "folder:photos", "--size", "24x20", "--epochs", "2", "--quiet"]
    assert main([*command, "--normalize", "--attack.steps", "1", "--out", "run"]) == 0
    run = Run("run")
    assert (run.config.size, run.config.channels) == ((24, 20), 1)
    assert next(run.model.parameters()).shape[1] == 1
    assert main(EVALUATE) == 0
    assert main(["explain", "run"]) == 0
    arrays = load_file("run/explain.safetensors")
    assert arrays["picture"].shape[1:] == arrays["budget"].shape[1:] == (1, 24, 20)
    assert main(["report", "run", "--out", "report.html"]) == 0
    shutil.rmtree(photos)
    assert Run("run").load("last")[0](torch.rand(2, 1, 24, 20)).shape == (2, 3)


def test_a_data_set_with_other_classes_than_the_model_is_refused(photos, capsys):
    assert main(TRAIN) == 0
    assert main([*EVALUATE, "--data", "shapes"]) == 2
    assert capsys.readouterr().err == "pixelpart: label 0 of shapes is 'disc', the model's is 'dark'\n"


def test_a_run_is_not_resumed_or_evaluated_on_other_images(photos, capsys):
    """Labels are positions in the list of classes, and stored maps belong to image numbers."""
    command = [*TRAIN, "--mask.rule", "mean", "--mask.every", "1"]
    assert main(command) == 0
    before = {path: path.read_bytes() for path in (photos.parent / "run").rglob("*") if path.is_file()}
    shutil.copytree(photos, photos.with_name("others"))
    evaluate = [*EVALUATE, "--data", "folder:others"]  # of the run's size
    assert main(evaluate) == 0
    (photos.with_name("others") / "dark").rename(photos.with_name("others") / "night")
    assert main(evaluate) == 2
    assert "has classes light, middle, night; the model was trained on dark, light, m" in capsys.readouterr().err
    shutil.copy(photos / "dark" / "10.png", photos / "dark" / "new0.png")
    assert main(command) == 2
    assert "trained on 20 images, but the data set now has 21" in capsys.readouterr().err
    (photos / "dark").rename(photos / "night")
    assert main(command) == 2
    assert "classes: ['dark', 'light', 'middle'] != ['light', 'middle', 'night']" in capsys.readouterr().err
    unchanged = {path for path in before if path.name != "eval.json"}
    assert all(path.read_bytes() == before[path] for path in unchanged)


def test_a_run_of_the_old_spelling_is_opened_and_resumed(photos):
    """Old configs and checkpoints have folder:photos@16 as their data set."""
    assert main(TRAIN) == 0
    folder = photos.parent / "run"
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"dataset": "folder:photos@16"}))
    assert Run(folder).load("last")[1]["epoch"] == 1
    assert main(EVALUATE) == 0
    assert main(TRAIN) == 0


def test_a_user_set_sorted_by_class_is_probed_on_several_classes(monkeypatch):
    x, y = data.shapes.generate("test")
    order = y.argsort(stable=True)
    entry = dataclasses.replace(data.SETS["shapes"], load=lambda split, *_: (x[order], y[order]))
    monkeypatch.setitem(data.USER_SETS, "mine:sorted", entry)

    def probe_labels(config):
        settings = {"device": torch.device("cpu"), "world": World(), "screen": Screen(quiet=True)}
        return load(config, None, **settings)[1]["test"][1]

    config = Config(dataset="mine:sorted", size=32, num_classes=10, holdout=0, probe=64)
    assert len(probe_labels(config).unique()) == 10
    assert torch.equal(probe_labels(Config(holdout=0, probe=64)), y[:64])


def test_user_code_named_in_a_run_folder_is_not_run(tmp_path, capsys, monkeypatch):
    (tmp_path / "own_set.py").write_text(
        "import numpy as np\ndef load(split):\n    return np.zeros((32, 3, 16, 16), np.uint8), np.arange(32) % 2\n"
    )
    assert main(["train", "shapes-at", "--data", "own_set:load", "--out", "run", *SMALL]) == 0
    monkeypatch.setattr(data, "USER_SETS", {})
    for refused in (EVALUATE, ["train", "run/config.json", "--out", "again"]):
        assert main(refused) == 2
        assert "is user code and is never loaded from a config; pass --data own_set:load" in capsys.readouterr().err
    assert main([*EVALUATE, "--data", "own_set:load"]) == 0


@pytest.mark.parametrize(("batch_size", "code"), [("19", 2), ("20", 0)])
def test_a_last_batch_of_one_image_is_an_error_if_the_model_cannot_train_on_it(photos, capsys, batch_size, code):
    (photos.parent / "own_set.py").write_text(
        "from pixelpart.models import wrap\nfrom torch import nn\n"
        "def net(classes):\n"
        "    head = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.5), nn.BatchNorm1d(4), nn.Linear(4, classes)\n"
        "    return wrap(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Sequential(*head)), features='0', head='1')\n"
    )
    before = torch.get_rng_state()
    assert main([*TRAIN, "--model", "own_set:net", "--batch-size", batch_size]) == code
    if code:
        assert "batch_size 19 leaves a last batch of one of 20 images" in capsys.readouterr().err
        assert not (photos.parent / "run").exists()
        assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dataset": "folder:photos", "size": 16, "num_classes": 4}, "has num_classes 3, but the config says 4"),
        ({"num_classes": 4}, "num_classes and classes are for data sets of your own"),
        ({"size": 64}, "--size is for folder:PATH, not for 'shapes'"),
        ({"skip_bad": True}, "--skip-bad is for folder:PATH and tinyimagenet, not for 'shapes'"),
        ({"dataset": "folder:photos"}, "pass --size"),
        ({"background": "black"}, "--background is for folder:PATH, not for 'shapes'"),
        (
            {"auto": ["epochs"]},
            "pass --data folder:PATH or --data module:function, not shapes",
        ),
        ({"dataset": "folder:", "auto": ["epochs"]}, "no folder is given; pass --data folder:PATH"),
    ],
)
def test_a_config_must_fit_its_data_set(photos, settings, message):
    with pytest.raises(UserError, match=message):
        with_data_fields(Config(**settings))


# -- the ramp


@pytest.mark.parametrize("rule", ["none", "mean"])
def test_the_first_epochs_of_a_ramp_have_smaller_budgets(tmp_path, monkeypatch, rule):
    some = tuple(tensor[:64] for tensor in data.shapes.generate("train"))
    monkeypatch.setattr(data, "load", lambda name, **_: some)
    small = {"model": "tiny-cnn", "epochs": 3, "eps_ramp": 2, "holdout": 16, "probe": 16, "attack": {"steps": 1}}
    config = config_from(small | {"mask": {"rule": rule}}, source="test")
    run = train(config, tmp_path / "run", screen=Screen(quiet=True))
    for row, share in zip(run.metrics, (0.25, 0.75, 1), strict=True):
        high = row["high_fraction"]
        assert row["budget_mean"] * 255 == pytest.approx(share * (7 + high))
        assert high == 1 if rule == "none" else 0 < high < 1


def test_in_a_ramp_the_attack_stays_within_each_images_share():
    plan = build_plan(Config(model="tiny-cnn", mask={"rule": "mean"}, attack={"steps": 2, "step_size": 8 / 255}))
    learner, seen = TrainingState(plan.model, plan.config, torch.device("cpu")), {}
    x = torch.full((3, 3, 32, 32), 0.5)
    share = torch.tensor([0.0, 0.25, 1.0])[:, None, None, None]
    noise, moves = torch.ones_like(x), augment.draw("none", 3, generator=draws.generator(0, "test"))

    def attack(*args, **rest):
        seen["moved"] = (plan.main.attack(*args, **rest) - x).abs().amax((1, 2, 3))
        return plan.main.attack(*args, **rest)

    phase = dataclasses.replace(plan.main, attack=attack)
    train_step(learner, phase, StepBatch(x, torch.arange(3), moves, noise, budget_scale=share))
    assert (seen["moved"] * 255).tolist() == pytest.approx([0, 2, 8], abs=1e-4)


# -- collapse


@pytest.mark.parametrize("which", ["model", "average"])
def test_a_model_that_predicts_one_class_is_reported_as_collapsed_but_not_its_average(tmp_path, monkeypatch, which):
    """Every step adds to the bias of class 3, in the weights or in their average, which is what is measured.

    Training ends after one step: a model that is about to be used is reported however short its training was.
    """
    some = tuple(tensor[:128] for tensor in data.shapes.generate("train"))
    monkeypatch.setattr(data, "load", lambda name, **_: some)
    module = sys.modules["pixelpart.engine.train"]
    plain = module.train_step

    def step(state, phase, batch):
        plain(state, phase, batch)
        with torch.no_grad():
            (state.average.model if which == "average" else state.model).pooled_linear.bias[3] += 1e4

    monkeypatch.setattr(module, "train_step", step)
    small = {"model": "tiny-cnn", "epochs": 1, "holdout": 64, "probe": 32, "attack": {"steps": 1}, "ema": 0.999}
    run = train(config_from(small, source="test"), tmp_path / "run", screen=Screen(quiet=True))
    if which == "average":
        assert run.model(some[0][:32].float() / 255).argmax(1).unique().tolist() == [3]
    reported = "collapsed: all 64 held-out images are predicted as class 3; " in (run.dir / "log.txt").read_text()
    assert reported == (which == "model")


@pytest.mark.parametrize(
    ("predicted", "reported"),
    [
        ((3, 3, None, 1, None, None), {}),  # while eps grows, and in a single epoch
        ((3, 3, 3, 1, None, 2, None), {3: 3}),  # once, in the first epoch after that
        ((None, None, 2, 0, 1, 4), {4: 0, 6: 4}),  # once, and at the end
        ((None, None, None, None, None, 4), {6: 4}),
    ],
)
def test_collapse_is_reported_if_it_lasts_after_the_eps_ramp_and_at_the_end(tmp_path, monkeypatch, predicted, reported):
    some = tuple(tensor[:96] for tensor in data.shapes.generate("train"))
    monkeypatch.setattr(data, "load", lambda name, **_: some)
    classes = iter(predicted)
    monkeypatch.setattr(metrics, "COLLAPSE_STEPS", 1)
    monkeypatch.setattr(metrics, "collapsed_class", lambda *_, **__: next(classes))
    small = {"model": "tiny-cnn", "epochs": len(predicted), "holdout": 64, "probe": 32, "attack": {"steps": 1}}
    config = config_from(small | {"eps_ramp": 2}, source="test")
    run = train(config, tmp_path / "run", screen=Screen(quiet=True))
    found, epoch = {}, 0
    for line in (run.dir / "log.txt").read_text().splitlines():
        words = line.split()
        if words[1] == "epoch":
            epoch = int(words[2].split("/")[0])
        elif words[1] == "collapsed:":
            found[epoch] = int(line.split("class ")[1].split(";")[0])
    assert found == reported
    assert words[1] == "best:"  # the last line


@pytest.mark.parametrize(("classes", "name"), [(("cat", "dog"), "dog"), ((), "1")])
def test_the_class_of_a_collapse_is_named_where_classes_have_names(classes, name):
    line = collapse_line(Config(classes=classes), 1, "5 held-out")
    assert line.startswith(f"collapsed: all 5 held-out images are predicted as class {name}; ")


def test_collapse_is_one_prediction_for_images_of_several_classes():
    def found(answers, labels):
        logits = torch.eye(5)[answers].view(len(answers), 5, 1, 1)
        return collapsed_class(lambda x: x.flatten(1), logits, torch.tensor(labels), chunk=2)

    assert found([3, 3, 3], [0, 1, 3]) == 3
    assert found([3, 3, 1], [0, 1, 3]) is None
    assert found([3, 3, 3], [3, 3, 3]) is None
