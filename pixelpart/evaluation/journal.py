"""Outcomes by sample, written as they come: what was killed goes on where it stopped, and nothing is done twice.

A journal is a text file. Its first line says whose it is: the question and the model's signature. Each line after it is
one settled try (part of the attack, sample, number of the try, broken or not) or the seconds worked so far, with a
checksum. A line that is torn or whose sum is wrong counts as never written.
"""

import json
import os
import time
import zlib
from pathlib import Path
from types import TracebackType

from pixelpart.evaluation.identity import agree

FIELDS = 4  # of a settled try


class Journal:
    """`done` and `broken` are what is known already; `settle` adds to them. Without a path nothing is kept."""

    def __init__(self, path: Path | None = None, *, asked: str = "", probe: list[float] | None = None) -> None:
        self.path, self.asked = path, asked
        self.done: dict[tuple[int, int, int], bool] = {}  # (part, sample, try) -> broken
        self.seconds = 0.0
        self._file: int | None = None
        self._began = time.perf_counter()
        if path is None:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        if not self._read(path, probe or []):
            self._begin(path, probe or [])
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND)

    def settle(self, part: int, sample: int, number: int, broken: bool) -> None:
        self.done[part, sample, number] = broken
        self._write(f"{part} {sample} {number} {int(broken)}")

    def note_time(self) -> float:
        """The seconds worked so far, over all attempts, noted."""
        total = self.seconds + time.perf_counter() - self._began
        self._write(f"{total:.3f}")
        return total

    def broken(self, part: int) -> set[int]:
        """The samples that this part of the attack broke."""
        return {sample for (other, sample, _), wrong in self.done.items() if other == part and wrong}

    def discard(self) -> None:
        """The answer is in eval.json now."""
        self.__exit__(None, None, None)
        if self.path is not None:
            self.path.unlink(missing_ok=True)

    def __enter__(self) -> "Journal":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self.note_time()
            os.close(self._file)
            self._file = None

    def _read(self, path: Path, probe: list[float]) -> bool:
        """Whether the file is this question's about this model; if so, takes what it says."""
        try:
            head, *lines = path.read_text(encoding="ascii", errors="replace").splitlines()
            about = json.loads(head)
            if about["asked"] != self.asked or not agree(about["probe"], probe):
                return False
        except (OSError, ValueError, KeyError, TypeError):
            return False
        for line in lines:
            content, _, checksum = line.rpartition(" ")
            if checksum != self._sum(content):
                continue
            fields = content.split()
            if len(fields) == FIELDS:
                part, sample, number, broken = map(int, fields)
                self.done[part, sample, number] = bool(broken)
            else:
                self.seconds = float(content)
        return True

    def _begin(self, path: Path, probe: list[float]) -> None:
        path.write_text(json.dumps({"asked": self.asked, "probe": probe}) + "\n", encoding="ascii")

    def _write(self, content: str) -> None:
        if self._file is not None:
            os.write(self._file, f"{content} {self._sum(content)}\n".encode("ascii"))

    def _sum(self, content: str) -> str:
        return f"{zlib.crc32(f'{self.asked} {content}'.encode()):08x}"
