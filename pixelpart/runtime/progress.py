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
FIRST_SECONDS, NEXT_SECONDS = 30.0, 600.0  # when progress is shown whatever other lines appear: first, and then
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
    def bars(
        self, unit: str = "images", *, table: "LiveTable | None" = None, time_left: Callable[[], str] | None = None
    ) -> Iterator[Progress]:
        """Yields a function that updates the bar of a title, created on first use; without a terminal see `lines`.

        The table is shown above the bars, and stays on the screen with them. Inside, what a network prints goes to
        stderr. `time_left` says how long it takes, such as "about 5 min left", where images do not take equally long.
        """
        if not self.live:
            with redirect_stdout(sys.stderr), self.lines(unit, time_left=time_left) as update:
                yield update
            return
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(max(5, min(40, self.console.width - 50))),
            TextColumn("{task.percentage:>3.0f}%"),
            RateColumn(),
            TimeLeftColumn(time_left),
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
    def lines(self, unit: str = "images", *, time_left: Callable[[], str] | None = None) -> Iterator[Progress]:
        """Yields a function that notes the progress; without a terminal it is printed at least every LINE_SECONDS.

        A thread prints it, so that a line also appears inside a step that takes longer.
        """
        if self.quiet or self.live:
            yield silent
            return
        latest, ended = PlainLine(unit, time_left), threading.Event()

        def print_lines() -> None:
            always_at = time.monotonic() + FIRST_SECONDS
            while not ended.wait(max(0.0, min(self.spoke_at + LINE_SECONDS, always_at) - time.monotonic())):
                if time.monotonic() >= min(self.spoke_at + LINE_SECONDS, always_at):
                    self.say(latest.text())
                    always_at = time.monotonic() + NEXT_SECONDS

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

    def __init__(self, unit: str, time_left: Callable[[], str] | None = None) -> None:
        self.unit, self.time_left, self.began = unit, time_left, time.monotonic()
        self.first: dict[str, tuple[float, int]] = {}  # when a title was first seen, and what was done by then
        self.latest: tuple[str, int, int, str] | None = None

    def update(self, title: str, done: int, total: int, note: str) -> None:
        self.first.setdefault(title, (time.monotonic(), done))
        self.latest = title, done, total, note

    def text(self) -> str:
        now = time.monotonic()
        if self.latest is None:
            return f"working, {duration(now - self.began)} so far"
        title, done, total, note = self.latest
        since, before = self.first[title]
        parts = [
            f"{done:,} of {total:,} {self.unit}" if total else f"{done:,} {self.unit}",
            note,
            duration(now - since),
        ]
        if self.time_left:
            parts.append(self.time_left())
        elif total / 20 < done - before < total - before:  # the first tries of an attack say little
            parts.append(f"about {duration((now - since) * (total - done) / (done - before))} left")
        return f"{title}: {', '.join(part for part in parts if part)}"


def duration(seconds: float) -> str:
    """Such as "90 s", "5 min" or "2.8 h"."""
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
    def __init__(self, time_left: Callable[[], str] | None) -> None:
        super().__init__()
        self.time_left = time_left

    def render(self, task: Task) -> Text:
        if self.time_left:
            return Text(self.time_left())
        return Text(f"{duration(task.time_remaining)} left" if task.time_remaining else "")


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
