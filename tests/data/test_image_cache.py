"""Images are decoded once into a mapped file, by one process, and again when a file changes."""

import errno
import json
import os
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from pixelpart.data.image_cache import decode_images
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
    return np.full((3, 8, 8), path.read_bytes()[0], np.uint8), False


@pytest.fixture
def load(paths, tmp_path):
    def load(decode=decode, size=8):
        return decode_images(paths, decode, shape=(3, size, size), name="photos", root=tmp_path)

    return load


@pytest.fixture
def made(load, tmp_path):
    """The cache file that the first call writes."""
    assert load().images[:, 0, 0, 0].tolist() == list(range(12))
    (made,) = (tmp_path / "decoded").glob("*.npy")
    return made


def test_the_cache_is_used_until_a_file_changes(made, load, paths):
    before = made.stat().st_mtime_ns
    load(decode=pytest.fail)
    assert made.stat().st_mtime_ns == before
    os.utime(paths[0], ns=(1, 1))
    load()
    load(lambda path: (decode(path)[0][:, :4, :4], False), size=4)
    assert len(list(made.parent.glob("*.npy"))) == 3


def test_of_two_processes_one_decodes_and_the_other_waits(load, paths):
    calls = []

    def slowly(path):
        time.sleep(0.01)
        calls.append(path)
        return decode(path)

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: load(slowly), range(2))
    assert sorted(calls) == sorted(paths)
    assert torch.equal(first.images, second.images)


def test_a_partial_file_of_a_killed_process_is_overwritten(made, load):
    before = made.read_bytes()
    made.rename(part := made.with_name(f".{made.name}.part"))
    part.write_bytes(b"half")
    load()
    assert made.read_bytes() == before
    assert not part.exists()


def test_a_full_disk_is_an_error(load, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(UserError, match=r"cannot write .*photos-8x8-.*npy: No space left"):
        load()
    assert [path.name for path in (tmp_path / "decoded").iterdir()] == [".lock"]


def flip_pixel(made):
    content = bytearray(made.read_bytes())
    content[-5] ^= 16
    made.write_bytes(content)


def shift_bad(made):
    """As if the first file were bad: labels would move by one."""
    facts = json.loads(made.with_suffix(".json").read_text())
    made.with_suffix(".json").write_text(json.dumps(facts | {"bad": {"0": "x"}}))


def write_array(array):
    return lambda made: np.save(made, array)


@pytest.mark.parametrize(
    "damage",
    [
        flip_pixel,
        shift_bad,
        write_array(np.zeros((12, 3, 8, 4), np.uint8)),
        write_array(np.zeros((12, 3, 8, 8), np.int8)),
        lambda made: made.write_bytes(made.read_bytes()[:-100]),
        lambda made: made.write_bytes(b""),
        lambda made: made.with_suffix(".json").write_text("[" * 10**5),
        lambda made: made.with_suffix(".json").write_text('{"bad": {}, "transparent": 0}'),  # an older version's
        lambda made: made.with_suffix(".json").unlink(),
    ],
)
def test_a_corrupt_cache_is_made_again(made, load, damage):
    before = made.read_bytes(), made.with_suffix(".json").read_text()
    damage(made)
    assert load().images[:, 0, 0, 0].tolist() == list(range(12))
    assert (made.read_bytes(), made.with_suffix(".json").read_text()) == before
    load(decode=pytest.fail)
