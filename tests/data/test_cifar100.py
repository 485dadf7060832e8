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


def pickled(pixels, fine):
    batch = {b"data": pixels.reshape(len(pixels), -1), b"fine_labels": fine.tolist(), b"coarse_labels": [0]}
    return pickle.dumps(batch, 2)


def write(fake, root, folder="cifar-100-binary", suffix=".bin", encode=binary):
    (root / folder).mkdir()
    for split, pair in fake.items():
        (root / folder / f"{split}{suffix}").write_bytes(encode(*pair))
    return root / folder


@pytest.mark.parametrize("layout", [(), ("cifar-100-python", "", pickled)])
def test_both_layouts_give_pixels_and_fine_labels(fake, tmp_path, layout):
    folder = write(fake, tmp_path, *layout)
    for root in (tmp_path, folder):
        for split, (pixels, fine) in fake.items():
            images, labels = data.load("cifar100", split=split, root=root)
            assert np.array_equal(images.numpy(), pixels)
            assert labels.tolist() == fine.tolist()


def test_checksums_decide_whether_files_are_official(fake, tmp_path, monkeypatch):
    folder = write(fake, tmp_path)
    assert data.verify("cifar100", root=tmp_path).status == "unofficial"
    sums = {path.name: hashlib.md5(path.read_bytes()).hexdigest() for path in folder.iterdir()}
    monkeypatch.setattr(cifar100, "MD5", sums)
    assert data.verify("cifar100", root=tmp_path).status == "verified"


def test_an_archive_in_the_data_root_is_unpacked(fake, tmp_path, monkeypatch):
    content = Fake.tar({f"cifar-100-binary/{split}.bin": binary(*pair) for split, pair in fake.items()})
    (tmp_path / "cifar-100-binary.tar.gz").write_bytes(content)
    monkeypatch.setattr(cifar100, "URL_MD5", hashlib.md5(content).hexdigest())
    data.get("cifar100", root=tmp_path)
    assert len(data.load("cifar100", split="test", root=tmp_path)[0]) == 100


def test_missing_short_and_wrong_files_are_named(fake, tmp_path):
    with pytest.raises(UserError, match=r"no cifar100 under .*; run `pixelpart data get cifar100`"):
        data.load("cifar100", root=tmp_path)
    path = write(fake, tmp_path) / "train.bin"
    good = path.read_bytes()
    path.write_bytes(good[:-1])
    with pytest.raises(UserError, match=r"train.bin has 614,799 bytes, not the 614,800"):
        data.load("cifar100", root=tmp_path)
    path.write_bytes(good[:1] + bytes([(good[1] + 1) % 100]) + good[2:])
    with pytest.raises(UserError, match=r"does not have 2 images of each of 100 classes"):
        data.load("cifar100", root=tmp_path)
