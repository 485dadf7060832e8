"""`pixelpart train`."""

import argparse
from pathlib import Path

from pixelpart.cli.arguments import add_device_and_root
from pixelpart.cli.flags import Parser, add_config_flags, apply_config_flags
from pixelpart.config import read_config
from pixelpart.errors import choose
from pixelpart.recipes import RECIPES
from pixelpart.runtime.progress import Screen


def train(args: list[str]) -> None:
    """Trains a recipe or a config file into a run folder, or goes on with the run that is there."""
    about = f"recipes: {', '.join(RECIPES)}; or the path of a .toml or .json config"
    if not args or args[0] in ("-h", "--help"):
        print(f"usage: pixelpart train RECIPE|FILE [options]\n\n{about}\n\n`train RECIPE --help` lists every field.")
        return
    name, *rest = args
    config = read_config(Path(name)) if name.endswith((".toml", ".json")) else choose(RECIPES, name, "recipe")()
    parser = Parser(prog=f"pixelpart train {name}", description="Fields of the config, and how to run it.")
    running = parser.add_argument_group("how to run it")
    running.add_argument("--out", type=Path, help="run folder (runs/RECIPE-SEED)")
    running.add_argument("--print-config", action="store_true", help="write the config as TOML and stop")
    running.add_argument(
        "--data", dest="config.dataset", default=argparse.SUPPRESS, metavar="NAME", help="the same as --dataset"
    )
    add_device_and_root(running)
    running.add_argument(
        "--plain", action="store_true", help="no compiled and captured step on a GPU: the reference path"
    )
    running.add_argument("--quiet", action="store_true", help="no progress")
    add_config_flags(parser, config)
    found = parser.parse_all(rest)
    config = apply_config_flags(config, found)
    if found.print_config:
        print(config.to_toml(), end="")
        return
    from pixelpart import data as sets
    from pixelpart import models
    from pixelpart.engine.train import train as run_training

    # what is named on the command line may be code
    if hasattr(found, "config.dataset"):
        sets.use(config.dataset)
    if hasattr(found, "config.model"):
        models.use(config.model)
    out = found.out or Path("runs") / f"{config.recipe}-{config.seed}"
    screen = Screen(quiet=found.quiet)
    run_training(config, out, device=found.device, data_root=found.data_root, fast=not found.plain, screen=screen)
