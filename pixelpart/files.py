"""Writing files so that a kill leaves the old content or the new, never a mixture. No torch in here."""

import os
from pathlib import Path


def atomic_write(path: Path, data: bytes | str) -> None:
    """Puts data at path so that a kill, a full disk or a power cut leaves either the old content or the new."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.partial")
    try:
        with open(aside, "wb") as file:
            file.write(data.encode() if isinstance(data, str) else data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    except OSError as error:
        aside.unlink(missing_ok=True)
        raise OSError(error.errno, f"{error.strerror}, and what was there before still is", str(path)) from None
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
