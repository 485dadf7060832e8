"""`module:function`: code of the user's own, named on the command line or in the API.

Such a name never comes from a file: naming it is running it.
"""

import contextlib
import difflib
import importlib
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from pixelpart.errors import UserError

NAME = re.compile(r"([^\W\d]\w*(?:\.[^\W\d]\w*)*):([^\W\d]\w*)")
LIBRARIES = [Path(sysconfig.get_path(kind)) for kind in ("stdlib", "purelib", "platlib")]
LIBRARIES += [Path(__file__).parent, Path(torch.__file__).parent]


def parse_name(name: str) -> tuple[str, str]:
    """Module and function of `module:function`; nothing is imported."""
    match = NAME.fullmatch(name)
    if match and not match[1].endswith(".py"):
        return match[1], match[2]
    raise UserError(f"{name!r} is not module:function; write mymodels:robust for the function robust in mymodels.py")


def find_named(name: str) -> Any:
    """What module:function names, looked for in the working folder first; call it inside `working_folder_first`."""
    home, function = parse_name(name)
    return _attribute(_module(home), function)


def failed(name: str, error: BaseException) -> UserError:
    said = " ".join(str(error).split())
    what = f"{type(error).__name__}: {said}" if said else type(error).__name__
    return UserError(f"{name} fails with {what if len(what) <= 300 else what[:297] + '...'} ({_where(error)})")


def _module(name: str) -> ModuleType:
    importlib.invalidate_caches()  # the file may be younger than this process
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and f"{name}.".startswith(f"{missing}."):
            raise UserError(f"no module {missing!r}, neither in this folder nor among the installed ones") from None
        raise failed(name, error) from error


def _attribute(module: ModuleType, name: str) -> Any:
    if hasattr(module, name):
        return getattr(module, name)
    offered = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
    own = [key for key in offered if getattr(vars(module)[key], "__module__", None) == module.__name__]
    near = difflib.get_close_matches(name, offered, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"it has: {', '.join(sorted(own)[:8]) or 'no function'}"
    raise UserError(f"{module.__name__} has no {name!r}; {hint}")


def _where(error: BaseException) -> str:
    """The line of the user's own that led there; one of a library where none did."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{_short(error.filename)}:{error.lineno}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<")]
    own = [frame for frame in frames if not any(Path(frame.filename).is_relative_to(home) for home in LIBRARIES)]
    last = (own or frames)[-1]
    return f"{_short(last.filename)}:{last.lineno}"


def _short(file: str) -> str:
    path = Path(file)
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


@contextlib.contextmanager
def working_folder_first() -> Iterator[None]:
    """Modules are looked for in the working folder first, as `python -m` does."""
    here = os.getcwd()
    sys.path.insert(0, here)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):  # the user's code may have taken it off
            sys.path.remove(here)
