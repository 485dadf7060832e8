"""Errors, and the message for a name that is not in a table."""

import difflib
from collections.abc import Iterable, Mapping
from typing import TypeVar

T = TypeVar("T")


class UserError(ValueError):
    """A user's mistake. The message is one line with the value and the choices; the command line exits with 2."""


class Diverged(RuntimeError):
    """The training loss became NaN or infinite. The last good checkpoint is kept; the command line exits with 1."""


def choose(table: Mapping[str, T], name: str, what: str, *, listed: str = "") -> T:
    """table[name]; UserError with similar names and the choices if there is no such entry; see `unknown`."""
    if name not in table:
        raise unknown(what, name, table, listed=listed)
    return table[name]


def unknown(what: str, name: object, choices: Iterable[str], *, listed: str = "") -> UserError:
    """The error for a name that is none of the choices; `listed`, of a long table, says where they are listed."""
    names = sorted(choices)
    return UserError(f"unknown {what} {name!r}; {did_you_mean(name, names)}{listed or 'choose from ' + ', '.join(names)}")


def did_you_mean(name: object, choices: Iterable[str]) -> str:
    """The question "did you mean ...? " with up to three similar names; empty if there are none."""
    names = {choice.lower(): choice for choice in choices}
    similar = difflib.get_close_matches(str(name).lower(), names, n=3, cutoff=0.6)
    return f"did you mean {' or '.join(names[key] for key in similar)}? " if similar else ""
