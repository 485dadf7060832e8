import base64
import io

import numpy as np
import pytest
from PIL import Image

from pixelpart.report.explanation import budget_range
from pixelpart.report.pictures import budget_shade, coloured, png_uri, shown_images, signed_change, write_picture
from pixelpart.report.run import read_runs
from pixelpart.runs import Run


def decode(uri):
    head, data = uri.split(",")
    assert head == "data:image/png;base64"
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(data))))


def test_png_has_the_pixels_at_their_own_size():
    pixels = np.array([[[0, 0.5, 1], [-1, 2, 0.2]]])
    assert decode(png_uri(pixels)).tolist() == [[[0, 128, 255], [0, 255, 51]]]


def test_values_become_shades():
    x = np.full((1, 1, 3), 0.5)
    for change, shade in ((-0.1, 0), (0, 0.5), (0.1, 1), (np.array([-0.1, 0.1, 0.1]), 2 / 3)):
        assert np.allclose(signed_change(x, x + change, eps=0.1), shade)
    dark, light = coloured(np.array([[0.0, 1.0]]), table="magma")[0]
    assert dark.sum() < 0.05
    assert light.sum() > 2.5
    assert np.allclose(budget_shade(np.array([[[7.0, 8.0, 7.5]]]) / 255, 7 / 255, 8 / 255), [[0, 1, 0.5]])
    assert np.allclose(budget_shade(np.full((3, 1, 2), 0.03), 0.03, 0.03), 1)


def test_pictures_are_those_of_the_file(make_run):
    (run,) = read_runs([make_run("part")])
    cells = shown_images([run])[1].strips[0].cells
    assert list(cells) == ["picture", "heat map", "budget", "attacked", "change"]
    for kind, name in (("picture", "picture"), ("attacked", "adversarial")):
        pixels = run.explanation.arrays[name][1].transpose(1, 2, 0)
        assert np.array_equal(decode(cells[kind].uri), np.rint(pixels * 255))
    assert len(np.unique(decode(cells["budget"].uri).reshape(-1, 3), axis=0)) == 2
    assert cells["budget"].alt.endswith("7/255 to 8/255")
    assert np.allclose(budget_range([run]), (7 / 255, 8 / 255))


@pytest.mark.parametrize("colours", [1, 3])
def test_explain_png_has_a_row_of_five_pictures_per_image(make_run, explained, arrays, colours):
    classes = ["$x", "y_^", "<b>"]  # no formulas
    run = Run(make_run(explain=explained(n=6, classes=classes), tensors=arrays(n=6, width=8, colours=colours)))
    with Image.open(write_picture(run, rows=2)) as two, Image.open(write_picture(run)) as four:
        width, height = four.size
        assert two.width == width
        assert two.height < 0.7 * height
        shades = {tuple(colour) for colour in np.asarray(four.convert("RGB")).reshape(-1, 3).tolist()}
    budgets = np.rint(255 * coloured(np.array([0.0, 1.0]), table="cividis")).astype(int).tolist()
    assert {tuple(colour) for colour in budgets} <= shades


def test_image_that_another_run_does_not_have_is_marked(make_run, explained):
    other = explained()
    other["images"][0]["index"] = 99
    images = shown_images(read_runs([make_run("a"), make_run("b", explain=other)]))
    assert [image.index for image in images] == [10, 11, 99]
    assert [[bool(strip.missing) for strip in image.strips] for image in images] == [
        [False, True], [False, False], [True, False],
    ]  # fmt: skip


@pytest.mark.parametrize(
    "fault",
    [
        "no explain.json",
        "no arrays",
        "not safetensors",
        "array missing",
        "too few",
        "kept epoch",
        "schema",
        "class name",
    ],
)
def test_pictures_that_cannot_be_shown_become_a_note(make_run, arrays, explained, fault):
    good = arrays()
    settings = {
        "no explain.json": {"explain": None},
        "no arrays": {"tensors": None},
        "not safetensors": {},
        "array missing": {"tensors": {name: array for name, array in good.items() if name != "heat"}},
        "too few": {"tensors": good | {"heat": good["heat"][:1]}},
        "kept epoch": {"explain": explained(epochs=[2])},
        "schema": {"explain": explained(schema_version=9)},
        "class name": {"explain": explained(classes=["disc"])},
    }[fault]
    folder = make_run(**settings)
    if fault == "not safetensors":
        (folder / "explain.safetensors").write_bytes(b"nothing")
    (run,) = read_runs([folder])
    assert run.explanation is None
    assert "no pictures" in run.notes[-1]
