"""Errors, and the message for a name that is not in a table."""

from collections.abc import Iterable, Mapping
from typing import TypeVar

T = TypeVar("T")


class UserError(ValueError):
    """A user's mistake. The message is one line with the value and the choices; the command line exits with 2."""


class Diverged(RuntimeError):
    """The training loss became NaN or infinite. The last good checkpoint is kept; the command line exits with 1."""


def choose(table: Mapping[str, T], name: str, what: str) -> T:
    """table[name]; UserError with the choices if there is no such entry."""
    if name not in table:
        raise unknown(what, name, table)
    return table[name]


def unknown(what: str, name: object, choices: Iterable[str]) -> UserError:
    return UserError(f"unknown {what} {name!r}; choose from {', '.join(sorted(choices))}")
