"""A write leaves the old file or the new one; a lock is held by one process."""

import errno
import os
import subprocess
import sys
import threading

import pytest

from pixelpart.files import atomic_write, exclusive_lock


def test_write_creates_folders_and_replaces_the_content(tmp_path):
    path = tmp_path / "a" / "b" / "c.txt"
    atomic_write(path, "grüße")
    assert path.read_bytes() == "grüße".encode()
    atomic_write(path, b"\x00\xff")
    assert path.read_bytes() == b"\x00\xff"


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_failed_write_keeps_the_old_file_and_leaves_no_other(tmp_path, monkeypatch, call):
    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    atomic_write(tmp_path / "file", "old")
    monkeypatch.setattr(os, call, fail)
    with pytest.raises(OSError, match="No space left on device; the old file is unchanged"):
        atomic_write(tmp_path / "file", "new")
    assert (tmp_path / "file").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_content_is_synced_before_the_name_and_the_name_before_the_return(tmp_path, monkeypatch):
    done = []
    for call in ("fsync", "replace"):
        original = getattr(os, call)
        monkeypatch.setattr(os, call, lambda *a, call=call, original=original: (done.append(call), original(*a))[1])
    atomic_write(tmp_path / "file", "new")
    assert done == ["fsync", "replace", "fsync"]


def test_reader_never_sees_a_partial_file(tmp_path):
    path, contents, seen = tmp_path / "file", ["a" * 100_000, "b" * 100_000], set()
    atomic_write(path, contents[0])
    writer = threading.Thread(target=lambda: [atomic_write(path, contents[i % 2]) for i in range(20)])
    writer.start()
    while writer.is_alive():
        seen.add(path.read_text())
    writer.join()
    assert seen <= set(contents)


def test_lock_is_exclusive_and_released_when_its_process_is_killed(tmp_path):
    code = "import sys; from pathlib import Path; from pixelpart.files import exclusive_lock\n"
    code += "with exclusive_lock(Path(sys.argv[1]), wait=True): print('held', flush=True); input()"
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / ".lock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout.readline() == "held\n"
    with pytest.raises(BlockingIOError), exclusive_lock(tmp_path / ".lock", wait=False):
        pass
    child.kill()
    child.communicate()
    with exclusive_lock(tmp_path / ".lock", wait=False):
        pass
