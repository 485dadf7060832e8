"""A config's fields as command-line flags: `--eps-low 6/255 --mask.rule zscore --optim.decay-at 60,70`.

The flags hand their text to the config, which knows what is right: one place says what a field may be.
"""

import argparse
import difflib
import re
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from pydantic import BaseModel

from pixelpart.config import Config, config_from
from pixelpart.errors import UserError


class Parser(argparse.ArgumentParser):
    """argparse whose complaints are UserErrors of one line, with the nearest flags where a flag is not known."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **settings)

    def error(self, message: str) -> NoReturn:
        raise UserError(message)

    def parse_all(self, args: Sequence[str]) -> argparse.Namespace:
        """The parsed arguments; anything left over is a UserError."""
        found, rest = self.parse_known_args(join_negatives(args))
        if rest:
            flags = [flag for action in self._actions for flag in action.option_strings]
            name = rest[0].partition("=")[0]
            near = difflib.get_close_matches(name, flags, n=3, cutoff=0.5)
            hint = f"; did you mean {' or '.join(near)}?" if near else "; see --help"
            raise UserError(
                f"unknown option {rest[0]!r}{hint}"
                if name.startswith("-")
                else f"unexpected argument {rest[0]!r}{hint}"
            )
        return found


def join_negatives(args: Sequence[str]) -> list[str]:
    """`--eps -1/255` as `--eps=-1/255`: a value, and not one more option."""
    joined: list[str] = []
    for arg in args:
        if re.match(r"-[\d.]", arg) and joined and joined[-1].startswith("--") and "=" not in joined[-1]:
            joined[-1] += f"={arg}"
        else:
            joined.append(arg)
    return joined


def add_config_flags(parser: Parser, config: Config) -> None:
    """One flag for every field, with the field's meaning and the recipe's value."""
    for path, info, value in _fields(config):
        flag = "--" + ".".join(path).replace("_", "-")
        optional: dict[str, Any] = {"nargs": "?", "const": "true"} if isinstance(value, bool) else {}  # --skip-bad
        shown = ",".join(map(str, value)) if isinstance(value, list | tuple) else value
        parser.add_argument(
            flag,
            dest="config." + ".".join(path),
            metavar=path[-1].upper(),
            default=argparse.SUPPRESS,
            help=f"{info or ''} (here: {shown!s})".replace("%", "%%"),
            **optional,
        )


def apply_config_flags(config: Config, found: argparse.Namespace) -> Config:
    """The config with the values that were given on the command line."""
    values = config.model_dump()
    for path, _, old in _fields(config):
        text = getattr(found, "config." + ".".join(path), None)
        if text is None:
            continue
        section = values
        for name in path[:-1]:
            section = section[name]
        section[path[-1]] = [part for part in text.split(",") if part] if isinstance(old, list | tuple) else text
    return config_from(values, source=config.recipe)


def _fields(part: BaseModel, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str | None, Any]]:
    written = part.model_dump(mode="json")
    for name, info in type(part).model_fields.items():
        value = getattr(part, name)
        if isinstance(value, BaseModel):
            yield from _fields(value, (*path, name))
        elif name not in ("schema_version", "recipe"):
            yield (*path, name), info.description, written[name]
