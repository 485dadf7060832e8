"""Progress of long jobs: live bars with rate and time left on a terminal, plain lines elsewhere, nothing if quiet."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout

from rich.console import Console
from rich.progress import BarColumn, ProgressColumn, Task, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as LiveBars
from rich.text import Text

Progress = Callable[[str, int, int, str], None]  # title, done, total (0: unknown), note after the bar


class Screen:
    """Shows lines and progress bars on stderr; results go to stdout."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.quiet = quiet
        self.console = Console(file=sys.stderr, highlight=False, emoji=False, soft_wrap=True)

    def say(self, line: str) -> None:
        """Prints a line."""
        if not self.quiet:
            self.console.print(line, markup=False)

    @contextmanager
    def bars(self, unit: str = "images") -> Iterator[Progress]:
        """Yields a function that updates the bar of a title, created on first use; no-op without a terminal.

        Inside, what a network prints goes to stderr.
        """
        if self.quiet or not self.console.is_terminal:
            with redirect_stdout(sys.stderr):
                yield silent
            return
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}%"),
            RateColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}", markup=False),
        )
        tasks: dict[str, TaskID] = {}
        with redirect_stdout(sys.stderr), LiveBars(*columns, console=self.console, speed_estimate_period=10) as live:

            def update(title: str, done: int, total: int, note: str) -> None:
                if title not in tasks:
                    tasks[title] = live.add_task(title, total=total or None, completed=done, unit=unit, note=note)
                live.update(tasks[title], completed=done, total=total or None, note=note)

            yield update


def silent(title: str, done: int, total: int, note: str = "") -> None:
    """A Progress that shows nothing."""


class RateColumn(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(f"{task.speed:,.0f} {task.fields['unit']}/s" if task.speed else "")
