"""Progress of long jobs: live bars with rate and time left on a terminal, plain lines elsewhere, nothing if quiet."""

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout

from rich.console import Console, RenderableType
from rich.progress import BarColumn, ProgressColumn, Task, TaskID, TextColumn
from rich.progress import Progress as Bars
from rich.table import Table
from rich.text import Text

LINE_SECONDS = 60.0  # without a terminal, a line appears at least this often
TABLE_ROWS = 10  # of a live table, the last ones
Progress = Callable[[str, int, int, str], None]  # title, done, total (0: unknown), note after the bar


class Screen:
    """Shows lines and progress bars on stderr; results go to stdout."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.quiet = quiet
        self.console = Console(file=sys.stderr, highlight=False, emoji=False, soft_wrap=True)
        self.spoke_at = time.monotonic()

    @property
    def live(self) -> bool:
        """Whether bars and tables are shown, instead of plain lines."""
        return not self.quiet and self.console.is_terminal

    def say(self, line: str) -> None:
        """Prints a line."""
        if not self.quiet:
            self.console.print(line, markup=False)
        self.spoke_at = time.monotonic()

    @contextmanager
    def bars(self, unit: str = "images", *, table: "LiveTable | None" = None) -> Iterator[Progress]:
        """Yields a function that updates the bar of a title, created on first use; without a terminal see `lines`.

        The table is shown above the bars, and stays on the screen with them. Inside, what a network prints goes to
        stderr.
        """
        if not self.live:
            with redirect_stdout(sys.stderr), self.lines(unit) as update:
                yield update
            return
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(max(5, min(40, self.console.width - 50))),
            TextColumn("{task.percentage:>3.0f}%"),
            RateColumn(),
            TimeLeftColumn(),
            TextColumn("{task.fields[note]}", markup=False),
        )
        tasks: dict[str, TaskID] = {}
        bars = BarsBelowTable(*columns, console=self.console, speed_estimate_period=30)
        bars.table = table
        with redirect_stdout(sys.stderr), bars as live:

            def update(title: str, done: int, total: int, note: str) -> None:
                if title not in tasks:
                    tasks[title] = live.add_task(title, total=total or None, completed=done, unit=unit, note=note)
                live.update(tasks[title], completed=done, total=total or None, note=note)

            yield update

    @contextmanager
    def lines(self, unit: str = "images") -> Iterator[Progress]:
        """Yields a function that notes the progress; without a terminal it is printed at least every LINE_SECONDS.

        A thread prints it, so that a line also appears inside a step that takes longer.
        """
        if self.quiet or self.live:
            yield silent
            return
        latest, ended = PlainLine(unit), threading.Event()

        def print_lines() -> None:
            while not ended.wait(max(0.0, self.spoke_at + LINE_SECONDS - time.monotonic())):
                if time.monotonic() - self.spoke_at >= LINE_SECONDS:
                    self.say(latest.text())

        self.spoke_at = time.monotonic()
        thread = threading.Thread(target=print_lines, daemon=True)
        thread.start()
        try:
            yield latest.update
        finally:
            ended.set()
            thread.join()


class PlainLine:
    """The latest progress as a line: "shapes-at: 1,200 of 6,000 images, epoch 3/12, 2 min, about 8 min left"."""

    def __init__(self, unit: str) -> None:
        self.unit, self.began = unit, time.monotonic()
        self.first: dict[str, tuple[float, int]] = {}  # when a title was first seen, and what was done by then
        self.latest: tuple[str, int, int, str] | None = None

    def update(self, title: str, done: int, total: int, note: str) -> None:
        self.first.setdefault(title, (time.monotonic(), done))
        self.latest = title, done, total, note

    def text(self) -> str:
        now = time.monotonic()
        if self.latest is None:
            return f"working, {_duration(now - self.began)} so far"
        title, done, total, note = self.latest
        since, before = self.first[title]
        parts = [
            f"{done:,} of {total:,} {self.unit}" if total else f"{done:,} {self.unit}",
            note,
            _duration(now - since),
        ]
        if total / 20 < done - before < total - before:  # the first tries of an attack say little
            parts.append(f"about {_duration((now - since) * (total - done) / (done - before))} left")
        return f"{title}: {', '.join(part for part in parts if part)}"


def _duration(seconds: float) -> str:
    return (
        f"{seconds:.0f} s"
        if seconds < 100
        else f"{seconds / 60:.0f} min"
        if seconds < 6000
        else f"{seconds / 3600:.1f} h"
    )


def silent(title: str, done: int, total: int, note: str = "") -> None:
    """A Progress that shows nothing."""


class RateColumn(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(f"{task.speed:,.0f} {task.fields['unit']}/s" if task.speed else "")


class TimeLeftColumn(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(f"{_duration(task.time_remaining)} left" if task.time_remaining else "")


class LiveTable:
    """Finished rows, of which the last are shown, and below them the row in progress."""

    def __init__(self, head: Sequence[str]) -> None:
        self.head = head
        self.rows: list[Sequence[str]] = []
        self.current: Sequence[str] = ()

    def last_rows(self, height: int) -> Table:
        rows = [*self.rows, self.current] if self.current else self.rows
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for name in self.head:
            table.add_column(Text(name), justify="right", no_wrap=True)
        for row in rows[-max(1, min(height, TABLE_ROWS)) :]:
            table.add_row(*map(Text, row))
        return table


class BarsBelowTable(Bars):
    table: LiveTable | None = None

    def get_renderables(self) -> Iterable[RenderableType]:
        if self.table is not None:
            yield self.table.last_rows(self.console.height - len(self.tasks) - 2)
        yield from super().get_renderables()
