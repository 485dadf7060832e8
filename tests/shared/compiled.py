"""Tests of compiled code, which torch cannot compile with the checks of shapes that conftest.py installs."""

import os
import subprocess
import sys
from pathlib import Path


def run_untyped(file: Path, which: str) -> None:
    """Runs the tests of the file that the marker expression names, in a process without these checks."""
    command = [sys.executable, "-m", "pytest", str(file), "-m", which, "-o", "timeout=600", "-p", "no:cacheprovider"]
    done = subprocess.run(command, env=os.environ | {"PIXELPART_TYPES": "0"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
