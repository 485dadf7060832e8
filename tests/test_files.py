"""A write leaves the old file or the new one; a lock is held by one process."""

import errno
import fcntl
import os
import socket
import subprocess
import sys
import threading

import pytest

from pixelpart import files
from pixelpart.files import append_line, atomic_write, exclusive_lock, lock_holder, read_text


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


def test_no_file_is_written_through_a_link(tmp_path):
    (victim := tmp_path / "victim").write_text("mine")
    (tmp_path / ".file.partial").symlink_to(victim)
    (tmp_path / "log").symlink_to(victim)
    atomic_write(tmp_path / "file", "new")
    with pytest.raises(OSError, match="symbolic links"):
        append_line(tmp_path / "log", "line")
    assert (tmp_path / "file").read_text() == "new"
    assert victim.read_text() == "mine"


def test_a_pipe_a_device_and_a_huge_file_are_not_read(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "device").symlink_to("/dev/zero")
    (tmp_path / "huge").write_text("123")
    monkeypatch.setattr(files, "MOST_BYTES", 2)
    for name, reason in {"pipe": "not a regular", "device": "not a regular", "huge": "larger than 2 bytes"}.items():
        with pytest.raises(OSError, match=reason):
            read_text(tmp_path / name)


# -- locks

HOLD = """
import fcntl, sys
from pathlib import Path
from pixelpart.files import exclusive_lock
def flock(*_):
    raise OSError(int(sys.argv[2]), "no locks here")
if sys.argv[2] != "0":
    fcntl.flock = flock
with exclusive_lock(Path(sys.argv[1]), wait=True):
    print("held", flush=True)
    input()
"""
LOCK_NAMES = {0: ".lock", errno.ENOSYS: ".lock.soft", errno.EOPNOTSUPP: ".lock.soft", errno.ENOLCK: ".lock.soft"}


def _raiser(number):
    def flock(*_):
        raise OSError(number, "no locks here")

    return flock


@pytest.fixture(params=LOCK_NAMES)
def number(request, monkeypatch):
    """What flock fails with: 0 for not at all."""
    if request.param:
        monkeypatch.setattr(fcntl, "flock", _raiser(request.param))
    return request.param


@pytest.fixture
def hold(tmp_path):
    """Starts a process that holds tmp_path/.lock."""
    children = []

    def start(number):
        command = [sys.executable, "-c", HOLD, str(tmp_path / ".lock"), str(number)]
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        children.append(child)
        assert child.stdout.readline() == "held\n"
        return child

    yield start
    for child in children:
        child.kill()
        child.communicate()


def test_lock_is_exclusive_names_its_holder_and_is_free_when_that_process_is_killed(tmp_path, number, hold):
    child = hold(number)
    with pytest.raises(BlockingIOError) as caught, exclusive_lock(tmp_path / ".lock", wait=False):
        pass
    assert caught.value.strerror == (
        f"another process is working in {tmp_path}: pid {child.pid} on host {socket.gethostname()}, "
        f"lock file {tmp_path / LOCK_NAMES[number]}"
    )
    child.kill()
    child.communicate()
    with exclusive_lock(tmp_path / ".lock", wait=False):
        pass
    with exclusive_lock(tmp_path / ".lock", wait=True):
        pass
    assert {path.name for path in tmp_path.iterdir()} <= {".lock"}


def test_holder_of_a_lock_is_named_without_taking_the_lock(tmp_path, number, hold):
    assert lock_holder(tmp_path / ".lock") == ""
    assert list(tmp_path.iterdir()) == []
    child = hold(number)
    for _ in range(2):
        assert lock_holder(tmp_path / ".lock") == f"pid {child.pid} on host {socket.gethostname()}"
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    child.kill()
    child.communicate()
    assert lock_holder(tmp_path / ".lock") == ""
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    (tmp_path / ".lock.soft").write_text("123\nnode7\n")  # of another machine, which cannot be checked
    assert lock_holder(tmp_path / ".lock") == "pid 123 on host node7"


@pytest.mark.parametrize("wait", [False, True])
def test_soft_lock_of_a_dead_process_is_freed_where_names_cannot_be_exchanged(tmp_path, hold, monkeypatch, wait):
    """As on Lustre and NFS, where filelock itself leaves it."""
    monkeypatch.setattr(fcntl, "flock", _raiser(errno.ENOSYS))
    monkeypatch.setattr("filelock._soft.exchange_names", lambda *_: False, raising=False)
    child = hold(errno.ENOSYS)
    child.kill()
    child.communicate()
    with exclusive_lock(tmp_path / ".lock", wait=wait):
        assert (tmp_path / ".lock.soft").read_text().split()[0] == str(os.getpid())


@pytest.mark.parametrize("pid", ["x", "9" * 40])
def test_soft_lock_without_the_number_of_a_process_does_not_hold(tmp_path, pid):
    (tmp_path / ".lock.soft").write_text(f"{pid}\n{files._this_host()}\n")
    assert lock_holder(tmp_path / ".lock") == ""


def test_soft_lock_of_another_machine_is_kept_and_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(fcntl, "flock", _raiser(errno.ENOSYS))
    monkeypatch.setattr(files, "NOTICE", 0.0)
    marker = tmp_path / ".lock.soft"
    marker.write_text("123\nnode7\n")
    text = f"{tmp_path} is locked by pid 123 on host node7, which cannot be checked from here; if it is gone, "
    text += f"delete {marker}"
    with pytest.raises(BlockingIOError) as caught, exclusive_lock(tmp_path / ".lock", wait=False):
        pass
    assert caught.value.strerror == text
    timer = threading.Timer(1.5, marker.unlink)
    timer.start()
    with exclusive_lock(tmp_path / ".lock", wait=True):
        assert capsys.readouterr().err == f"pixelpart: waiting: {text}\n"
    timer.join()


def test_other_errors_of_a_lock_are_raised_as_they_are(tmp_path, monkeypatch):
    monkeypatch.setattr(fcntl, "flock", _raiser(errno.EIO))
    with pytest.raises(OSError, match="no locks here") as caught, exclusive_lock(tmp_path / ".lock", wait=False):
        pass
    assert caught.value.errno == errno.EIO


def test_file_left_by_flock_does_not_hold_a_soft_lock(tmp_path, monkeypatch):
    """A run folder copied to a file system without locks."""
    (tmp_path / ".lock").write_text("123\nlaptop\n")
    monkeypatch.setattr(fcntl, "flock", _raiser(errno.ENOSYS))
    with exclusive_lock(tmp_path / ".lock", wait=False):
        pass
