"""pyproject.toml: every dependency is used, the linters are on, and all files are installed."""

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
MODULES = {"pillow": "PIL", "tomli-w": "tomli_w"}


def test_every_dependency_is_imported():
    imported = set()
    for path in (ROOT / "pixelpart").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add(str(node.module).partition(".")[0])
    names = [line.partition(">=")[0] for line in PROJECT["project"]["dependencies"]]
    assert [name for name in names if MODULES.get(name, name) not in imported] == []


def test_ruff_finds_undefined_names_and_accepts_shapes():
    pytest.importorskip("ruff")
    text = 'from jaxtyping import Float\nfrom torch import Tensor\n\nx: Float[Tensor, " b"] = nowhere\n'
    command = [sys.executable, "-m", "ruff", "check", "--output-format", "concise", "--stdin-filename", "x.py", "-"]
    found = subprocess.run(command, input=text, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    assert [line.split()[1] for line in found.splitlines() if line.startswith("x.py")] == ["F821"]
    assert "disable_error_code" not in PROJECT["tool"]["mypy"]


def test_files_other_than_python_are_installed():
    patterns = PROJECT["tool"]["setuptools"]["package-data"]["pixelpart"]
    package = ROOT / "pixelpart"
    listed = {path for pattern in patterns for path in package.glob(pattern)}
    others = {path for path in package.rglob("*.*") if path.is_file() and path.suffix not in (".py", ".pyc")}
    assert others <= listed
