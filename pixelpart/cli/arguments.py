"""The parser of all commands, and the arguments that several of them share."""

import argparse
import difflib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from pixelpart.config import DEFAULT_EPS, DEFAULT_SEED, DEFAULT_STEP_SIZE, parse_fraction, write_fraction
from pixelpart.errors import UserError

NOT_STORED = "these results are not stored; --out FOLDER stores them (with --name NAME if MODEL is not a checkpoint)"


class HelpShown(Exception):
    """--help has been printed. Not SystemExit, which user code can raise too."""


class Parser(argparse.ArgumentParser):
    """argparse whose errors are UserErrors of one line, with similar options where an option is unknown."""

    def __init__(self, command: str, description: str | None) -> None:
        super().__init__(
            prog=f"pixelpart {command}", description=description, allow_abbrev=False, formatter_class=HelpFormatter
        )
        self._negative_number_matcher = re.compile(r"-[\d.]")  # -1/255 is a value too, not an option

    def error(self, message: str) -> NoReturn:
        raise UserError(message)

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        raise HelpShown

    def parse_all(self, args: Sequence[str]) -> argparse.Namespace:
        """The parsed arguments; UserError if any is left over."""
        found, rest = self.parse_known_args(args)
        if rest:
            name = rest[0].partition("=")[0]
            word, options = name.lstrip("-").replace("_", "-"), self._option_string_actions
            similar = [option for option in options if word in option.lstrip("-").split(".")][:3]  # --lr: --optim.lr
            similar = similar or difflib.get_close_matches(name, options, n=3, cutoff=0.5)
            hint = f"did you mean {' or '.join(similar)}?" if similar and name.startswith("-") else "see --help"
            kind = "unknown option" if name.startswith("-") else "unexpected argument"
            raise UserError(f"{kind} {rest[0]!r}; {hint}")
        return found


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Shows the default of every option that has one, unless its help says what happens without the option."""

    def _get_help_string(self, action: argparse.Action) -> str:
        text = action.help or ""
        shown = action.option_strings and action.default not in (None, False, argparse.SUPPRESS)
        return f"{text} (default: %(default)s)" if shown and "(default:" not in text else text


# -- groups of arguments


def add_target(parser: Parser, *, images: str) -> None:
    """What `evaluate`, `check` and `corruptions` measure, on which images and where; read by `target_settings`."""
    add = parser.add_argument
    add(
        "model",
        metavar="MODEL",
        help="run folder; .safetensors checkpoint; .pt2 archive of torch.export; or module:function that returns an "
        "nn.Module on images in [0,1]",
    )
    add(
        "--data",
        metavar="NAME",
        help="test images: name of a data set, folder:PATH or module:function; required unless MODEL is a run or a "
        "checkpoint (default: the data set of the run)",
    )
    add_folder_options(parser)
    add("--images", type=positive_int, metavar="N", help=f"only the first N test images (default: {images})")
    add("--out", type=Path, help="folder that stores the results and reuses them (default: the run folder; else none)")
    add_checkpoint(parser)
    group = parser.add_argument_group("how to run it")
    group.add_argument(
        "--batch-size", type=positive_int, help="images per batch (default: 1024 on a GPU, 128 on other devices)"
    )
    add_device(group)
    add_data_root(group)


def add_name(parser: Parser) -> None:
    parser.add_argument(
        "--name", help="name under which --out stores the results; required if MODEL is not a run or a checkpoint"
    )


def target_settings(found: argparse.Namespace) -> dict[str, Any]:
    """The keyword arguments of `evaluate`, `check` and `corruptions` that `add_target` reads."""
    use_network(found)
    names = ("data", "size", "skip_bad", "images", "out", "checkpoint", "batch_size", "device")
    return {name: getattr(found, name) for name in names} | {"root": found.data_root}


def add_attack_settings(parser: Parser, *, eps: str, step_size: str) -> None:
    """--eps, --step-size and --seed; the texts say what the first two mean for this command."""
    add = parser.add_argument
    add("--eps", type=number_or_fraction, default=str(write_fraction(DEFAULT_EPS)), help=eps)
    add("--step-size", type=number_or_fraction, default=str(write_fraction(DEFAULT_STEP_SIZE)), help=step_size)
    add("--seed", type=int, default=str(DEFAULT_SEED), help="seed of the random starts")


def add_checkpoint(parser: Parser) -> None:
    parser.add_argument("--checkpoint", default="best", help="checkpoint of a run folder: best, last or epoch-N")
    parser.add_argument(
        "--network", metavar="NAME", help="required if the network of the run is user code: its module:function"
    )


def use_network(found: argparse.Namespace) -> None:
    """Allows the user code that --network names; only the command line may do so, never a config file."""
    if found.network is not None:
        from pixelpart import models
        from pixelpart.runtime.usercode import parse_name

        parse_name(found.network)  # UserError unless it is module:function
        models.use(found.network)


def add_folder_options(parser: Parser) -> None:
    """--size and --skip-bad, for --data."""
    parser.add_argument(
        "--size", type=positive_int, default=0, help="folder:PATH: width and height of images in pixels"
    )
    parser.add_argument(
        "--skip-bad", action="store_true", help="folder:PATH and tinyimagenet: leave out files that cannot be read"
    )


def add_device(parser: Any) -> None:
    parser.add_argument("--device", help="cpu, cuda, cuda:1, ... (default: a GPU if there is one)")


def add_data_root(parser: Any) -> None:
    parser.add_argument(
        "--data-root", type=Path, help="folder of the data sets (default: $PIXELPART_DATA or ~/.cache/pixelpart)"
    )


def add_output(parser: Parser, *, json: str) -> None:
    """--json and --quiet; the text says what --json prints."""
    parser.add_argument("--json", action="store_true", help=json)
    parser.add_argument("--quiet", action="store_true", help="show no progress")


def print_result(result: Any, *, as_json: bool) -> None:
    print(json.dumps(result.as_json(), indent=2) if as_json else result)


# -- types of values


def positive_int(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def positive_ints(text: str) -> list[int]:
    return [positive_int(part) for part in text.split(",")]


def number_or_fraction(text: str) -> float:
    try:
        return parse_fraction(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
