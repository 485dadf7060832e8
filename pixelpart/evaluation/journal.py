"""Outcomes by sample, written as they come: what was killed goes on where it stopped, and nothing is done twice.

A journal is a text file. Its first line says whose it is: the hash of all that the outcome depends on, the model's
signature, and the question as a reader would put it. Where several processes share the work, each has its own, and all
read all of them at the start. Each line after the first is one settled try (part of the attack, sample, number of the
try, broken or not) or the seconds worked so far, with a checksum. A line that is torn or whose sum is wrong counts as
never written.
"""

import json
import os
import time
import zlib
from pathlib import Path
from types import TracebackType

from pixelpart.errors import UserError
from pixelpart.evaluation.identity import agree

FIELDS = 4  # of a settled try
NOTE_AFTER = 10.0  # seconds, at the latest, if something has been settled: a kill loses no more of them


class Journal:
    """`done` and `broken` are what is known already; `settle` adds to them. Without a path nothing is kept."""

    def __init__(
        self,
        path: Path | None = None,
        *,
        asked: str = "",
        probe: list[float] | None = None,
        question: str | None = None,
    ) -> None:
        self.path, self.asked, self.question = path, asked, question
        self.done: dict[tuple[int, int, int], bool] = {}  # (part, sample, try) -> broken
        self.seconds = 0.0
        self._file: int | None = None
        self._began = self._noted = time.perf_counter()
        self._head = ""
        if path is None:
            return
        try:
            self._open(path, probe or [])
        except OSError as error:
            raise UserError(f"cannot write results to {path.parent}: {error.strerror}") from None

    def _open(self, path: Path, probe: list[float]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        for other in path.parent.glob(f"{path.name.partition('.')[0]}.*journal"):
            if other != path:
                self._read(other, probe)
        known = self._read(path, probe)
        if not known:
            self._begin(path, probe)
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND)
        if known:
            os.write(self._file, b"\n")  # its last line may be torn: what comes now is not to be lost with it

    def settle(self, part: int, sample: int, number: int, broken: bool) -> None:
        self.done[part, sample, number] = broken
        self._write(f"{part} {sample} {number} {int(broken)}")
        if time.perf_counter() - self._noted > NOTE_AFTER:
            self.note_time()

    def note_time(self) -> float:
        """The seconds worked so far, over all attempts, noted."""
        self._noted = time.perf_counter()
        total = self.seconds + self._noted - self._began
        self._write(f"{total:.3f}")
        return total

    def broken(self, part: int) -> set[int]:
        """The samples that this part of the attack broke."""
        return {sample for (other, sample, _), wrong in self.done.items() if other == part and wrong}

    def discard(self) -> None:
        """The answer is in eval.json now; what others have written about it goes as well.

        So does what an older version, or the weights before, had settled of the same question.
        """
        self.__exit__(None, None, None)
        if self.path is not None:
            name = self.path.name.partition(".")[0]
            for other in self.path.parent.glob("*.journal"):
                if other.name.partition(".")[0] == name or (self.question and _question_of(other) == self.question):
                    other.unlink(missing_ok=True)

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
            self._head, about = head, json.loads(head)
            if about["asked"] != self.asked or not agree(about["probe"], probe):
                return False
        except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
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
                self.seconds = max(self.seconds, float(content))
        return True

    def _begin(self, path: Path, probe: list[float]) -> None:
        about = {"asked": self.asked, "probe": probe} | ({"question": self.question} if self.question else {})
        self._head = json.dumps(about)
        path.write_text(self._head + "\n", encoding="ascii")

    def _write(self, content: str) -> None:
        if self._file is not None:
            os.write(self._file, f"{content} {self._sum(content)}\n".encode("ascii"))

    def _sum(self, content: str) -> str:
        """Of the first line too: a line of another model's journal is none of this one's."""
        return f"{zlib.crc32(f'{self._head} {content}'.encode()):08x}"


def _question_of(path: Path) -> str | None:
    """The question that a journal's first line names, as a reader would put it."""
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return json.loads(file.readline()).get("question")
    except (OSError, ValueError, AttributeError, RecursionError):
        return None
