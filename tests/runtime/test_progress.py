"""Bars and tables on a terminal, plain lines elsewhere, nothing if quiet; never on stdout."""

import time

import pytest

from pixelpart.runtime import progress
from pixelpart.runtime.progress import LiveTable, Screen
from terminals import screen_on_terminal, visible_lines


@pytest.fixture
def terminal():
    return screen_on_terminal(width=120)


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


@pytest.mark.parametrize(("width", "height"), [(100, 40), (60, 40), (60, 8)])
def test_table_keeps_its_last_rows_and_the_current_one_above_the_bar(width, height):
    screen, table = screen_on_terminal(width=width, height=height), LiveTable(["epoch", "loss"])
    with screen.bars(table=table) as update:
        for epoch in range(1, 30):
            table.current = [f"{epoch}/29", ""]
            update("[shapes]-part", epoch * 100, 2900, "")
            table.rows.append([f"{epoch}/29", f"0.{epoch}"])
            table.current = []
        table.current = ["[30]", ""]
    lines = visible_lines(screen)
    head = max(n for n, line in enumerate(lines) if line.split() == ["epoch", "loss"])
    assert lines[-1].startswith("[shapes]-part ")
    assert lines[-2].split() == ["[30]"]
    assert lines[-3].split() == ["29/29", "0.29"]
    assert len(lines) - head == min(progress.TABLE_ROWS + 2, height - 1)  # one line is left for the prompt
    assert all(len(line) <= width for line in lines)


def test_bars_end_after_an_exception(terminal):
    def stopped():
        with terminal.bars() as update:
            update("shapes-at", 1, 2, "")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped()
    assert terminal.console.file.getvalue().rstrip("\n").endswith("\x1b[?25h")  # the cursor is visible again


def test_without_a_terminal_a_line_appears_at_least_every_interval_also_inside_one_long_step(capsys, monkeypatch):
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.02)

    def next_lines():
        deadline = time.monotonic() + 20
        while not (lines := capsys.readouterr().err.splitlines()) and time.monotonic() < deadline:
            time.sleep(0.01)
        return lines

    with Screen().bars("tries") as update:
        assert next_lines()[0] == "working, 0 s so far"  # before the first step ends
        update("autoattack apgd-ce", 100, 2000, "80.00% correct")
        update("autoattack apgd-ce", 300, 2000, "70.00% correct")
        next_lines()
        for _ in range(2):  # in the middle of a step
            assert next_lines()[-1].startswith("autoattack apgd-ce: 300 of 2,000 tries, 70.00% correct, ")
    capsys.readouterr()
    time.sleep(0.1)
    assert capsys.readouterr() == ("", "")  # it ends with the work


def test_without_a_terminal_progress_is_shown_once_early_although_other_lines_appear(capsys, monkeypatch):
    monkeypatch.setattr(progress, "FIRST_SECONDS", 0.05)
    screen, deadline, shown = Screen(), time.monotonic() + 20, ""
    with screen.bars(time_left=lambda: "at least 9 min left") as update:
        while "left" not in shown and time.monotonic() < deadline:
            update("shapes-at", 1, 200, "epoch 1/2")
            screen.say("epoch 1/2 plain")
            time.sleep(0.01)
            shown += capsys.readouterr().err
    assert "shapes-at: 1 of 200 images, epoch 1/2, 0 s, at least 9 min left" in shown


def test_line_shows_rate_and_time_left_by_the_clock(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    line = progress.PlainLine("images")
    line.update("shapes-at", 600, 6000, "epoch 2/12")
    now[0] += 120
    line.update("shapes-at", 1200, 6000, "epoch 3/12")
    assert line.text() == "shapes-at: 1,200 of 6,000 images, epoch 3/12, 2 min, about 16 min left"
    line.update("get", 70, 0, "")
    assert line.text() == "get: 70 images, 0 s"
