"""Config fields as command-line flags: `--eps-low 6/255 --mask.rule zscore --optim.decay-at 60,70`.

A flag passes its text on to the config, which validates it.
"""

import argparse
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from pixelpart.cli.arguments import Parser
from pixelpart.config import Config, config_from, flag_of


def add_config_flags(parser: Parser, config: Config) -> None:
    """Adds one flag for every field, with the field's description and its value in this config as the default."""
    for path, description, value in _fields(config):
        shown = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
        switch: dict[str, Any] = {"nargs": "?", "const": "true"} if isinstance(value, bool) else {}  # --normalize
        parser.add_argument(
            flag_of(".".join(path)),
            dest="config." + ".".join(path),
            metavar=path[-1].upper(),
            default=argparse.SUPPRESS,
            help=f"{description or ''} (default: {shown or 'empty'})".replace("%", "%%"),
            **switch,
        )


def apply_config_flags(config: Config, found: argparse.Namespace) -> Config:
    """The config with the values given on the command line."""
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
    """Path, description and JSON value of every field that a flag may set."""
    written = part.model_dump(mode="json")
    for name, info in type(part).model_fields.items():
        value = getattr(part, name)
        if isinstance(value, BaseModel):
            yield from _fields(value, (*path, name))
        elif name not in ("schema_version", "recipe"):
            yield (*path, name), info.description, written[name]
