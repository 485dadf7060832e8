"""`read_picture` gives the pixels that the data set has of the same file."""

import numpy as np
import pytest
import torch
from PIL import Image

from pixelpart import data
from pixelpart.config import Config
from pixelpart.errors import UserError


@pytest.fixture
def photos(tmp_path, monkeypatch):
    """Pictures that are rotated, transparent, reduced while they are decoded, with a palette, grey or of 16 bits."""
    monkeypatch.setenv("PIXELPART_DATA", str(tmp_path / "root"))
    rng = np.random.default_rng(0)
    image = Image.fromarray(rng.integers(0, 256, (150, 90, 3), dtype=np.uint8))
    rotated = Image.Exif()
    rotated[0x0112] = 6
    faint = image.copy()
    faint.putalpha(100)
    for name in ("a", "b"):
        (folder := tmp_path / "photos" / "train" / name).mkdir(parents=True)
        (tmp_path / "photos" / "test" / name).mkdir(parents=True)
        image.save(tmp_path / "photos" / "test" / name / "0.png")
        image.save(folder / "rotated.jpg", exif=rotated)
        faint.save(folder / "faint.png")
        image.quantize(8).save(folder / "palette.gif")
        image.convert("L").save(folder / "grey.png")
        Image.fromarray(rng.integers(0, 65536, (40, 50)).astype(np.uint16)).save(folder / "deep.png")
    return tmp_path / "photos"


@pytest.mark.parametrize(
    "options",
    [
        {"size": 16, "channels": 3},
        {"size": (24, 40), "channels": 1, "background": "black"},
        {"size": 64, "background": "#102030"},  # channels 0: a run of colour pictures from before that field
    ],
)
def test_a_picture_is_read_as_in_the_data_set_of_the_run(photos, options):
    config = Config(dataset=f"folder:{photos}", classes=("a", "b"), num_classes=2, **options)
    images, _ = data.load(config.dataset, split="train", **config.data_options)
    files = sorted((photos / "train").rglob("*.*"))
    assert len(images) == len(files) == 10
    for image, file in zip(images, files, strict=True):
        assert torch.equal(data.read_picture(file, config), image)


def test_for_a_built_in_data_set_the_picture_has_its_shape(photos):
    assert data.read_picture(str(photos / "train/a/rotated.jpg"), Config(dataset="tinyimagenet")).shape == (3, 64, 64)


def test_a_file_that_cannot_be_read_is_an_error_that_names_it(photos):
    (photos / "bad.jpg").write_bytes(b"x")
    for name, reason in {"bad.jpg": "is not an image", "none.png": "cannot be decoded: No such file"}.items():
        with pytest.raises(UserError, match=rf"photos/{name} {reason}"):
            data.read_picture(photos / name, Config())
