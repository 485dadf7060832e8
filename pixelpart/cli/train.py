"""`pixelpart train`."""

import re
import shlex
from collections.abc import Iterable
from pathlib import Path

from pixelpart.cli.arguments import Parser, add_machine, use_threads
from pixelpart.cli.flags import add_config_flags, apply_config_flags
from pixelpart.config import Config, code_flags, read_config
from pixelpart.errors import UserError, choose, similar_path
from pixelpart.recipes import METHODS, RECIPES
from pixelpart.runs import RunFolder
from pixelpart.runtime.progress import Screen
from pixelpart.runtime.tables import text_table
from pixelpart.runtime.world import is_first_process

USAGE = """usage: pixelpart train RECIPE|FILE|RUN [options]

RECIPE  one of the recipes below
FILE    .toml or .json config, such as --print-config prints
RUN     run folder: resumes the run, with its own config

{recipes}

METHOD is one of {methods}.
`pixelpart train RECIPE --help` lists every option."""


def train(argv: list[str]) -> None:
    """Trains a recipe or a config file in a run folder, or resumes a run."""
    if not argv or argv[0] in ("-h", "--help", "--list"):
        print(usage())
        return
    name, *rest = argv
    start, run = read_start(name)
    parser = Parser(f"train {name}", train.__doc__)
    parser.usage = "%(prog)s [options]"
    group = parser.add_argument_group("how to run it")
    group.add_argument("--out", type=Path, metavar="FOLDER", help=f"run folder (default: {run or 'runs/RECIPE-SEED'})")
    group.add_argument("--print-config", action="store_true", help="check the config, print it as TOML and exit")
    add_machine(group)
    group.add_argument("--plain", action="store_true", help="on a GPU: do not compile and capture the step")
    group.add_argument("--quiet", action="store_true", help="show no progress")
    add_config_flags(parser.add_argument_group("fields of the config"), start)
    args = parser.parse_all(rest)
    config = apply_config_flags(start, args)
    out = args.out or run or Path("runs") / f"{config.recipe}-{config.seed}"
    from pixelpart import data, models
    from pixelpart.engine.plan import check_plans, prepare
    from pixelpart.engine.train import train as run_training

    if hasattr(args, "config.dataset"):  # user code is accepted from the command line only, never from a config file
        data.use(config.dataset)
    if hasattr(args, "config.model"):
        models.use(config.model)
    if args.print_config:
        filled = prepare(config, args.out or run, device=args.device).config
        print((filled if config.auto else config).to_toml(), end="")
        return
    use_threads(args)
    screen = Screen(quiet=args.quiet)
    notes = without_effect(config, [name for name in vars(args) if name.startswith("config.")])
    if notes and is_first_process():
        check_plans([config])  # a wrong name is reported alone
        screen.say("\n".join(notes))
    run_training(config, out, device=args.device, data_root=args.data_root, fast=not args.plain, screen=screen)
    if is_first_process():
        root = ["--data-root", str(args.data_root)] if args.data_root else []
        screen.say(f"next: {shlex.join(['pixelpart', 'evaluate', str(out), *code_flags(config), *root])}")


def without_effect(config: Config, given: Iterable[str]) -> list[str]:
    """What the given flags, by their names config.FIELD, do not do in this config."""
    notes = []
    flags = [f"--{name.removeprefix('config.').replace('_', '-')}" for name in given]
    unused = [flag for flag in flags if flag == "--eps-low" or (flag.startswith("--mask.") and flag != "--mask.rule")]
    if config.mask.rule == "none" and unused:
        notes.append(f"no effect without a mask: {', '.join(unused)}; choose --mask.rule mean or a recipe with part")
    if late := [epoch for epoch in config.keep if epoch > config.epochs]:
        notes.append(f"--keep {','.join(map(str, late))} has no effect: epochs is {config.epochs}")
    return notes


def read_start(name: str) -> tuple[Config, Path | None]:
    """The config of a recipe, a file or a run, before flags; and the folder of the run."""
    path = Path(name)
    if name.startswith("-"):
        raise UserError(f"{name}: name a recipe first: pixelpart train RECIPE {name} ...; `pixelpart train` lists them")
    if name in RECIPES:
        return RECIPES[name](), None
    if path.suffix in (".toml", ".json"):
        return read_config(path), None
    if path.is_dir():
        return RunFolder(path).read_config(), path
    if path.name != name:
        raise UserError(f"no run folder {name}; {similar_path(path)}`pixelpart train` lists the recipes")
    return choose(RECIPES, name, "recipe", listed="`pixelpart train` lists all")(), None


def usage() -> str:
    """How to call it, and a row for each data set and variant of the recipes."""
    rows, (first, *_) = [], METHODS
    for name, recipe in RECIPES.items():
        if re.search(rf"-{first}(?=-|$)", name):
            config, about = recipe(), (recipe.__doc__ or "").split("\n")[0]
            pattern = re.sub(rf"-{first}(?=-|$)", "-METHOD", name)
            epochs = "auto" if "epochs" in config.auto else str(config.epochs)
            rows.append([pattern, config.model, epochs, re.split(r"[:;.](?: |$)", about)[0]])
    methods = ", ".join(
        name if name == objective else f"{name} ({objective} with a mask)" for name, objective in METHODS.items()
    )
    return USAGE.format(recipes=text_table(["recipe", "model", "epochs", "what it is"], rows), methods=methods)
