"""Imports go one way: base, then the rooms, which do not know each other, then run, evaluation, engine, ..."""

import ast
import subprocess
import sys
from pathlib import Path

import pixelpart

ROOT = Path(pixelpart.__file__).parent
BASE = ["types", "errors", "version", "files", "config", "recipes", "losses", "draws", "runtime", "kernels", "view"]
ROOMS = {"data", "models", "masks", "attacks", "objectives"}
LATER = ["runs", "evaluation", "exports", "comparison", "listing", "engine", "sweeps", "experiments", "bench"]
LATER += ["report", "cli", "__main__"]


def allowed(place: str) -> set[str]:
    if place in BASE:
        return set(BASE[: BASE.index(place) + 1])
    if place in ROOMS:
        return {*BASE, place}
    return {*BASE, *ROOMS, *LATER[: LATER.index(place) + 1]}


def imports_of(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            found |= (
                {f"{node.module}.{alias.name}" for alias in node.names}
                if node.module == "pixelpart"
                else {node.module or ""}
            )
    return {name.split(".")[1] for name in found if name.startswith("pixelpart.")}


def test_imports_go_one_way():
    wrong = []
    for path in ROOT.rglob("*.py"):
        place = path.relative_to(ROOT).parts[0].removesuffix(".py")
        if place == "__init__":
            continue
        wrong += [
            f"{path.relative_to(ROOT)} imports {name}" for name in imports_of(path) - {"__version__"} - allowed(place)
        ]
    assert not wrong


def test_attacks_load_no_kernels_and_evaluation_loads_no_scipy():
    late = ("evaluation.evaluate", "comparison.compare", "evaluation.corruptions")
    code = "import sys, pixelpart.attacks; assert 'pixelpart.kernels' not in sys.modules; "
    code += f"import {', '.join(f'pixelpart.{name}' for name in late)}; assert 'scipy' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0
