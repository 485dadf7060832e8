"""Pictures decoded once into a mapped file: by one process, whatever ends it, and anew when a picture changes."""

import errno
import os
import time
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from pixelpart.data.decoded import decoded
from pixelpart.errors import UserError


@pytest.fixture
def paths(tmp_path):
    """Twelve files, each of one byte, its number."""
    (tmp_path / "photos").mkdir()
    paths = [tmp_path / "photos" / f"{i}.bin" for i in range(12)]
    for i, path in enumerate(paths):
        path.write_bytes(bytes([i]))
    return paths


def decode(path):
    return np.full((3, 8, 8), path.read_bytes()[0], np.uint8)


@pytest.fixture
def load(paths, tmp_path):
    def load(decode=decode, size=8):
        return decoded(paths, decode, size=size, name="photos", root=tmp_path)

    return load


@pytest.fixture
def made(load, tmp_path):
    """The file that the first call has made."""
    assert load().images[:, 0, 0, 0].tolist() == list(range(12))
    (made,) = (tmp_path / "decoded").glob("*.npy")
    return made


def test_the_file_is_used_until_a_picture_changes(made, load, paths):
    before = made.stat().st_mtime_ns
    load(decode=pytest.fail)
    assert made.stat().st_mtime_ns == before
    os.utime(paths[0], ns=(1, 1))
    load()
    load(lambda path: decode(path)[:, :4, :4], size=4)
    assert len(list(made.parent.glob("*.npy"))) == 3


def test_of_two_that_need_the_same_pictures_one_decodes_them(load, paths):
    calls = []

    def slowly(path):
        time.sleep(0.01)
        calls.append(path)
        return decode(path)

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: load(slowly), range(2))
    assert sorted(calls) == sorted(paths)
    assert torch.equal(first.images, second.images)


def test_what_a_killed_process_left_behind_is_written_over(made, load):
    before = made.read_bytes()
    made.rename(part := made.with_name(f".{made.name}.part"))
    part.write_bytes(b"half")
    load()
    assert made.read_bytes() == before
    assert not part.exists()


def test_a_damaged_file_is_told(made, load):
    os.truncate(made, 500)
    with pytest.raises(UserError, match=r"photos-8-.*npy is damaged .*delete it"):
        load()
    made.unlink()
    assert len(load().images) == 12


def test_a_full_disk_is_told(load, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(UserError, match=r"cannot write .*photos-8-.*npy: No space left"):
        load()
    assert [path.name for path in (tmp_path / "decoded").iterdir()] == [".lock"]


def test_warnings_of_a_decoder_are_not_shown_and_others_still_are(load):
    def warn(path):
        warnings.warn("of no concern", stacklevel=1)
        return decode(path)

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        load(warn)
        assert not seen
        warnings.warn("of some", stacklevel=1)
    assert len(seen) == 1
