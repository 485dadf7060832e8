"""The parser of all commands, and the arguments that several of them share."""

import argparse
import difflib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from pixelpart.config import (
    DEFAULT_EPS,
    DEFAULT_SEED,
    Size,
    parse_fraction,
    parse_size,
    write_fraction,
)
from pixelpart.errors import UserError


class HelpShown(Exception):
    """--help of a parser has been printed. Not SystemExit, which user code can raise too."""

    def __init__(self, parser: "Parser") -> None:
        self.parser = parser


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
        raise HelpShown(self)

    def parse_all(self, argv: Sequence[str]) -> argparse.Namespace:
        """The parsed arguments; UserError if any is left over."""
        args, rest = self.parse_known_args(argv)
        if rest:
            name = rest[0].partition("=")[0]
            word, options = name.lstrip("-").replace("_", "-"), self._option_string_actions
            similar = [option for option in options if word in option.lstrip("-").split(".")][:3]  # --lr: --optim.lr
            similar = similar or difflib.get_close_matches(name, options, n=3, cutoff=0.6)
            hint = f"did you mean {' or '.join(similar)}?" if similar and name.startswith("-") else "see --help"
            kind = "unknown option" if name.startswith("-") else "unexpected argument"
            raise UserError(f"{kind} {rest[0]!r}; {hint}")
        return args


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Shows the default of every option that has one, unless its help says what happens without the option."""

    def _get_help_string(self, action: argparse.Action) -> str:
        text = action.help or ""
        shown = action.option_strings and action.default not in (None, False, (), argparse.SUPPRESS)
        return f"{text} (default: %(default)s)" if shown and "(default:" not in text else text


# -- groups of arguments


def add_target(parser: Parser, *, images: str, several: bool = False) -> None:
    """What `evaluate`, `check` and `corruptions` measure, on which images and where; read by `target_settings`."""
    add = parser.add_argument
    add(
        "models",
        metavar="MODEL",
        nargs="+" if several else 1,
        help="run folder; .safetensors checkpoint; .pt2 archive of torch.export; or module:function that returns an "
        "nn.Module on images in [0,1]" + ("; several are evaluated in turn" if several else ""),
    )
    add_run_options(parser)
    add("--images", type=positive_int, metavar="N", help=f"only the first N test images (default: {images})")
    add(
        "--out",
        type=Path,
        metavar="FOLDER",
        help="folder that stores the results and reuses them (default: the run folder; else none)",
    )
    group = parser.add_argument_group("how to run it")
    group.add_argument(
        "--batch-size",
        type=positive_int,
        metavar="N",
        help="images per batch (default: 1024 on a GPU, 128 on other devices)",
    )
    add_machine(group)


def add_name(parser: Parser) -> None:
    parser.add_argument(
        "--name", help="name under which --out stores the results; required if MODEL is not a run or a checkpoint"
    )


def target_settings(args: argparse.Namespace) -> dict[str, Any]:
    """The keyword arguments of `evaluate`, `check` and `corruptions` that `add_target` reads; sets the threads."""
    use_threads(args)
    use_model(args, args.models)
    names = ("data", "size", "skip_bad", "images", "out", "checkpoint", "batch_size", "device")
    return {name: getattr(args, name) for name in names} | {"root": args.data_root}


def add_attack_settings(parser: Parser, *, eps: str, step_size: str) -> None:
    """--eps, --step-size and --seed; the texts say what the first two mean for this command."""
    add = parser.add_argument
    add("--eps", type=number_or_fraction, default=str(write_fraction(DEFAULT_EPS)), help=eps)
    add("--step-size", type=number_or_fraction, help=f"{step_size} (default: 2/255, or eps/4 if that is less)")
    add("--seed", type=int, default=str(DEFAULT_SEED), help="seed of the random starts")


def add_run_options(parser: Parser) -> None:
    """Which checkpoint of a run is used, its network if that is user code, and the images."""
    add_checkpoint(parser)
    add_model(parser)
    parser.add_argument(
        "--data",
        metavar="NAME",
        help="test images: name of a data set, folder:PATH or module:function; required if a run's data set is user "
        "code, and for a model without a config (default: the run's own)",
    )
    add_folder_options(parser)


def add_checkpoint(parser: Any) -> None:
    parser.add_argument("--checkpoint", default="best", help="checkpoint of a run folder: best, last or epoch-N")


def add_model(parser: Parser) -> None:
    parser.add_argument(
        "--model",
        metavar="NAME",
        action="append",
        help="network of a run, module:function; required if it is user code; repeat it for several networks "
        "(default: the run's own)",
    )


def use_model(args: argparse.Namespace, named: Sequence[str | Path]) -> None:
    """Allows the user code that each --model names, which has to be the network of one of the runs.

    Only the command line may do so, never a config file. Several models are looked up before any work.
    """
    if args.model is None and len(named) == 1:
        return
    from pixelpart import models
    from pixelpart.evaluation.target import find_config

    configs = [find_config(model, checkpoint=args.checkpoint) for model in named]
    theirs = [config.model for config in configs if config]
    for name in args.model or ():
        if name not in theirs:
            raise UserError(
                f"--model {name} does not match {named[0]}, whose network is {theirs[0] if theirs else 'its own'}"
            )
        models.use(name)
    for name in theirs:
        models.require_use(name)


def add_folder_options(parser: Parser) -> None:
    """--size and --skip-bad, for --data."""
    parser.add_argument(
        "--size", type=image_size, default=0, help="folder:PATH: size in pixels: 64, or height x width: 64x96"
    )
    parser.add_argument(
        "--skip-bad", action="store_true", help="folder:PATH and tinyimagenet: leave out files that cannot be read"
    )


def add_machine(parser: Any) -> None:
    """--device, --threads and --data-root."""
    add_device(parser)
    add_threads(parser)
    add_data_root(parser)


def add_threads(parser: Any, *, runs: str = "") -> None:
    """--threads; `runs`, of a command that starts several runs, is its default for each of them."""
    about = f"CPU threads of each run (default: {runs})" if runs else "CPU threads (default: one per core)"
    parser.add_argument("--threads", type=positive_int, metavar="N", help=about)


def use_threads(args: argparse.Namespace) -> None:
    if args.threads is not None:
        import torch

        torch.set_num_threads(args.threads)


def add_device(parser: Any) -> None:
    parser.add_argument("--device", help="cpu, cuda, cuda:1, ... (default: a GPU if there is one)")


def add_data_root(parser: Any) -> None:
    parser.add_argument(
        "--data-root",
        type=Path,
        metavar="FOLDER",
        help="folder of the data sets (default: $PIXELPART_DATA or ~/.cache/pixelpart)",
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


def image_size(text: str) -> Size:
    try:
        return parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def number_or_fraction(text: str) -> float:
    try:
        return parse_fraction(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
