"""The tries that an evaluation has settled so far, on disk: a killed evaluation continues from here.

The file is text. Its first line identifies the result it belongs to: the key's digest and the logits of the probe
images. Every other line is one settled try (search, sample, number of the try, broken or not) or the seconds worked so
far, followed by a checksum over the first line and this one. Incomplete or corrupt lines are ignored. Each process of a
world writes its own file, and all processes read all files at the start.
"""

import json
import math
import os
import time
import zlib
from collections.abc import Sequence
from pathlib import Path

from pixelpart.attacks.batching import Try
from pixelpart.errors import UserError
from pixelpart.files import atomic_write, read_text

TRY_FIELDS = 4  # search, sample, number, broken
SECONDS_EVERY = 10.0  # how often the time is written while tries are being settled
AGREEMENT = 1e-4  # relative to the largest number: far above fp32 rounding, far below a change of any prediction


def agree(a: Sequence[float], b: Sequence[float]) -> bool:
    """Whether two lists of numbers are equal up to rounding and finite."""
    if len(a) != len(b):
        return False
    scale = max(map(abs, (*a, *b)), default=0.0)
    return math.isfinite(scale) and all(abs(p - q) <= AGREEMENT * scale for p, q in zip(a, b, strict=True))


class PartialResult:
    """`settled` maps each finished try to whether it broke its sample; `add` appends. Without a path, memory only."""

    def __init__(self, path: Path | None = None, *, digest: str = "", probe: Sequence[float] = ()) -> None:
        self.path, self.digest, self.probe = path, digest, list(probe)
        self.settled: dict[Try, bool] = {}
        self._head = ""
        self._file: int | None = None
        self._seconds_before = 0.0
        self._start = self._seconds_written = time.perf_counter()
        if path is not None:
            try:
                self._open(path)
            except OSError as error:
                raise UserError(f"cannot write results to {path.parent}: {error.strerror}") from None

    def add(self, try_: Try, broken: bool) -> None:
        self.settled[try_] = broken
        self._write(f"{try_.search} {try_.sample} {try_.number} {int(broken)}")
        if time.perf_counter() - self._seconds_written > SECONDS_EVERY:
            self.write_seconds()

    def write_seconds(self) -> float:
        """Writes and returns the seconds worked so far, including those before a kill."""
        self._seconds_written = time.perf_counter()
        total = self._seconds_before + self._seconds_written - self._start
        self._write(f"{total:.3f}")
        return total

    def discard(self) -> None:
        """Closes and deletes the files of all processes: the finished result is stored."""
        self.close()
        if self.path is not None:
            for file in self._files(self.path):
                file.unlink(missing_ok=True)

    def close(self) -> None:
        if self._file is not None:
            self.write_seconds()
            os.close(self._file)
            self._file = None

    def __enter__(self) -> "PartialResult":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _files(self, path: Path) -> list[Path]:
        return list(path.parent.glob(f"{path.name.partition('.')[0]}.*partial"))

    def _open(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        for other in self._files(path):
            if other != path:
                self._read(other)
        if known := self._read(path):
            self._head = known
        else:
            self._head = json.dumps({"key": self.digest, "probe": self.probe})
            atomic_write(path, self._head + "\n")
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW)
        if known:
            os.write(self._file, b"\n")  # the last line may be incomplete

    def _read(self, path: Path) -> str | None:
        """Adds the settled tries of a file and returns its first line; None if it belongs to another result."""
        try:
            head, *lines = read_text(path, errors="replace").splitlines()
            about = json.loads(head)
            if about["key"] != self.digest or not agree(about["probe"], self.probe):
                return None
        except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
            return None
        for line in lines:
            content, _, checksum = line.rpartition(" ")
            if checksum != _checksum(head, content):
                continue
            fields = content.split()
            if len(fields) == TRY_FIELDS:
                search, sample, number, broken = fields
                self.settled[Try(search, int(sample), int(number))] = broken == "1"
            else:
                self._seconds_before = max(self._seconds_before, float(content))
        return head

    def _write(self, content: str) -> None:
        if self._file is not None:
            os.write(self._file, f"{content} {_checksum(self._head, content)}\n".encode("ascii"))


def _checksum(head: str, content: str) -> str:
    return f"{zlib.crc32(f'{head} {content}'.encode()):08x}"
