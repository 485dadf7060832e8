"""An AutoAttack in which Square finds what gradients do not is in warning."""

import functools
import json

import numpy as np
import pytest
import torch

from pixelpart.evaluation import store
from pixelpart.evaluation.checks import sanity
from pixelpart.evaluation.checks.behaviours import EXPECTED, SUSPICIOUS
from pixelpart.evaluation.checks.obfuscation import check, stored_square_warnings
from pixelpart.evaluation.image_set import ImageSet
from pixelpart.evaluation.validate import check_model

pytestmark = pytest.mark.usefixtures("corner_set")


@pytest.mark.parametrize(
    ("left", "n", "broken"),
    [
        ({"apgd-ce": 500, "apgd-t": 450, "fab-t": 449, "square": 446}, 1000, 3),
        ({"apgd-ce": 500, "apgd-t": 450, "fab-t": 449, "square": 447}, 1000, 0),  # .2 %
        ({"apgd-ce": 500, "apgd-t": 450, "fab-t": 449, "square": 449}, 1000, 0),
        ({"apgd-ce": 500, "square": 300, "apgd-t": 299}, 1000, 0),  # others find as much after it
        ({"apgd-ce": 500, "square": 300, "apgd-t": 310}, 1000, 10),
        ({"square": 10}, 1000, 0),
        ({"apgd-ce": 500, "apgd-t": 450}, 1000, 0),
    ],
)
def test_square_must_not_break_what_gradients_left(left, n, broken):
    warnings = sanity.square_warnings(left, n)
    assert len(warnings) == (broken > 0)
    if broken:
        assert f"broke {broken} of {n} images that the white-box attacks did not break" in warnings[0]


def stored(folder, attack, right, *, probe=(1.0, 2.0), eps=8 / 255, warnings=(), pixels="same"):
    key = store.hash_json([attack, probe, eps, pixels])[:32]
    entry = {
        "attack": attack, "subject": key, "checkpoint": None, "dataset": "corners", "split": "test",
        "accuracy": int(right.sum()) / len(right), "correct": int(right.sum()), "n": len(right), "eps": eps,
        "settings": {}, "seed": 0, "precision": "fp32", "warnings": list(warnings), "pixels": pixels,
        "fingerprint": store.fingerprint(right), "key": key, "probe": list(probe),
    }  # fmt: skip
    store.add_entry(folder, entry, right)


def test_what_eval_json_tells_of_square_is_a_doubt(tmp_path):
    look = functools.partial(stored_square_warnings, tmp_path, [1.0, 2.0], 8 / 255)
    left, none = np.arange(80) < 60, np.zeros(80, bool)
    assert look() == []
    stored(tmp_path, "square", none)
    for part in ("apgd-ce", "apgd-t"):
        stored(tmp_path, part, left)
    assert look() == []  # without all three it is no AutoAttack
    stored(tmp_path, "fab-t", left, pixels="other images")
    stored(tmp_path, "fab-t", left, probe=(3.0, 4.0))  # another model
    stored(tmp_path, "fab-t", left, eps=4 / 255)
    assert look() == []
    stored(tmp_path, "fab-t", left & (np.arange(80) > 3))
    (warning,) = look()
    assert warning.startswith("Square, which uses no gradient, broke 56 of 80 images")
    stored(tmp_path, "autoattack", left, warnings=["a warning"], eps=4 / 255)
    assert look() == [warning]
    stored(tmp_path, "autoattack@8/255", left, warnings=["a warning"])
    assert sorted(look()) == sorted(["a warning", warning])
    (tmp_path / "eval.json").write_text(json.dumps({"schema_version": 1, "entries": [{"eps": 8 / 255}]}))
    assert look() == []


def test_doubts_about_kept_figures_are_in_the_report(plane, pair, tmp_path):
    settings = {"data": pair, "eps": 0.02, "step_size": 0.01, "out": tmp_path}
    assert check(plane, **settings).verdict == EXPECTED
    pictures = ImageSet(*pair, torch.device("cpu"))
    probe = store.signature(check_model(plane, pictures))
    stored(
        tmp_path, "autoattack", np.zeros(40, bool), probe=tuple(probe), eps=0.02, warnings=["a warning", "a warning"]
    )
    report = check(plane, **settings)
    assert (report.warnings, report.verdict) == (["a warning"], SUSPICIOUS)
