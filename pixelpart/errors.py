"""Errors, and the message for a name that is not in a table."""

import difflib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


class UserError(ValueError):
    """A user's mistake. The message is one line with the value and the choices; the command line exits with 2."""

    def __init__(self, message: object) -> None:
        super().__init__(one_line(str(message)))


class Diverged(RuntimeError):
    """The training loss became NaN or infinite. The last good checkpoint is kept; the command line exits with 1."""


def one_line(text: str) -> str:
    """The text with control characters and line breaks escaped: what comes from a file cannot drive a terminal."""
    return re.sub(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]", lambda match: repr(match[0])[1:-1], text)


def choose(table: Mapping[str, T], name: str, what: str, *, listed: str = "") -> T:
    """table[name]; UserError with similar names and the choices if there is no such entry; see `unknown`."""
    if name not in table:
        raise unknown(what, name, table, listed=listed)
    return table[name]


def unknown(what: str, name: object, choices: Iterable[str], *, listed: str = "") -> UserError:
    """The error for a name that is none of the choices; `listed`, of a long table, says where they are listed."""
    names = sorted(choices)
    return UserError(
        f"unknown {what} {name!r}; {did_you_mean(name, names)}{listed or 'choose from ' + ', '.join(names)}"
    )


def did_you_mean(name: object, choices: Iterable[str]) -> str:
    """The question "did you mean ...? " with up to three similar names; empty if there are none."""
    similar = similar_names(name, choices)
    return f"did you mean {' or '.join(similar)}? " if similar else ""


def similar_names(name: object, choices: Iterable[str]) -> list[str]:
    names = {choice.lower(): choice for choice in choices}
    return [names[key] for key in difflib.get_close_matches(str(name).lower(), names, n=3, cutoff=0.6)]


def similar_path(path: Path) -> str:
    """The same question for a path that does not exist, with the names in its folder."""
    there = (other.name for other in path.parent.iterdir()) if path.parent.is_dir() else ()
    return did_you_mean(path, [str(path.parent / name) for name in similar_names(path.name, there)])
