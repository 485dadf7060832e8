"""Arguments that commands share."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pixelpart.config import DEFAULT_EPS, DEFAULT_STEP_SIZE, parse_fraction, write_fraction


def add_model(parser: Any) -> None:
    parser.add_argument("model", metavar="MODEL", help="as in `pixelpart evaluate`")


def add_data(parser: Any) -> None:
    parser.add_argument("--data", metavar="NAME", help="test images, as in `pixelpart evaluate`")
    add_folder_options(parser)


def add_out(parser: Any) -> None:
    parser.add_argument(
        "--out", type=Path, help="folder that keeps results and has them again (here: the run's own; else none)"
    )


def add_checkpoint(parser: Any) -> None:
    parser.add_argument("--checkpoint", default="best", help="of a run folder: best, last or epoch-N")
    parser.add_argument(
        "--network", metavar="NAME", help="of a run whose network is your own code: its module:function, once more"
    )


def use_network(found: argparse.Namespace) -> None:
    """Lets the code that --network names be run; it comes from the command line, so it may."""
    if found.network is not None:
        from pixelpart import models
        from pixelpart.runtime.usercode import parse_name

        parse_name(found.network)  # one of the table's names has no place here
        models.use(found.network)


def add_eps_and_step_size(parser: Any, *, eps: str, step_size: str) -> None:
    """--eps and --step-size; the texts say what they are of."""
    for flag, default, text in (("--eps", DEFAULT_EPS, eps), ("--step-size", DEFAULT_STEP_SIZE, step_size)):
        parser.add_argument(flag, type=fraction, default=default, help=f"{text} (here: {write_fraction(default)})")


def add_batch_size(parser: Any, *, type: Callable[[str], int] = int) -> None:
    parser.add_argument("--batch-size", type=type, help="images at a time (here: 1024 on a GPU, 128 elsewhere)")


def add_running(parser: Any, *, json: str) -> None:
    """--device, --data-root, --json and --quiet; the text says what --json writes."""
    add_device_and_root(parser)
    parser.add_argument("--json", action="store_true", help=json)
    parser.add_argument("--quiet", action="store_true", help="no progress")


def add_device_and_root(parser: Any) -> None:
    parser.add_argument("--device", help="cpu, cuda, ... (a GPU where there is one)")
    parser.add_argument("--data-root", type=Path, help="where data sets live ($PIXELPART_DATA or ~/.cache/pixelpart)")


def add_folder_options(parser: Any) -> None:
    """--size and --skip-bad, for --data."""
    parser.add_argument(
        "--size", type=positive, default=0, help="folder:PATH: width and height of the images in pixels"
    )
    parser.add_argument(
        "--skip-bad", action="store_true", help="folder:PATH and tinyimagenet: leave out files that cannot be read"
    )


def positives(text: str) -> list[int]:
    return [positive(part) for part in text.split(",")]


def positive(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def fraction(text: str) -> float:
    try:
        return parse_fraction(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
