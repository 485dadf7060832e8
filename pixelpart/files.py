"""Atomic writes and locks between processes. No torch in here."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def atomic_write(path: Path, data: bytes | str) -> None:
    """Replaces the content of `path`; a kill, a full disk or a power cut leaves either the old or the new content."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.partial")
    try:
        with open(temporary, "wb") as file:
            file.write(data.encode() if isinstance(data, str) else data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise OSError(error.errno, f"{error.strerror}; the old file is unchanged", str(path)) from None
        raise
    sync_folder(path.parent)  # the new name is on disk too


def sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def exclusive_lock(path: Path, *, wait: bool) -> Iterator[None]:
    """Holds the lock file `path`; the operating system releases the lock when the process ends.

    Where another process holds it: waits, or raises BlockingIOError if `wait` is False.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
