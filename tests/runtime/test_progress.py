"""Bars on a terminal, plain lines elsewhere, nothing if quiet; never on stdout."""

import io

import pytest
from rich.console import Console

from pixelpart.runtime.progress import Screen


@pytest.fixture
def terminal():
    screen = Screen()
    screen.console = Console(file=io.StringIO(), force_terminal=True, width=120, highlight=False)
    return screen


def test_without_a_terminal_lines_go_to_stderr_and_bars_show_nothing(capsys):
    screen = Screen()
    line = "epoch 1/3 [mask]: runs/:bug:/part, natural 12.0% " + "x" * 200
    screen.say(line)
    with screen.bars() as update:
        update("shapes-at", 1, 2, "epoch 1/2")
    assert capsys.readouterr() == ("", line + "\n")


def test_quiet_screen_shows_nothing(capsys):
    screen = Screen(quiet=True)
    screen.say("hello")
    with screen.bars() as update:
        update("shapes-at", 1, 2, "")
    assert capsys.readouterr() == ("", "")


def test_bars_show_title_percentage_and_note(terminal):
    with terminal.bars() as update:
        update("shapes-[at]", 0, 200, "epoch 1/2")
        update("shapes-[at]", 50, 200, "epoch [2]/2")
        update("natural", 10, 10, "90% right")
        update("cifar10.tar.gz", 1000, 0, "")  # of unknown length
    last = terminal.console.file.getvalue().split("shapes-[at]")[-1]
    assert "25%" in last
    assert "epoch [2]/2" in last
    assert last.count("100%") == 1
    assert "cifar10.tar.gz" in last


def test_bars_end_after_an_exception(terminal):
    def stopped():
        with terminal.bars() as update:
            update("shapes-at", 1, 2, "")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped()
    assert terminal.console.file.getvalue().rstrip("\n").endswith("\x1b[?25h")  # the cursor is visible again
