"""New pictures as test images of a run: their labels are the run's, and it is said how many are used."""

import json
import shutil

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load_file

from pixelpart import data
from pixelpart.cli.main import main
from pixelpart.errors import UserError
from pixelpart.evaluation.explain import explain
from pixelpart.evaluation.target import load_target
from pixelpart.report import write_report
from pixelpart.runs import Run

LEVELS = {"dark": 0, "light": 200, "middle": 100}  # pixels of a class are this and up to 50 more
TRAIN = ["train", "shapes-at", "--data", "folder:photos", "--size", "8", "--out", "run", "--epochs", "1", "--quiet"]
TRAIN += ["--holdout", "4", "--probe", "4", "--batch-size", "16", "--attack.steps", "1", "--device", "cpu"]
TRAIN += ["--background", "#0a141e"]  # 10, 20, 30
EVALUATE = ["evaluate", "run", "--attacks", "natural", "--device", "cpu"]


def write_pictures(folder, names, n, *, seed=0):
    rng = np.random.default_rng(seed)
    for name in names:
        (folder / name).mkdir(parents=True)
        for i in range(n):
            pixels = (LEVELS[name] + rng.integers(0, 50, (8, 8, 3))).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{i}.png")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    place = tmp_path_factory.mktemp("new-pictures")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.setenv("PIXELPART_DATA", str(place / "root"))
        write_pictures(place / "photos", LEVELS, 10)
        assert main(TRAIN) == 0
    return place


@pytest.fixture(autouse=True)
def here(trained, tmp_path, monkeypatch):
    """A copy of the run and its pictures, as the current folder."""
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PIXELPART_DATA", str(tmp_path / "root"))
    return tmp_path


def labels_match(target):
    """Whether every image has the run's label of the class that its pixels show."""
    names = ["dark", "light", "middle"]
    return [names[label] for label in target.pictures.labels] == [
        next(name for name, level in LEVELS.items() if level <= image.float().mean() < level + 50)
        for image in target.pictures.images
    ]


def test_a_picture_that_is_explained_is_found_again_by_its_file(here):
    (here / "photos" / "dark" / "0.png").write_text("not a picture")
    written = explain("run", n=6, data="folder:photos", skip_bad=True, steps=1, device="cpu")
    pictures = load_file(here / "run" / "explain.safetensors")["picture"]
    images = json.loads(written.read_text())["images"]
    assert len({image["file"] for image in images}) == 6
    for image, picture in zip(images, pictures, strict=True):
        with Image.open(here / "photos" / image["file"]) as opened:
            assert np.array_equal(np.asarray(opened), np.rint(255 * picture.transpose(1, 2, 0)))
    write_report([here / "run"], here / "report.html")
    assert f"({images[0]['file']})</caption>" in (here / "report.html").read_text()


def test_a_folder_with_only_a_test_folder_is_evaluated_but_not_trained_on(here, capsys):
    write_pictures(here / "new" / "test", LEVELS, 4, seed=1)
    assert main([*EVALUATE, "--data", "folder:new"]) == 0
    out, err = capsys.readouterr()
    assert "n = 12" in out
    assert err == ""
    assert main(["data", "verify", "folder:new", "--size", "8"]) == 0
    for recipe in ("shapes-at", "folder-at"):
        assert main(["train", recipe, "--data", "folder:new", "--size", "8", "--out", "other", "--quiet"]) == 2
        assert "new has test images only; training needs a folder 'train'" in capsys.readouterr().err
    assert not (here / "other").exists()


def test_without_a_test_folder_a_line_says_how_many_are_used_unless_the_run_was_trained_on_it(here, capsys):
    write_pictures(here / "new", LEVELS, 10, seed=1)
    assert main([*EVALUATE, "--data", "folder:new"]) == 0
    out, err = capsys.readouterr()
    assert "n = 12" in out  # of ten names 0.png to 9.png four are held out
    said = "12 of 30 pictures: the held-out part; if none was trained on, put them into new/test to use all\n"
    assert err == said
    for own in ([], ["--data", "folder:photos"], ["--data", f"folder:{here / 'photos'}"]):
        assert main([*EVALUATE, *own]) == 0
        assert capsys.readouterr().err == ""
    (here / "new").rename(here / "moved")
    (here / "new").mkdir()
    (here / "moved").rename(here / "new" / "test")
    assert main([*EVALUATE, "--data", "folder:new"]) == 0
    assert "n = 30" in capsys.readouterr().out


@pytest.mark.parametrize("names", [["light", "middle"], ["middle", "dark"], ["light"]])
@pytest.mark.parametrize("below", ["test", "."])
def test_some_of_the_classes_have_the_labels_of_the_run(here, names, below):
    write_pictures(here / "new" / below, names, 10, seed=1)
    target = load_target("run", data="folder:new", device="cpu")
    assert len(target.pictures) == len(names) * (10 if below == "test" else 4)
    assert labels_match(target)


