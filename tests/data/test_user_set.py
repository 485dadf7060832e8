"""Data sets of user code: run when the caller names them, never because a file does."""

import sys
import textwrap

import pytest

from pixelpart import data
from pixelpart.errors import UserError

GOOD = """
    import numpy as np

    def pictures(split):
        n = {"train": 40, "test": 10}[split]
        print("making", split)
        return np.full((n, 3, 16, 16), n, np.uint8), np.arange(n) % 4

    def grey(split):
        return np.zeros((5, 16, 16), np.uint8), np.zeros(5, int)

    def mismatched(split):
        return np.zeros((5, 3, 16, 16), np.uint8), np.arange(4)

    def unseen(split):
        n = {"train": 2, "test": 3}[split]
        return np.zeros((n, 3, 16, 16), np.uint8), np.arange(n)

    def from_one(split):
        return np.zeros((6, 3, 16, 16), np.uint8), 1 + np.arange(6) % 3

    def fractions(split):
        return np.zeros((6, 3, 16, 16), np.uint8), np.arange(6) % 3 / 2

    def three(split):
        return np.zeros((6, 3, 16, 16), np.uint8), np.arange(6) % 3, ["names"]

    def broken(split):
        raise RuntimeError("no disk")

    number = 3
"""


@pytest.fixture(autouse=True)
def _module(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(data, "USER_SETS", {})
    (tmp_path / "own_data.py").write_text(textwrap.dedent(GOOD))
    yield
    sys.modules.pop("own_data", None)


def test_a_function_named_by_the_caller_is_a_data_set(capsys):
    assert data.use("own_data:pictures") == "own_data:pictures"
    images, labels = data.load("own_data:pictures", split="test")
    assert images.shape == (10, 3, 16, 16)
    assert labels.bincount().tolist() == [3, 3, 2, 2]
    entry = data.find("own_data:pictures")
    assert (entry.num_classes, entry.size, entry.counts) == (4, 16, {"train": 40, "test": 10})
    row = data.verify("own_data:pictures")
    assert (row.status, row.where, row.images) == ("verified", "user code", 50)
    assert capsys.readouterr().out == ""


def test_user_code_is_never_run_without_use():
    for function in (data.find, data.load, data.verify):
        with pytest.raises(UserError, match=r"is user code and is never loaded from a config; pass --data"):
            function("own_data:pictures")
    assert "own_data" not in sys.modules


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("own_data:grey", r"returns images uint8 \(5, 16, 16\); they must be uint8 \(n, 3 or 1, height"),
        ("own_data:mismatched", r"mismatched, train: labels have shape \(4,\); 5 images need \(5,\)"),
        ("own_data:fractions", "fractions, train: labels are float64; expected integers from 0"),
        ("own_data:from_one", "no training image has label 0"),
        ("own_data:unseen", r"test: label 2 is out of range; 2 classes"),
        ("own_data:three", r"three\('train'\) returned a tuple; it must return \(images, labels\)"),
        ("own_data:broken", r"broken\('train'\) fails with RuntimeError: no disk \(own_data.py:"),
        ("own_data:number", "is a int; name a function"),
        ("own_data:picture", "did you mean pictures"),
        ("no_such:f", "no module 'no_such'"),
        ("own data", "unknown data set"),
    ],
)
def test_mistakes_are_errors_of_one_line(name, message):
    with pytest.raises(UserError, match=message):
        data.load(data.use(name))
