"""The files of a run: config.json, metrics.jsonl, checkpoints/, log.txt."""

import contextlib
import json
import math
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from pixelpart.config import Config, code_flags, differing_fields, read_config
from pixelpart.errors import UserError
from pixelpart.files import append_line, atomic_write, locked_folder, parse_json, read_text
from pixelpart.runs.records import read_row, write_row

LOCKS = {".lock", ".lock.soft"}
UNFINISHED = {*LOCKS, ".config.json.partial"}  # what a run killed at its very start leaves
CARD_MARK = "library_name: pixelpart"  # in the model card of an exported run
MetricsRow = dict[str, Any]  # one line of metrics.jsonl


def mean_budget(rows: Sequence[MetricsRow]) -> float | None:
    """The mean budget of the epochs after burn-in, in 1/255; None if there are none."""
    budgets = [row["budget_mean"] for row in rows if row["phase"] != "burn-in"]
    return 255 * fmean(budgets) if budgets else None


class RunFolder:
    """The files of one run, as training reads and writes them."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.config_file = self.path / "config.json"
        self.metrics_file = self.path / "metrics.jsonl"
        self.clock_file = self.path / "clock.json"
        self.log_file = self.path / "log.txt"

    def checkpoint(self, name: str) -> Path:
        """The file of a checkpoint: last, best or epoch-N."""
        return self.path / "checkpoints" / f"{name}.safetensors"

    def kept_epochs(self) -> list[int]:
        """The epochs N of the checkpoints epoch-N."""
        names = [file.stem.removeprefix("epoch-") for file in self.path.glob("checkpoints/epoch-*.safetensors")]
        return sorted(int(name) for name in names if name.isdecimal())

    @property
    def exported(self) -> bool:
        """Whether `export --to hub` wrote the folder: it has its model card and no log."""
        card = self.path / "README.md"
        return not self.log_file.exists() and card.is_file() and CARD_MARK in read_text(card, errors="replace")

    def read_config(self) -> Config:
        if not self.config_file.exists():
            missing = "it is a file" if self.path.exists() else "no such folder"
            reason = "it has no config.json" if self.path.is_dir() else missing
            below = f"; {self.path}/* means the runs below it" if any(self.path.glob("*/config.json")) else ""
            raise UserError(f"{self.path} is not a run folder: {reason}{below}")
        return read_config(self.config_file)

    def check_config(self, config: Config) -> None:
        """UserError unless the folder is new, empty or holds a run with this config; the message says what differs."""
        if self.config_file.exists():
            theirs = self.read_config()
            if self.exported:
                raise UserError(f"{self.path} was exported and cannot be trained further; choose another --out")
            if differing := differing_fields(theirs, config):
                raise UserError(
                    f"{self.path} holds a run with another config ({'; '.join(differing)}); "
                    + (self._command_to_continue(theirs, config) or "choose another --out")
                )
        elif self.path.exists() and (
            not self.path.is_dir() or any(entry.name not in UNFINISHED for entry in self.path.iterdir())
        ):
            raise UserError(f"{self.path} is not empty and not a run folder; choose another --out")

    def _command_to_continue(self, theirs: Config, config: Config) -> str:
        """The command for more epochs of a finished run; empty if this config asks for something else."""
        rows, more = self.read_metrics([]), theirs.model_copy(update={"epochs": config.epochs})
        if config != more or config.epochs < theirs.epochs or not rows or rows[-1]["epoch"] < theirs.epochs:
            return ""
        words = ["pixelpart", "train", str(self.path), *code_flags(config)]
        words += ["--epochs", str(config.epochs), "--init-from", f"{self.path}@{theirs.epochs}"]
        return f"it is finished; to continue: {shlex.join([*words, '--out', f'{self.path}-{config.epochs}'])}"

    def write_config(self, config: Config) -> None:
        """Writes config.json unless it exists."""
        if not self.config_file.exists():
            atomic_write(self.config_file, config.to_json())

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keeps other processes out of the folder; UserError if one is working in it.

        A new folder to which nothing was written is removed again.
        """
        new = not self.path.exists()
        with locked_folder(self.path, "run"):
            try:
                yield
            finally:
                if new and {file.name for file in self.path.iterdir()} <= LOCKS:
                    shutil.rmtree(self.path)

    def read_metrics(
        self, problems: list[str] | None = None, *, until: int = 0, epochs: float = math.inf
    ) -> list[MetricsRow]:
        """The rows of metrics.jsonl: one for each epoch, from 1 or from the fork on, at least to the epoch `until`.

        A row after `epochs`, the last of the run, is corrupt. Corrupt lines and missing epochs are a UserError, unless
        `problems` is given: they are then described there, and the other rows are returned.
        """
        rows, wrong = list[MetricsRow](), list[str]()
        text = read_text(self.metrics_file, errors="replace") if self.metrics_file.exists() else ""
        for number, line in enumerate(text.splitlines(), 1):
            try:
                row = read_row(line)
                if rows and row["epoch"] <= rows[-1]["epoch"]:
                    raise ValueError(f"epoch {row['epoch']} after epoch {rows[-1]['epoch']}")
                if row["epoch"] > epochs:
                    raise ValueError(f"epoch {row['epoch']} of {epochs}")
                rows.append(row)
            except ValueError as error:
                wrong.append(f"line {number} is corrupt ({error})")
        present = {row["epoch"] for row in rows}
        end = max(present | {until})
        first = 1 if not end or 1 in present else self._first_epoch()
        if missing := sorted(set(range(first, end + 1)) - present):
            wrong.append(f"epochs without a row: {', '.join(map(str, missing[:10]))}{', ...' * (len(missing) > 10)}")
        wrong += ["rows from before the fork"] * any(epoch < first for epoch in present)
        if wrong and problems is None:
            raise UserError(f"{self.metrics_file}: {'; '.join(wrong[:3])}; restore the file or train the run again")
        if problems is not None:
            problems += [f"{self.metrics_file.name}: {problem}" for problem in wrong]
        return rows

    def _first_epoch(self) -> int:
        """The epoch after the fork; 1 if the run is not a fork."""
        config = self.read_config() if self.config_file.exists() else Config()
        return config.fork_source[1] + 1 if config.init_from else 1

    def rewind_metrics(self, epoch: int, *, epochs: int) -> tuple[list[MetricsRow], list[str]]:
        """Removes the rows after this epoch; returns the others, and what is wrong with the file.

        A file with corrupt lines is kept as metrics.jsonl.corrupt.
        """
        problems: list[str] = []
        rows = self.read_metrics(problems, until=epoch, epochs=epochs)
        if any("corrupt" in problem for problem in problems):
            atomic_write(Path(f"{self.metrics_file}.corrupt"), self.metrics_file.read_bytes())
            problems.append(f"it is kept as {self.metrics_file.name}.corrupt")
        kept = [row for row in rows if row["epoch"] <= epoch]
        if self.metrics_file.exists():
            self.write_metrics(kept)
        return kept, problems

    def write_metrics(self, rows: list[MetricsRow]) -> None:
        atomic_write(self.metrics_file, "".join(map(write_row, rows)))

    def read_clock(self, step: int) -> float | None:
        """The seconds of an epoch until the checkpoint at this step; None if they are not known."""
        try:
            seconds = parse_json(read_text(self.clock_file))[str(step)]
            return seconds if isinstance(seconds, float) and 0 <= seconds < math.inf else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def write_clock(self, seconds: Mapping[int, float]) -> None:
        """Keeps the seconds of an epoch until some steps; not in the checkpoint, whose bytes depend on no clock."""
        atomic_write(self.clock_file, json.dumps(seconds))

    def log(self, line: str) -> None:
        append_line(self.log_file, line.rstrip("\n"))
