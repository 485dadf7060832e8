"""CIFAR-100 in both official layouts, small."""

import hashlib
import pickle

import numpy as np
import pytest

from pixelpart import data
from pixelpart.data import cifar100
from pixelpart.errors import UserError

from .conftest import Fake

N = {"train": 200, "test": 100}


@pytest.fixture
def fake(monkeypatch):
    rng = np.random.default_rng(0)
    monkeypatch.setattr(cifar100, "COUNTS", N)
    return {
        split: (rng.integers(0, 256, (n, 3, 32, 32), dtype=np.uint8), rng.permutation(np.arange(n) % 100))
        for split, n in N.items()
    }


def binary(pixels, fine):
    rows = zip(fine, pixels, strict=True)
    return b"".join(bytes([label // 5, label]) + image.tobytes() for label, image in rows)


def write_bin(fake, root):
    folder = root / "cifar-100-binary"
    folder.mkdir()
    for split, pair in fake.items():
        (folder / f"{split}.bin").write_bytes(binary(*pair))
    return folder


def write_py(fake, root):
    folder = root / "cifar-100-python"
    folder.mkdir()
    for split, (pixels, fine) in fake.items():
        held = {b"data": pixels.reshape(len(pixels), -1), b"fine_labels": fine.tolist(), b"coarse_labels": [0]}
        (folder / split).write_bytes(pickle.dumps(held, 2))
    return folder


@pytest.mark.parametrize("write", [write_bin, write_py])
def test_both_layouts_give_pixels_and_fine_labels(fake, tmp_path, write):
    folder = write(fake, tmp_path)
    for root in (tmp_path, folder):
        for split, (pixels, fine) in fake.items():
            images, labels = data.load("cifar100", split=split, root=root)
            assert np.array_equal(images.numpy(), pixels)
            assert labels.tolist() == fine.tolist()
    assert data.verify("cifar100", root=tmp_path).status == "unofficial"


def test_sums_make_it_the_official_one(fake, tmp_path, monkeypatch):
    folder = write_bin(fake, tmp_path)
    sums = {path.name: hashlib.md5(path.read_bytes()).hexdigest() for path in folder.iterdir()}
    monkeypatch.setattr(cifar100, "MD5", sums)
    assert data.verify("cifar100", root=tmp_path).status == "verified"


def test_an_archive_put_there_by_hand_is_unpacked(fake, tmp_path, monkeypatch):
    content = Fake.tar({f"cifar-100-binary/{split}.bin": binary(*pair) for split, pair in fake.items()})
    (tmp_path / "cifar-100-binary.tar.gz").write_bytes(content)
    monkeypatch.setattr(cifar100, "URL_MD5", hashlib.md5(content).hexdigest())
    data.get("cifar100", root=tmp_path)
    assert len(data.load("cifar100", split="test", root=tmp_path)[0]) == 100


def test_a_short_file_other_labels_and_nothing_at_all_are_told(fake, tmp_path):
    with pytest.raises(UserError, match=r"no cifar100 under .*; run `pixelpart data get cifar100`"):
        data.load("cifar100", root=tmp_path)
    path = write_bin(fake, tmp_path) / "train.bin"
    good = path.read_bytes()
    path.write_bytes(good[:-1])
    with pytest.raises(UserError, match=r"train.bin has 614,799 bytes, not the 614,800"):
        data.load("cifar100", root=tmp_path)
    path.write_bytes(good[:1] + bytes([(good[1] + 1) % 100]) + good[2:])
    with pytest.raises(UserError, match=r"does not have 2 images of each of 100 classes"):
        data.load("cifar100", root=tmp_path)


def test_there_are_a_hundred_classes_in_the_order_of_the_alphabet():
    assert len(cifar100.CLASSES) == 100
    assert list(cifar100.CLASSES) == sorted(cifar100.CLASSES)
