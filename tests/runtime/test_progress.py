"""Bars on a terminal, plain lines elsewhere, nothing if quiet; never on stdout."""

import io

import pytest
from rich.console import Console
from rich.progress import Task

from pixelpart.runtime.progress import RateColumn, Screen


def on_terminal():
    screen = Screen()
    screen.console = Console(file=io.StringIO(), force_terminal=True, width=120, highlight=False)
    return screen, screen.console.file


def test_off_a_terminal_lines_go_to_stderr_as_they_are(capsys):
    screen = Screen()
    line = "epoch 1/3 [mask]: runs/:bug:/part, natural 12.0% " + "x" * 200
    screen.say(line)
    assert capsys.readouterr() == ("", line + "\n")


def test_off_a_terminal_bars_write_nothing(capsys):
    with Screen().bars() as move:
        move("shapes-at", 1, 2, "epoch 1/2")
    assert capsys.readouterr() == ("", "")


def test_quiet_means_quiet(capsys):
    screen = Screen(quiet=True)
    screen.say("hello")
    with screen.bars() as move:
        move("shapes-at", 1, 2, "")
    assert capsys.readouterr() == ("", "")


def test_on_a_terminal_a_bar_shows_title_share_and_note():
    screen, file = on_terminal()
    with screen.bars() as move:
        move("shapes-[at]", 0, 200, "epoch 1/2")
        move("shapes-[at]", 50, 200, "epoch [2]/2")
    shown = file.getvalue()
    assert "shapes-[at]" in shown
    assert "25%" in shown
    assert "epoch [2]/2" in shown


def test_every_title_has_a_bar_of_its_own():
    screen, file = on_terminal()
    with screen.bars() as move:
        move("natural", 10, 10, "90% right")
        move("pgd20", 5, 10, "40% right")
    last = file.getvalue().split("natural")[-1]
    assert "100%" in last
    assert "50%" in last


def test_a_job_of_unknown_length_shows_no_share_that_is_made_up():
    screen, file = on_terminal()
    with screen.bars("B") as move:
        move("cifar10.tar.gz", 1000, 0, "")
    assert "cifar10.tar.gz" in file.getvalue()
    assert "100%" not in file.getvalue()


def test_bars_end_also_after_an_exception():
    screen, file = on_terminal()

    def stopped():
        with screen.bars() as move:
            move("shapes-at", 1, 2, "")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped()
    assert file.getvalue().rstrip("\n").endswith("\x1b[?25h")  # the cursor is back


def test_rate_is_written_with_its_unit():
    class Fast(Task):
        speed = 12345.6

    task = Fast(0, "x", 10, 5, _get_time=lambda: 0.0)
    task.fields["unit"] = "images"
    assert RateColumn().render(task).plain == "12,346 images/s"
