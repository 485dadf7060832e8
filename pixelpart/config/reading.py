"""Configs from files and from the command line, and fields by their dotted names."""

import reprlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pixelpart.config.fields import Config
from pixelpart.config.values import is_user_code
from pixelpart.errors import UserError, one_line, similar_names
from pixelpart.files import parse_json, parse_toml, read_text

NAMING_FIELDS = ("schema_version", "recipe", "keep")  # decide no result
USE = {"model": "pp.models.use", "dataset": "pp.data.use"}  # which allow user code
EXPECTED = {  # in the place of pydantic's messages of these types
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_parsing": "a number",
    "bool_parsing": "true or false",
}


def read_config(path: Path) -> Config:
    """The config in a .toml or .json file; mistakes are UserErrors that name the field."""
    try:
        text = read_text(path)
        values = parse_toml(text) if path.suffix == ".toml" else parse_json(text)
        if not values:
            raise ValueError("it is empty; `pixelpart train RECIPE --print-config` prints a whole config")
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise UserError(f"cannot read config {path}: {error}") from None
    return config_from(values, source=str(path))


def config_from(values: Any, *, source: str) -> Config:
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        fields = list(dict.fromkeys([*flat(Config()), *Config.model_fields]))
        raise UserError(f"{source}: {validation_message(error, fields=fields)}") from None


def with_fields(config: Config, fields: Mapping[str, Any], *, source: str) -> Config:
    """The config with these fields, by dotted name, changed; they no longer follow from the images.

    A list may be given as on the command line: 60,70.
    """
    values = config.model_dump()
    for name, value in fields.items():
        section, _, key = name.rpartition(".")
        target = values[section] if section else values
        listed = isinstance(target[key], list | tuple) and isinstance(value, str)
        target[key] = [part for part in value.split(",") if part] if listed else value
    values["auto"] = [name for name in config.auto if name not in fields]
    return config_from(values, source=source)


def validation_message(error: ValidationError, *, fields: Sequence[str] = ()) -> str:
    """Pydantic's errors in one line: field, problem, value; for an unknown field, similar ones among `fields`."""
    lines = []
    for item in error.errors():
        field = ".".join(str(part) for part in item["loc"] if part != "number")  # the tag of SameOrEps
        message = item["msg"].removeprefix("Value error, ")
        if item["type"] == "extra_forbidden":
            message = f"no such field{_hint(field, fields)}"
        elif item["type"] == "string_type" and field in USE:
            message = (
                f"a {type(item['input']).__name__} is given; name a function that returns it: "
                f"{USE[field]}('module:function'), in a notebook '__main__:function'"
            )
        elif item["type"] in EXPECTED:
            message = f"{_shown(item['input'])} is not {EXPECTED[item['type']]}"
        elif item["type"] != "value_error":
            message = f"{message}, not {_shown(item['input'])}"
        lines.append(f"{field}: {message}" if field else message)
    return one_line("; ".join(lines))


def _hint(name: str, fields: Sequence[str]) -> str:
    """The fields of that name in other sections, as optim.lr for lr, else similar ones here, else all if few."""
    section, dot, key = name.rpartition(".")
    if name in fields:  # "mask.rule" as one word
        return f'; write {section}={{"{key}": ...}}, in TOML {section}.{key} without quotes'
    parts = [field.rpartition(".") for field in fields]
    same = ["".join(part) for part in parts if part[2] == key]
    here = [part[2] for part in parts if part[0] == section]
    if similar := same or [f"{section}{dot}{one}" for one in similar_names(key, here)]:
        return f"; did you mean {' or '.join(similar)}?"
    return f"; choose from {', '.join(fields)}" if 0 < len(fields) <= 12 else ""


def _shown(value: Any) -> str:
    """The value in a few words: one from a file may be long or deeply nested."""
    short = reprlib.Repr()
    short.maxstring = short.maxother = short.maxlong = 100
    try:
        return short.repr(value)
    except ValueError:  # an integer with more digits than Python prints
        return "a huge number"


def flag_of(field: str) -> str:
    """The command-line flag of a field: --eps-low for eps_low, --mask.rule for mask.rule, --data for dataset."""
    return "--" + ("data" if field == "dataset" else field.replace("_", "-"))


def code_flags(config: Config) -> list[str]:
    """--model and --data of a run if they are user code, which a command runs only if its flags name it."""
    named = {"--model": config.model, "--data": config.dataset}
    return [word for flag, name in named.items() if is_user_code(name) for word in (flag, name)]


def flat(config: Config) -> dict[str, Any]:
    """The JSON value of every field by its dotted name."""
    found: dict[str, Any] = {}
    for name, value in config.model_dump(mode="json").items():
        found |= {f"{name}.{key}": v for key, v in value.items()} if isinstance(value, dict) else {name: value}
    return found


def method_fields(config: Config) -> dict[str, Any]:
    """The fields in which all runs of a method agree: not the seed, nor the run that one was forked from."""
    skipped = (*NAMING_FIELDS, "seed", "init_from")
    return {name: value for name, value in flat(config).items() if name not in skipped}


def differing_fields(a: Config, b: Config) -> list[str]:
    """The fields in which two configs differ, each as name: value != value."""
    left, right = flat(a), flat(b)
    return [f"{key}: {left[key]!r} != {right[key]!r}" for key in left if left[key] != right[key]]
