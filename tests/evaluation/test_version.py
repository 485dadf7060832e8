"""ATTACKS_VERSION is in every key of a result; this test asks for a decision when the code behind results changes.

After deciding: `python tests/evaluation/test_version.py` writes the new digest into this file.
"""

import ast
import hashlib
import re
from pathlib import Path

import pixelpart
from pixelpart.evaluation.store import ATTACKS_VERSION

DECIDED = (1, "046796b6aa63da6c")  # ATTACKS_VERSION, and the digest of the sources that it was decided for

ROOT = Path(pixelpart.__file__).parent
SOURCES = [
    *sorted((ROOT / "attacks").glob("*.py")),
    *sorted((ROOT / "view").glob("*.py")),
    *(ROOT / name for name in ("losses.py", "draws.py", "runtime/precision.py")),
    *(ROOT / "evaluation" / f"{name}.py" for name in ("measure", "adaptive", "images", "reference")),
]


def code_of(text: str) -> str:
    """The syntax tree of a file without comments and docstrings."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
    return ast.dump(tree)


def digest() -> str:
    total = hashlib.sha256()
    for path in SOURCES:
        total.update(f"{path.relative_to(ROOT)} {code_of(path.read_text(encoding='utf-8'))};".encode())
    return total.hexdigest()[:16]


def test_attacks_version_was_decided_for_the_present_sources():
    assert (ATTACKS_VERSION, digest()) == DECIDED, (
        "code that decides outcomes has changed: decide whether ATTACKS_VERSION (evaluation/store.py) moves, then "
        "update the digest: python tests/evaluation/test_version.py"
    )


def test_comments_and_docstrings_do_not_change_the_digest():
    code = 'def f(x):\n    """{}"""\n    return x + {}  # {}\n'
    assert code_of(code.format("one", 1, "a")) == code_of(code.format("two", 1, "b"))
    assert code_of(code.format("one", 1, "a")) != code_of(code.format("one", 2, "a"))


if __name__ == "__main__":
    here = Path(__file__)
    line = f'DECIDED = ({ATTACKS_VERSION}, "{digest()}")'
    here.write_text(re.sub(r"^DECIDED = \(.*?\)", line, here.read_text(), count=1, flags=re.M))
    print(line)
