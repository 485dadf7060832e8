"""The command line as a program: its commands, its help and its output streams."""

import os
import subprocess
import sys

import pytest

from command_line import run_python
from pixelpart.cli.main import COMMANDS, main
from pixelpart.version import code_version


def test_help_lists_every_command(capsys):
    for args in ([], ["--help"], ["-h"]):
        assert main(args) == 0
        out, err = capsys.readouterr()
        assert err == ""
        assert all(f"  {name} " in out for name in COMMANDS)
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"pixelpart {code_version()}\n"


@pytest.mark.parametrize("command", [*COMMANDS, "train shapes-at"])
def test_every_command_has_help(capsys, command):
    assert main([*command.split(), "--help"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith(f"usage: pixelpart {command}")
    assert err == ""
    assert "(default: )" not in out


def test_help_and_mistakes_do_not_import_torch():
    code = "import sys; from pixelpart.cli.main import COMMANDS, main\n"
    code += "for name in [*COMMANDS, 'train shapes-at']: main([*name.split(), '--help'])\n"
    code += "main(['train', 'shapes-at', '--x'])\n"
    code += "sys.exit('torch' in sys.modules)"
    assert run_python("-c", code).returncode == 0


def test_help_shows_defaults(capsys):
    assert main(["train", "cifar10-part", "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "without the mask (default: 20)" in text
    assert "(default: 7/255)" in text
    assert main(["evaluate", "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    for default in (
        "8/255",
        "2/255, or eps/4 if that is less",
        "natural,pgd20",
        "best",
        "all",
        "auto",
        "own",
        "0",
        "1",
    ):
        assert f"(default: {default})" in text


def test_user_code_that_calls_sys_exit_is_a_fault_not_a_success(monkeypatch, capsys):
    monkeypatch.setitem(COMMANDS, "demo", lambda args: sys.exit(0))
    assert main(["demo"]) == 1
    assert capsys.readouterr().err == "pixelpart: user code called sys.exit(0) during the command\n"


def test_module_runs_the_command_line():
    result = run_python("-m", "pixelpart", "train", "shapes-at", "--eps", "1/0")
    assert result.returncode == 2
    assert result.stderr == "pixelpart: shapes-at: eps: '1/0' is not a number or a fraction such as 8/255\n"
    assert result.stdout == ""


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_reader_that_has_ended_causes_no_traceback(unbuffered):
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "pixelpart", "train", "shapes-at", "--help"]
    env = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    result = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, env=env, timeout=50)
    os.close(write)
    assert result.stderr == ""
    assert result.returncode in (0, 1)


def test_waiting_threads_do_not_take_the_core_of_another_command(monkeypatch):
    """Before torch is imported, because OpenMP reads the variable only once."""
    code = "import os, sys; from pixelpart.cli.main import main; assert 'torch' not in sys.modules; "
    code += "main(['--version']); print(os.environ['GOMP_SPINCOUNT'])"
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    assert run_python("-c", code).stdout.split()[-1] == "1000"
    monkeypatch.setenv("GOMP_SPINCOUNT", "5")
    assert run_python("-c", code).stdout.split()[-1] == "5"
