"""`pixelpart train`."""

import argparse
from pathlib import Path

from pixelpart.cli.arguments import Parser, add_data_root, add_device
from pixelpart.cli.flags import add_config_flags, apply_config_flags
from pixelpart.config import read_config
from pixelpart.errors import choose
from pixelpart.recipes import RECIPES
from pixelpart.runtime.progress import Screen

USAGE = f"""usage: pixelpart train RECIPE|FILE [options]

recipes: {", ".join(RECIPES)}; or the path of a .toml or .json config

`pixelpart train RECIPE --help` lists every option."""


def train(args: list[str]) -> None:
    """Trains a recipe or a config file into a run folder, or resumes the run in it."""
    if not args or args[0] in ("-h", "--help"):
        print(USAGE)
        return
    name, *rest = args
    config = read_config(Path(name)) if name.endswith((".toml", ".json")) else choose(RECIPES, name, "recipe")()
    parser = Parser(f"train {name}", train.__doc__)
    parser.usage = "%(prog)s [options]"
    group = parser.add_argument_group("how to run it")
    group.add_argument("--out", type=Path, help="run folder (default: runs/RECIPE-SEED)")
    group.add_argument("--print-config", action="store_true", help="print the config as TOML and exit")
    group.add_argument(
        "--data", dest="config.dataset", default=argparse.SUPPRESS, metavar="NAME", help="same as --dataset"
    )
    add_device(group)
    add_data_root(group)
    group.add_argument("--plain", action="store_true", help="on a GPU: do not compile and capture the step")
    group.add_argument("--quiet", action="store_true", help="show no progress")
    add_config_flags(parser, config)
    found = parser.parse_all(rest)
    config = apply_config_flags(config, found)
    if found.print_config:
        print(config.to_toml(), end="")
        return
    from pixelpart import data, models
    from pixelpart.engine.train import train as run_training

    if hasattr(found, "config.dataset"):  # user code is accepted from the command line only, never from a config file
        data.use(config.dataset)
    if hasattr(found, "config.model"):
        models.use(config.model)
    out = found.out or Path("runs") / f"{config.recipe}-{config.seed}"
    screen = Screen(quiet=found.quiet)
    run_training(config, out, device=found.device, data_root=found.data_root, fast=not found.plain, screen=screen)
