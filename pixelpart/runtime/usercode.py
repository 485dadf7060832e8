"""User code named `module:function` on the command line or in the API: imported and called, with one-line errors.

Importing runs the module, so only names that the caller gave may come here, never names read from a file.
"""

import contextlib
import difflib
import importlib
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pixelpart.errors import UserError

NAME = re.compile(r"([^\W\d]\w*(?:\.[^\W\d]\w*)*):([^\W\d]\w*)")
LIBRARIES = [Path(sysconfig.get_path(kind)) for kind in ("stdlib", "purelib", "platlib")]
LIBRARIES.append(Path(__file__).parents[1])


def parse_name(name: str) -> tuple[str, str]:
    """Module and function of `module:function`; nothing is imported."""
    match = NAME.fullmatch(name)
    if match and not match[1].endswith(".py"):
        return match[1], match[2]
    raise UserError(f"{name!r} is not module:function; write mymodels:robust for the function robust in mymodels.py")


def load(name: str) -> Any:
    """The object that `module:function` names; modules in the working folder come first."""
    module_name, attribute = parse_name(name)
    importlib.invalidate_caches()  # the file may have been written after this process started
    try:
        with _user_code():
            module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and f"{module_name}.".startswith(f"{missing}."):
            raise UserError(f"no module {missing!r}, neither in this folder nor among the installed ones") from None
        raise failure(module_name, error) from error
    if hasattr(module, attribute):
        return getattr(module, attribute)
    functions = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
    defined = [key for key in functions if getattr(vars(module)[key], "__module__", None) == module_name]
    close = difflib.get_close_matches(attribute, functions, n=3, cutoff=0.5)
    choices = f"it has: {', '.join(sorted(defined)[:8]) or 'no function'}"
    hint = f"did you mean {' or '.join(close)}?" if close else choices
    raise UserError(f"{module_name} has no {attribute!r}; {hint}")


def load_function(name: str) -> Callable[..., Any]:
    """The function or class that `module:function` names."""
    function = load(name)
    if not callable(function):
        raise UserError(f"{name} is a {type(function).__name__}; name a function")
    return function


def call(name: str, *args: Any, **kwargs: Any) -> Any:
    """The value that the function returns for these arguments."""
    function = load_function(name)
    try:
        with _user_code():
            return function(*args, **kwargs)
    except (Exception, SystemExit) as error:
        raise failure(f"{name}({', '.join(map(repr, args))})" if args else name, error) from error


def failure(what: str, error: BaseException) -> UserError:
    """A UserError in one line: what failed, the exception, and the line of the user's own code that led to it."""
    message = " ".join(str(error).split())
    text = f"{type(error).__name__}: {message}" if message else type(error).__name__
    return UserError(f"{what} fails with {text if len(text) <= 300 else text[:297] + '...'} ({_location(error)})")


def _location(error: BaseException) -> str:
    """file:line of the last frame in the user's code, else of the last frame in a library."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{_relative(error.filename)}:{error.lineno}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<")]
    users = [frame for frame in frames if not any(Path(frame.filename).is_relative_to(home) for home in LIBRARIES)]
    last = (users or frames)[-1]
    return f"{_relative(last.filename)}:{last.lineno}"


def _relative(file: str) -> Path:
    path = Path(file)
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


@contextlib.contextmanager
def _user_code() -> Iterator[None]:
    """Modules are looked up in the working folder first, as `python -m` does; stdout, kept for results, is stderr."""
    folder = os.getcwd()
    sys.path.insert(0, folder)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        with contextlib.suppress(ValueError):  # the user's code may have removed it
            sys.path.remove(folder)
