"""Atomic writes, JSON and TOML from outside, and locks between processes. No torch in here."""

import errno
import fcntl
import functools
import io
import json
import math
import os
import socket
import stat
import sys
import tempfile
import time
import tomllib
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import BaseFileLock, FileLock, SoftFileLock, Timeout

from pixelpart.errors import UserError

if TYPE_CHECKING:
    from numpy.typing import NDArray

# what flock fails with on a file system without locks, such as some mounts of Lustre, NFS and FUSE
NO_FLOCK = {errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK}
MOST_BYTES = 1 << 29  # of a text file: metrics.jsonl has 500 bytes an epoch
NOTICE = 10.0  # seconds of waiting before a line says for whom


def atomic_write(path: Path, data: bytes | str) -> None:
    """Replaces the content of `path`; a kill, a full disk or a power cut leaves either the old or the new content."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.partial")
    try:
        temporary.unlink(missing_ok=True)
        with open(temporary, "xb") as file:  # a new file, never one that a link leads to
            file.write(data.encode() if isinstance(data, str) else data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            unchanged = "; the old file is unchanged" * os.path.lexists(path)
            raise OSError(error.errno, f"{error.strerror}{unchanged}", str(path)) from None
        raise
    sync_folder(path.parent)  # the new name is on disk too


def npy_bytes(array: "NDArray[Any]") -> bytes:
    """The content of a .npy file."""
    import numpy as np

    content = io.BytesIO()
    np.save(content, array, allow_pickle=False)
    return content.getvalue()


def sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_text(path: Path, *, errors: str = "strict") -> str:
    """The UTF-8 text of a file; OSError unless it is a regular file of reasonable size: others may have no end."""
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        if status.st_size > MOST_BYTES:
            raise OSError(errno.EFBIG, f"larger than {MOST_BYTES:,} bytes", str(path))
        return file.read().decode("utf-8", errors)


def append_line(path: Path, line: str) -> None:
    """Adds a line to a text file, but not to one that a link leads to."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
    with os.fdopen(os.open(path, flags, 0o666), "a", encoding="utf-8", errors="backslashreplace") as file:
        file.write(line + "\n")


def parse_json(text: str) -> Any:
    """The content of a JSON text; ValueError for anything else."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def parse_toml(text: str) -> dict[str, Any]:
    """The content of a TOML text; ValueError for anything else."""
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


# -- locks


@contextmanager
def exclusive_lock(path: Path, *, wait: bool) -> Iterator[None]:
    """Holds the lock file `path`, by flock; on a file system without flock, the soft lock `path`.soft.

    Where another process holds it: waits, or raises BlockingIOError if `wait` is False, whose strerror names the
    holder. The lock of a killed process is free, except a soft lock left on another machine.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock: BaseFileLock = FileLock(path, fallback_to_soft=False)
    try:
        _acquire(lock, wait=wait)
    except OSError as error:
        if error.errno not in NO_FLOCK:
            raise
        lock = SoftFileLock(f"{path}.soft")  # another file: one that flock has left behind holds nothing
        _acquire(lock, wait=wait)
    try:
        if not isinstance(lock, SoftFileLock):  # whose file names its holder already
            path.write_text(f"{os.getpid()}\n{socket.gethostname()}\n")
        yield
    finally:
        lock.release()


@contextmanager
def locked_folder(folder: Path, kind: str) -> Iterator[None]:
    """Keeps other processes out of a run or sweep folder; UserError if one is working in it."""
    with ExitStack() as stack:
        try:
            stack.enter_context(exclusive_lock(folder / ".lock", wait=False))
        except BlockingIOError as error:
            raise UserError(error.strerror) from None
        except OSError as error:
            raise UserError(f"cannot use {folder} as a {kind} folder: {error.strerror}") from None
        yield


def lock_holder(path: Path) -> str:
    """The process that holds the lock file `path`, such as "pid 7 on host h"; "" if none does. Writes nothing."""
    soft = path.with_name(f"{path.name}.soft")
    with suppress(FileNotFoundError):
        pid, host = _read_holder(soft)
        if host != _this_host() or _is_alive(pid):
            return _name_holder(pid, host)
    if not path.is_file():
        return ""
    with suppress(FileNotFoundError), open(path, "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # released when the file is closed
        except BlockingIOError:
            return _name_holder(*_read_holder(path))
        except OSError as error:
            if error.errno not in NO_FLOCK:
                raise
    return ""


def _read_holder(path: Path) -> tuple[str, str]:
    pid, host = [*read_text(path, errors="replace").split(), "", ""][:2]
    return pid, host


def _name_holder(pid: str, host: str) -> str:
    return f"pid {pid} on host {host.partition('?')[0]}" if host else "a process that has not written its name"


def _acquire(lock: BaseFileLock, *, wait: bool) -> None:
    path, soft, notice = Path(lock.lock_file), isinstance(lock, SoftFileLock), time.monotonic() + NOTICE
    while True:
        try:
            lock.acquire(timeout=1.0 if wait else 0.0)
            return
        except Timeout:
            try:
                pid, host = _read_holder(path)
            except FileNotFoundError:  # released meanwhile
                continue
        here = not soft or host == _this_host()
        if soft and here and not _is_alive(pid):
            _remove(path, pid)
            continue
        who = _name_holder(pid, host)
        text = f"another process is working in {path.parent}: {who}, lock file {path}"
        if not here:
            text = f"{path.parent} is locked by {who}, which cannot be checked from here; if it is gone, delete {path}"
        if not wait:
            raise BlockingIOError(errno.EAGAIN, text)
        if time.monotonic() > notice:
            print(f"pixelpart: waiting: {text}", file=sys.stderr)
            notice = math.inf


@functools.cache
def _this_host() -> str:
    """This machine as filelock writes it into a soft lock, which tells apart the containers of a machine."""
    with tempfile.TemporaryDirectory() as folder, SoftFileLock(f"{folder}/lock") as lock:
        return Path(lock.lock_file).read_text().split()[1]


def _is_alive(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except (ProcessLookupError, ValueError, OverflowError):  # the last two: not a number of a process
        return False
    except PermissionError:  # of another user
        pass
    return True


def _remove(path: Path, pid: str) -> None:
    """Removes the soft lock of a dead process; filelock only does so where names can be exchanged, unlike on Lustre."""
    aside = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
    with suppress(FileNotFoundError, FileExistsError):
        path.rename(aside)  # of several processes one succeeds
        if aside.read_text().split()[:1] != [pid]:  # meanwhile another process has taken the lock
            os.link(aside, path)
    aside.unlink(missing_ok=True)
