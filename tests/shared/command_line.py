"""The command line on the first images of `shapes`."""

import dataclasses
import functools
import subprocess
import sys

from pixelpart import data
from pixelpart.cli.main import main

SOME = 160
TINY = ["--batch-size", "50", "--holdout", "10", "--probe", "16", "--attack.steps", "1", "--device", "cpu"]


@functools.cache
def some(split):
    return tuple(tensor[:SOME] for tensor in data.shapes.generate(split))


@functools.cache
def some_masks(split, root=None):
    return data.shapes.object_masks(split)[:SOME]


def few():
    return dataclasses.replace(data.SETS["shapes"], load=lambda split, *_: some(split), masks=some_masks)


def files(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}


def mistake(capsys, args, message, code=2):
    """Runs a command that has to fail: exit code `code`, `message` in the last line of stderr, nothing on stdout."""
    capsys.readouterr()
    assert main([str(arg) for arg in args]) == code
    out, err = capsys.readouterr()
    assert out == ""
    last = err.splitlines()[-1]
    assert last.startswith("pixelpart: ")
    assert message in last
    assert "Traceback" not in err
    return err


def run_python(*args, **settings):
    return subprocess.run([sys.executable, *args], capture_output=True, text=True, timeout=50, **settings)
