"""SVHN in the official layout, small."""

import hashlib
import shutil

import numpy as np
import pytest
import torch
from scipy.io import savemat

from pixelpart import data
from pixelpart.data import svhn
from pixelpart.data.download import Unavailable
from pixelpart.errors import UserError

N = {"train": 30, "test": 20}


@pytest.fixture
def fake(monkeypatch, tmp_path):
    rng = np.random.default_rng(0)
    held = {}
    for split, n in N.items():
        pixels = rng.integers(0, 256, (n, 3, 32, 32), dtype=np.uint8)
        held[split] = pixels, np.arange(n) % 10
        write(tmp_path, split, pixels, held[split][1])
    monkeypatch.setattr(svhn, "COUNTS", N)
    monkeypatch.setattr(svhn, "DIGITS", {split: (n // 10,) * 10 for split, n in N.items()})
    return held


def write(folder, split, pixels, digits):
    x = pixels.transpose(2, 3, 1, 0)  # row, column, channel, image
    savemat(folder / f"{split}_32x32.mat", {"X": x, "y": np.where(digits == 0, 10, digits)[:, None]})


@pytest.mark.parametrize("split", N)
def test_pixels_and_labels_are_read_and_ten_is_zero(fake, tmp_path, split):
    images, labels = data.load("svhn", split=split, root=tmp_path)
    assert images.dtype == torch.uint8
    assert np.array_equal(images.numpy(), fake[split][0])
    assert labels.tolist() == fake[split][1].tolist()


def test_checksums_decide_whether_files_are_official(fake, tmp_path, monkeypatch):
    assert data.verify("svhn", root=tmp_path).status == "unofficial"
    sums = {split: hashlib.md5((tmp_path / name).read_bytes()).hexdigest() for split, name in svhn.FILES.items()}
    monkeypatch.setattr(svhn, "MD5", sums)
    assert data.verify("svhn", root=tmp_path).status == "verified"


def test_other_mat_files_are_refused(fake, tmp_path):
    path = tmp_path / "train_32x32.mat"
    savemat(path, {"Z": np.zeros(3)})
    with pytest.raises(UserError, match=r"train_32x32.mat has no array X and no array y"):
        data.load("svhn", root=tmp_path)
    path.write_bytes(b"no mat at all")
    with pytest.raises(UserError, match=r"train_32x32.mat is not a readable \.mat file"):
        data.load("svhn", root=tmp_path)
    savemat(path, {"X": np.zeros((32, 32, 3, 5), np.uint8), "y": np.ones((5, 1))})
    with pytest.raises(UserError, match=r"X is uint8 \(32, 32, 3, 5\)"):
        data.verify("svhn", root=tmp_path)


def test_a_file_that_crashes_the_parser_is_refused(fake, tmp_path, monkeypatch):
    """The crash is real, its cause is not: which bytes crash scipy depends on its version."""
    monkeypatch.setattr(svhn, "PARSE", "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    with pytest.raises(UserError, match=r"train_32x32.mat is not a readable \.mat file: the parser crashed"):
        data.load("svhn", root=tmp_path)


def test_other_labels_are_refused(fake, tmp_path):
    pixels, digits = fake["train"]
    write(tmp_path, "train", pixels, np.where(digits == 3, 4, digits))
    with pytest.raises(UserError, match="images of each digit are"):
        data.load("svhn", root=tmp_path)
    write(tmp_path, "train", pixels, np.where(digits == 3, 11, digits))
    with pytest.raises(UserError, match="labels from 1 to 11, not 1 to 10"):
        data.load("svhn", root=tmp_path)


def test_a_download_that_stops_between_the_two_files_is_continued(fake, tmp_path, monkeypatch):
    fetched, offline = [], ["test_32x32.mat"]

    def fetch(url, path, **_):
        if path.name in offline:
            raise Unavailable("no connection")
        if not path.exists():
            fetched.append(shutil.copy(tmp_path / path.name, path))

    monkeypatch.setattr(svhn, "fetch", fetch)
    with pytest.raises(UserError, match="cannot get svhn: no connection"):
        data.get("svhn", root=tmp_path / "new")
    offline.clear()
    assert data.get("svhn", root=tmp_path / "new").where == str(tmp_path / "new" / "svhn")
    assert [path.name for path in fetched] == ["train_32x32.mat", "test_32x32.mat"]


def test_missing_files_are_named(fake, tmp_path):
    (tmp_path / "test_32x32.mat").unlink()
    with pytest.raises(UserError, match=r"lacks test_32x32\.mat"):
        data.load("svhn", root=tmp_path)
    (tmp_path / "train_32x32.mat").unlink()
    with pytest.raises(UserError, match=r"no svhn under .*put train_32x32.mat and test_32x32.mat into"):
        data.verify("svhn", root=tmp_path)
    with pytest.raises(UserError, match="unknown split 'extra'"):
        data.load("svhn", split="extra", root=tmp_path)
