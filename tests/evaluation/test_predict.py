"""Predictions are those of the run's model for the pictures as training reads them."""

import json
import os

import numpy as np
import pytest
import torch
from PIL import Image

import pixelpart as pp
from pixelpart.cli.main import main
from pixelpart.errors import UserError


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run on two classes of pictures, and five new pictures of other sizes, one of them in a folder below."""
    base = tmp_path_factory.mktemp("predict")
    rng = np.random.default_rng(0)
    for name, level in {"dark": 0, "light": 200}.items():
        (base / "photos" / name).mkdir(parents=True)
        for i in range(20):
            pixels = (level + rng.integers(0, 50, (8, 8, 3))).astype(np.uint8)
            Image.fromarray(pixels).save(base / "photos" / name / f"{i}.png")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(base)
        patch.setenv("PIXELPART_DATA", str(base / "root"))
        config = pp.recipes.folder_at(dataset="folder:photos", size=8, epochs=20, eps=0, ema=0)
        pp.train(config, "run", device="cpu")
    (base / "new" / "below").mkdir(parents=True)
    for number, size in enumerate([(8, 8), (30, 20), (9, 40), (200, 200)]):
        level = 220 if number % 2 else 20
        Image.new("RGB", size, (level, level, level)).save(base / "new" / f"{number}.png")
    Image.new("L", (16, 16), 230).save(base / "new" / "below" / "grey.jpg")
    return base


@pytest.fixture(autouse=True)
def _here(trained, monkeypatch):
    monkeypatch.chdir(trained)


def test_predictions_are_the_softmax_of_the_best_checkpoint_for_pictures_read_as_in_training(monkeypatch):
    monkeypatch.setattr("pixelpart.evaluation.predict.AT_ONCE", 2)
    run = pp.Run("run")
    found = pp.predict(run, "new", device="cpu")
    assert [str(one.path) for one in found] == [
        f"new/{name}" for name in ("0.png", "1.png", "2.png", "3.png", "below/grey.jpg")
    ]
    for one in found:
        x = pp.data.read_picture(one.path, run.config)[None] / 255
        with torch.no_grad():
            expected = run.model(x).softmax(1)[0]
        assert one.probabilities == pytest.approx(expected.tolist(), abs=1e-6)
        assert one.probability == max(one.probabilities)
        assert one.label == int(expected.argmax())
        assert one.name == ("dark", "light")[one.label]
    assert [one.name for one in found] == ["dark", "light", "dark", "light", "light"]


def test_the_command_prints_a_line_for_each_picture_in_the_order_given_or_json(capsys):
    assert main(["predict", "run", "new/3.png", "new/0.png", "--device", "cpu"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition("%")[0].rsplit(" ", 1)[0] for line in lines] == ["new/3.png: light", "new/0.png: dark"]
    assert main(["predict", "run", "new/3.png", "--json", "--checkpoint", "last", "--device", "cpu"]) == 0
    (entry,) = json.loads(capsys.readouterr().out)
    assert entry.keys() == {"path", "label", "name", "probability", "probabilities"}
    assert entry["label"] == 1
    assert sum(entry["probabilities"]) == pytest.approx(1)


def test_a_file_that_cannot_be_read_is_named_and_left_out_only_with_skip_bad(tmp_path, capsys):
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    (tmp_path / "b.png").write_bytes(b"no picture")
    assert main(["predict", "run", str(tmp_path), "--device", "cpu"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert f"pixelpart: {tmp_path / 'b.png'} is not an image in a known format" in err
    assert main(["predict", "run", str(tmp_path), "--skip-bad", "--device", "cpu"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith(f"{tmp_path / 'a.png'}: dark ")
    assert f"left out: {tmp_path / 'b.png'} is not an image" in err
    (tmp_path / "linked").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    assert main(["predict", "run", str(tmp_path), str(tmp_path / "pipe"), "--skip-bad", "--device", "cpu"]) == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 1
    assert "linked: a link to a folder" in err
    assert "pipe is not a regular file" in err
    assert main(["predict", "run", str(tmp_path / "b.png"), "--skip-bad", "--device", "cpu"]) == 2
    assert "none of 1 files can be read" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("run", "pictures", "said"),
    [
        ("run", "nowhere.png", r"nowhere\.png cannot be decoded: No such file or directory"),
        ("run", [], "no pictures given"),
        ("run", "empty", "no pictures in empty"),
        ("photos", "new/0.png", "photos is not a run folder"),
    ],
)
def test_mistakes_are_one_line(trained, run, pictures, said):
    (trained / "empty").mkdir(exist_ok=True)
    with pytest.raises(UserError, match=said):
        pp.predict(run, pictures, device="cpu")
