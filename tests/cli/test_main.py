"""The command line as a program: what it offers, and that it ends well whoever reads it."""

import os
import subprocess
import sys

import pytest

from command_line import run_python
from pixelpart import __version__
from pixelpart.cli.main import COMMANDS, main

# -- what there is


def test_no_command_and_help_list_every_command(capsys):
    for args in ([], ["--help"], ["-h"]):
        assert main(args) == 0
        out, err = capsys.readouterr()
        assert err == ""
        assert all(f"  {name} " in out for name in COMMANDS)


def test_version_is_the_packages(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"pixelpart {__version__}\n"


@pytest.mark.parametrize("command", [*COMMANDS, "train shapes-at"])
def test_every_command_has_help(capsys, command):
    assert main([*command.split(), "--help"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith(f"usage: pixelpart {command.split()[0]}")
    assert err == ""


def test_help_of_a_recipe_shows_its_own_values(capsys):
    assert main(["train", "cifar10-part", "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "first epochs, trained without the mask (here: 20)" in text
    assert "--mask.rule RULE which pixels keep eps" in text


# -- processes of their own


def test_the_module_and_the_command_are_the_same_program():
    result = run_python("-m", "pixelpart", "train", "shapes-at", "--eps", "1/0")
    assert result.returncode == 2
    assert result.stderr == "pixelpart: shapes-at: eps: '1/0' is not a number or a fraction such as 8/255\n"
    assert result.stdout == ""


@pytest.mark.parametrize(
    "args", [["--help"], ["train", "shapes-at", "--help"], ["train", "shapes-at", "--print-config"]]
)
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_has_gone_is_no_reason_for_a_traceback(args, unbuffered):
    read, write = os.pipe()
    os.close(read)
    env = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    result = subprocess.run(
        [sys.executable, "-m", "pixelpart", *args], stdout=write, stderr=subprocess.PIPE, text=True, env=env, timeout=50
    )
    os.close(write)
    assert result.stderr == ""
    assert result.returncode in (0, 1)


def test_closed_stdout_is_no_reason_either():
    result = subprocess.run(f"{sys.executable} -m pixelpart --help >&-", shell=True, stderr=subprocess.PIPE, timeout=50)
    assert (result.returncode, result.stderr) == (0, b"")
