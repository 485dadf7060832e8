"""What can go wrong, told apart by whose move it is."""

from collections.abc import Iterable, Mapping
from typing import TypeVar

T = TypeVar("T")


class UserError(ValueError):
    """A mistake in what was asked for: one line with the value and the choices; the command line exits with 2."""


class Diverged(RuntimeError):
    """Training gave a number that is not finite; the last good checkpoint is kept, the command line exits with 1."""


def choose(table: Mapping[str, T], name: str, what: str) -> T:
    """The entry of a room's table, or a UserError that names the choices."""
    if name not in table:
        raise unknown(what, name, table)
    return table[name]


def unknown(what: str, name: object, choices: Iterable[str]) -> UserError:
    return UserError(f"unknown {what} {name!r}; choose from {', '.join(sorted(choices))}")
