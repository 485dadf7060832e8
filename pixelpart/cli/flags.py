"""Config fields as command-line flags: `--eps-low 6/255 --mask.rule zscore --optim.decay-at 60,70`.

A flag passes its text on to the config, which validates it.
"""

import argparse
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from pixelpart.config import Config, flag_of, with_fields


def add_config_flags(parser: Any, config: Config) -> None:
    """Adds one flag for every field, with the field's description and its value in this config as the default."""
    for path, description, value in _fields(config):
        shown = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
        shown = "from the number of images" if ".".join(path) in config.auto else shown
        switch: dict[str, Any] = {"nargs": "?", "const": "true"} if isinstance(value, bool) else {}  # --normalize
        parser.add_argument(
            flag_of(".".join(path)),
            dest="config." + ".".join(path),
            metavar=path[-1].upper(),
            default=argparse.SUPPRESS,
            help=f"{description or ''} (default: {shown or 'empty'})".replace("%", "%%"),
            **switch,
        )


def apply_config_flags(config: Config, args: argparse.Namespace) -> Config:
    """The config with the values given on the command line."""
    names = (".".join(path) for path, _, _ in _fields(config))
    given = {name: text for name in names if (text := getattr(args, f"config.{name}", None)) is not None}
    return with_fields(config, given, source=config.recipe)


def _fields(part: BaseModel, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str | None, Any]]:
    """Path, description and JSON value of every field that a flag may set."""
    written = part.model_dump(mode="json")
    for name, info in type(part).model_fields.items():
        value = getattr(part, name)
        if isinstance(value, BaseModel):
            yield from _fields(value, (*path, name))
        elif name not in ("schema_version", "recipe", "auto"):
            yield (*path, name), info.description, written[name]
