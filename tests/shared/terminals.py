"""Screens that believe to be on a terminal, and what a reader sees there."""

import io
import re

from rich.console import Console

from pixelpart.runtime.progress import Screen


def screen_on_terminal(*, width=100, height=40):
    screen = Screen()
    screen.console = Console(file=io.StringIO(), force_terminal=True, width=width, height=height, highlight=False)
    return screen


def visible_lines(screen):
    """What remains visible: every line, except those that a live display has erased and drawn again."""
    lines = [""]
    for part in re.split(r"(\x1b\[[0-9;?]*[A-Za-z]|\r|\n)", screen.console.file.getvalue()):
        if part == "\n":
            lines.append("")
        elif part == "\x1b[2K":
            lines[-1] = ""
        elif re.fullmatch(r"\x1b\[\d*A", part):
            assert part == "\x1b[1A"
            assert lines.pop() == ""  # the cursor moves up only from lines that are erased
        elif part not in ("", "\r") and not part.startswith("\x1b"):
            lines[-1] += part
    return [line.rstrip() for line in lines if line.strip()]