def test_a_class_that_the_model_does_not_know_is_refused_by_name(here, capsys):
    write_pictures(here / "new" / "test", ["light", "dark"], 2)
    (here / "new/test/light").rename(here / "new/test/bright")
    for options in ([], ["--skip-bad"]):
        assert main([*EVALUATE, "--data", "folder:new", *options]) == 2
        said = "new has classes bright, dark; the model was trained on dark, light, middle"
        assert said in capsys.readouterr().err


def test_without_a_class_the_others_keep_their_test_images(here):
    """Else images that the run was trained on would be test images."""
    before = load_target("run", device="cpu").pictures
    shutil.rmtree(here / "photos" / "dark")
    after = load_target("run", device="cpu").pictures
    assert len(after) == 8
    assert {image.numpy().tobytes() for image in after.images} < {image.numpy().tobytes() for image in before.images}
    with pytest.raises(UserError, match="no image of class 'dark' can be used"):
        load_target("run", split="held-out", device="cpu")


def test_pictures_that_were_trained_on_are_never_test_pictures(here):
    """Also after some were deleted, others were added, and one got another class."""
    config = Run("run").config
    trained = {image.numpy().tobytes() for image in data.load(config.dataset, split="train", **config.data_options)[0]}
    for i in (3, 7):
        (here / f"photos/dark/{i}.png").unlink()
        (here / f"photos/light/{i}.png").rename(here / f"photos/dark/{i}.png")
    write_pictures(here / "more", ["middle"], 30, seed=5)
    for file in (here / "more/middle").iterdir():
        file.rename(here / f"photos/middle/more-{file.name}")
    now = load_target("run", device="cpu").pictures
    assert len(now) > 12
    assert trained.isdisjoint(image.numpy().tobytes() for image in now.images)
    with pytest.raises(UserError, match="now has 41 training images, it had 18"):
        load_target("run", split="held-out", device="cpu")


def test_results_of_other_labels_are_not_reused(here):
    """The same pixels in the same order, once with the names of two classes exchanged."""
    write_pictures(here / "new" / "test", ["light", "middle"], 4)
    first = load_target("run", data="folder:new", device="cpu").pictures
    assert main([*EVALUATE, "--data", "folder:new"]) == 0
    (here / "new/test/light").rename(here / "new/test/dark")
    second = load_target("run", data="folder:new", device="cpu").pictures
    assert {image.numpy().tobytes() for image in first.images} == {image.numpy().tobytes() for image in second.images}
    assert main([*EVALUATE, "--data", "folder:new"]) == 0
    (entry,) = json.loads((here / "run" / "eval.json").read_text())["entries"]  # the older answer is replaced
    with_model = Run("run").model(second.first(8)[0]).argmax(1)
    assert entry["correct"] == int((with_model == second.labels).sum())


def test_explain_names_the_classes_of_the_run(here):
    write_pictures(here / "new" / "test", ["light", "middle"], 2)
    assert main(["explain", "run", "--data", "folder:new", "--images", "4", "--device", "cpu"]) == 0
    record = json.loads((here / "run" / "explain.json").read_text())
    assert {record["classes"][image["label"]] for image in record["images"]} == {"light", "middle"}


def test_check_trains_no_surrogate_without_training_images_of_all_classes(here, capsys):
    write_pictures(here / "photos-of-two", ["light", "middle"], 10)
    write_pictures(here / "new" / "test", LEVELS, 4)
    for folder in ("photos-of-two", "new"):
        assert main(["check", "run", "--data", f"folder:{folder}", "--device", "cpu", "--quiet"]) == 0
        assert f"folder:{folder}@8+on-#0a141e has no training images of all classes" in capsys.readouterr().out


def test_new_pictures_get_the_background_of_training(here):
    for name in LEVELS:
        (here / "new" / "test" / name).mkdir(parents=True)
        Image.new("RGBA", (8, 8)).save(here / "new" / "test" / name / "clear.png")
    images = load_target("run", data="folder:new", device="cpu").pictures.images
    assert images.amax((0, 2, 3)).tolist() == images.amin((0, 2, 3)).tolist() == [10, 20, 30]


def test_another_size_than_the_runs_is_reported(here, capsys):
    assert main([*EVALUATE, "--data", "folder:photos", "--size", "8x12"]) == 0
    assert capsys.readouterr().err == "images are 8x12 pixels; run was trained on 8x8\n"
    assert main([*EVALUATE, "--data", "folder:photos", "--size", "8"]) == 0
    assert capsys.readouterr().err == ""
