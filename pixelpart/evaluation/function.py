"""`module:function`: a model that the user's own code makes.

Such a name comes from the command line or the API, never from a file: naming it is running it.
"""

import contextlib
import difflib
import importlib
import inspect
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from pixelpart.errors import UserError

NAME = re.compile(r"([^\W\d]\w*(?:\.[^\W\d]\w*)*):([^\W\d]\w*)")
LIBRARIES = [Path(sysconfig.get_path(kind)) for kind in ("stdlib", "purelib", "platlib")]
LIBRARIES += [Path(__file__).parents[1], Path(torch.__file__).parent]


def parse_name(name: str) -> tuple[str, str]:
    """Module and function of `module:function`; nothing is imported."""
    match = NAME.fullmatch(name)
    if match and not match[1].endswith(".py"):
        return match[1], match[2]
    raise UserError(f"{name!r} is not module:function; write mymodels:robust for the function robust in mymodels.py")


def make_model(name: str, *, device: torch.device) -> nn.Module:
    """What the function returns, called with `device` if it takes that and without arguments if not."""
    home, function = parse_name(name)
    with _working_folder_first(), contextlib.redirect_stdout(sys.stderr):  # stdout is for results
        maker = _attribute(_module(home), function)
        if isinstance(maker, nn.Module):
            return maker
        if not callable(maker):
            raise UserError(f"{name} is a {type(maker).__name__}; name a function that returns an nn.Module")
        settings = _settings(name, maker, device)
        try:
            model = maker(**settings)
        except (Exception, SystemExit) as error:  # the user's own code: it may fail in any way
            raise _failed(name, error) from error
    if not isinstance(model, nn.Module):
        raise UserError(f"{name} returned a {type(model).__name__}; it must return an nn.Module on [0,1] images")
    return model


def _module(name: str) -> ModuleType:
    importlib.invalidate_caches()  # the file may be younger than this process
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and f"{name}.".startswith(f"{missing}."):
            raise UserError(f"no module {missing!r}, neither in this folder nor among the installed ones") from None
        raise _failed(name, error) from error


def _attribute(module: ModuleType, name: str) -> Any:
    if hasattr(module, name):
        return getattr(module, name)
    offered = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
    own = [key for key in offered if getattr(vars(module)[key], "__module__", None) == module.__name__]
    near = difflib.get_close_matches(name, offered, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"it has: {', '.join(sorted(own)[:8]) or 'no function'}"
    raise UserError(f"{module.__name__} has no {name!r}; {hint}")


def _settings(name: str, maker: Callable[..., Any], device: torch.device) -> dict[str, Any]:
    try:
        signature = inspect.signature(maker)
    except (TypeError, ValueError):  # a builtin that does not tell
        return {}
    settings = {"device": device} if "device" in signature.parameters else {}
    try:
        signature.bind(**settings)
    except TypeError as error:
        raise UserError(f"{name} is called without arguments, or with device alone: {error}") from None
    return settings


def _failed(name: str, error: BaseException) -> UserError:
    said = " ".join(str(error).split())
    what = f"{type(error).__name__}: {said}" if said else type(error).__name__
    return UserError(f"{name} fails with {what if len(what) <= 300 else what[:297] + '...'} ({_where(error)})")


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
def _working_folder_first() -> Iterator[None]:
    """Modules are looked for in the working folder first, as `python -m` does."""
    here = os.getcwd()
    sys.path.insert(0, here)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):  # the user's code may have taken it off
            sys.path.remove(here)
