"""The JSON that the script draws, decoded as the script does; what is drawn is tested in test_browser.py."""

import base64
import json
import zlib

import numpy as np
import pytest

from pixelpart.evaluation.store import fingerprint
from pixelpart.report.explorer import CHANGE_LEVELS, TOP_CLASSES, UNKNOWN, explorer_data, top_classes, unique_names
from pixelpart.report.run import read_runs


def data_of(*folders):
    return explorer_data(read_runs(folders))


def inflate(text, *shape):
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), np.uint8).reshape(-1, *shape)


def integrate(differences):
    return differences.cumsum(-1).cumsum(-2).astype(np.uint8)


def state_arrays(state, n, channels, height, width):
    """Heat in [0,1], budget in [0,1] of the page's range, change in units of eps."""
    planes = inflate(state["pixels"], height, width)
    heat, budget = integrate(planes[:n]), integrate(planes[n : 2 * n])
    change = planes[2 * n :].reshape(n, channels, height, width).astype(float) / CHANGE_LEVELS - 1
    return heat / 255, budget / 255, change


def close(found, true, unit):
    return np.abs(found - true).max() <= unit / 2 + 1e-6


@pytest.mark.parametrize(("channels", "height", "width"), [(3, 4, 4), (1, 5, 3), (3, 64, 64)])
def test_pixels_come_back_within_half_a_level(make_run, explained, arrays, channels, height, width):
    tensors = arrays(height=height, width=width, colours=channels, epochs=[2])
    tensors["object"] = (tensors["heat"] > 0.7).astype(np.uint8)
    data = data_of(make_run(explain=explained(epochs=[2]), tensors=tensors))
    (images,), (run,) = data["sets"], data["runs"]
    assert images["shape"] == (channels, height, width)
    pictures = integrate(inflate(images["pictures"], channels, height, width))
    assert np.array_equal(pictures, np.rint(255 * tensors["picture"]))
    assert np.array_equal(inflate(images["objects"], height, width), tensors["object"])
    assert [state["epoch"] for state in run["states"]] == [3, 2]
    for state, prefix in zip(run["states"], ("", "epoch-2."), strict=True):
        heat, budget, change = state_arrays(state, 2, channels, height, width)
        low, high = data["budget"]
        assert close(heat, tensors[f"{prefix}heat"], 1 / 255)
        assert close(low + budget * (high - low), tensors[f"{prefix}budget"].mean(1), (high - low) / 255)
        assert close(change / 255 * 8, tensors[f"{prefix}adversarial"] - tensors["picture"], 8 / 255 / CHANGE_LEVELS)


def test_the_most_probable_classes_before_and_after_come_with_the_true_one():
    before, after = np.zeros((2, 9)), np.zeros((2, 9))
    before[0, [3, 1]], after[0, [4, 3]] = (0.7, 0.3), (0.6, 0.4)
    before[1, :8], after[1, 0] = 0.125, 1.0
    found = top_classes(np.stack([before, after], 1), [3, 8])
    assert found.shape == (2, TOP_CLASSES, 3)
    assert found[0, :3].tolist() == [[3, 7000, 4000], [4, 0, 6000], [1, 3000, 0]]
    assert found[1, :, 0].tolist() == [0, 1, 2, 3, 4, 8]  # the label is in the last place, although least probable


def test_a_file_of_the_older_form_has_predictions_only(make_run):
    (run,) = data_of(make_run())["runs"]
    (state,) = run["states"]
    top = np.frombuffer(base64.b64decode(state["top"]), "<u2").reshape(2, TOP_CLASSES, 3)
    known = [one.tolist() for one in top[0] if (one[1:] != UNKNOWN).any()]
    assert known == [[0, 9100, UNKNOWN], [1, UNKNOWN, 6200]]
    assert data_of(make_run("other"))["sets"][0]["objects"] is None


def test_runs_share_images_only_if_index_pixels_shape_and_classes_agree(make_run, explained, arrays):
    same, moved, grey = arrays(), arrays(), arrays(colours=1)
    moved["picture"][0] = 1 - moved["picture"][0]  # another picture under the same number
    runs = [
        make_run("a", tensors=same),
        make_run("b", tensors=arrays()),
        make_run("moved", tensors=moved),
        make_run("grey", tensors=grey),
        make_run("renamed", explain=explained(classes=["x", "y", "z"])),
        make_run("bare", explain=None),
    ]
    data = data_of(*runs)
    assert [images["ids"] for images in data["sets"]] == [["10", "11", "10.2"], ["10.3", "11.2"], ["10.4", "11.3"]]
    assert [run["set"] for run in data["runs"]] == [0, 0, 0, 1, 2, None]
    assert [run.get("rows") for run in data["runs"]] == [[0, 1, -1], [0, 1, -1], [-1, 1, 0], [0, 1], [0, 1], None]
    assert unique_names(["1", "2", "1", "1"]) == ["1", "2", "1.2", "1.3"]


def test_flags_are_those_of_the_explained_checkpoint_and_the_most_images(make_run, entry):
    def kept(attack, flags, digit, **changes):
        n, correct = len(flags), sum(flags)
        about = {"correct": correct, "accuracy": correct / n, "key": digit * 32} | changes
        return entry(attack, n=n, fingerprint=fingerprint(np.array(flags)), **about), np.array(flags), digit * 32

    few, many = [True] * 11, [False] * 11 + [True]
    results = [
        kept("autoattack", many, "a"),
        kept("pgd20", few, "b"),
        kept("pgd20", many, "c"),
        kept("pgd20", few, "d", eps=4 / 255),
        kept("pgd100", few, "e", checkpoint="last"),
        kept("mma20", few, "f", dataset="other"),
        kept("natural", many, "0"),
    ]
    folder = make_run(entries=[one for one, _, _ in results])
    (folder / "eval").mkdir()
    for _, flags, key in results:
        np.save(folder / "eval" / f"{key}.npy", flags)
    flags = {one["name"]: one["values"] for one in data_of(folder)["runs"][0]["flags"]}
    assert flags == {"autoattack": "01", "pgd20": "01", "pgd20 at 4/255": "1-"}


def test_one_byte_per_value_and_its_size(make_run, explained, arrays):
    """500 images of 32 x 32 stay near one megabyte per checkpoint even if heat and change are pure noise."""
    n = 500
    tensors = arrays(n=n, height=32, width=32)
    (run,) = data_of(make_run(explain=explained(n=n), tensors=tensors))["runs"]
    assert len(json.dumps(run)) < 1.6e6
