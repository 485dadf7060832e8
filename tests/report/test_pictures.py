import base64
import io

import numpy as np
from PIL import Image

from pixelpart.report.pictures import amplified, budget_range, budget_shade, coloured, png_uri, subjects
from pixelpart.report.reading import read_run, read_runs


def decode(uri: str) -> np.ndarray:
    head, data = uri.split(",")
    assert head == "data:image/png;base64"
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(data))))


def test_png_holds_the_pixels_at_their_own_size():
    pixels = np.array([[[0, 0.5, 1], [-1, 2, 0.2]]])
    assert decode(png_uri(pixels)).tolist() == [[[0, 128, 255], [0, 255, 51]]]


def test_change_is_centred_and_full_at_eps():
    x = np.full((1, 1, 3), 0.5)
    assert np.allclose(amplified(x, x + np.array([-0.1, 0, 0.1]), eps=0.1), [0, 0.5, 1])


def test_heat_is_dark_at_zero_and_light_at_one():
    dark, light = coloured(np.array([[0.0, 1.0]]), table="magma")[0]
    assert dark.sum() < 0.05
    assert light.sum() > 2.5


def test_budget_shades_run_from_the_lowest_to_the_highest_and_one_level_is_flat():
    budget = np.array([[[7.0, 8.0, 7.5]]]) / 255
    assert np.allclose(budget_shade(budget, 7 / 255, 8 / 255), [[0, 1, 0.5]])
    assert np.allclose(budget_shade(np.full((3, 1, 2), 0.03), 0.03, 0.03), 1)


def test_pictures_on_the_page_are_those_of_the_file(make_run):
    run = read_run(make_run("part"))
    subject = subjects([run])[1]
    cells = {cell.kind: cell for cell in subject.strips[0].cells}
    assert list(cells) == ["picture", "heat map", "budget", "attacked", "change"]
    for kind, name in (("picture", "picture"), ("attacked", "adversarial")):
        assert np.array_equal(decode(cells[kind].uri), np.rint(run.arrays[name][1].transpose(1, 2, 0) * 255))
    assert len(np.unique(decode(cells["budget"].uri).reshape(-1, 3), axis=0)) == 2
    assert cells["budget"].alt.endswith("7/255 to 8/255")
    assert np.allclose(budget_range([run]), (7 / 255, 8 / 255))


def test_an_image_that_another_run_did_not_explain_is_said(make_run, explained):
    other = explained()
    other["images"][0]["index"] = 99
    found = subjects(read_runs([make_run("a"), make_run("b", explain=other)]))
    assert [subject.index for subject in found] == [10, 11, 99]
    assert [bool(strip.missing) for strip in found[0].strips] == [False, True]
    assert [bool(strip.missing) for strip in found[2].strips] == [True, False]
