"""The command line: `pixelpart train | evaluate | check | corruptions | compare | explain | report | data | ...`.

Exit 0 on success, 2 on a user's mistake (one line, no traceback), 1 on a fault, 130 after Ctrl-C. torch is imported
only by commands that compute, once their arguments are known to be right.
"""

import argparse
import contextlib
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pixelpart import __version__, defaults
from pixelpart import bench as benches
from pixelpart.config import parse_fraction, read_config, write_fraction
from pixelpart.dataname import with_options
from pixelpart.errors import Diverged, UserError, choose
from pixelpart.flags import Parser, add_config_flags, apply_config_flags
from pixelpart.progress import Screen
from pixelpart.recipes import RECIPES


def main(args: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    args = list(sys.argv[1:] if args is None else args)
    code = None
    try:
        with contextlib.suppress(SystemExit):  # argparse has shown a command's --help
            code = dispatch(args)
        print(end="", flush=True)  # now: at exit nobody could catch that the reader of our output has gone
        return code or 0
    except UserError as error:
        print(f"pixelpart: {error}", file=sys.stderr)
        return 2
    except Diverged as error:
        print(f"pixelpart: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of our output has gone: nothing is left to say
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        print(f"pixelpart: {error}", file=sys.stderr)
        return 1


def dispatch(args: list[str]) -> int | None:
    if not args or args[0] in ("-h", "--help"):
        print(usage())
        return 0
    if args[0] in ("-V", "--version"):
        print(f"pixelpart {__version__}")
        return 0
    return choose(COMMANDS, args[0], "command")(args[1:])


def usage() -> str:
    lines = "\n".join(f"  {name:<11} {(command.__doc__ or '').splitlines()[0]}" for name, command in COMMANDS.items())
    return f"usage: pixelpart COMMAND ...\n\n{lines}\n\n`pixelpart COMMAND --help` tells more."


# -- commands


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
    running.add_argument("--skip-bad", action="store_true", help="of folder:PATH: leave out files that cannot be used")
    add_device_and_root(running)
    running.add_argument(
        "--plain", action="store_true", help="no compiled and captured step on a GPU: the reference path"
    )
    running.add_argument("--quiet", action="store_true", help="no progress")
    add_config_flags(parser, config)
    found = parser.parse_all(rest)
    config = apply_config_flags(config, found)
    if found.skip_bad or (config.size and config.dataset.startswith("folder:")):
        named = with_options(config.dataset, size=config.size or None, skip_bad=found.skip_bad)
        config = config.model_copy(update={"dataset": named})
    if found.print_config:
        print(config.to_toml(), end="")
        return
    from pixelpart import data as sets
    from pixelpart.engine.train import train as run_training

    if hasattr(found, "config.dataset"):
        sets.use(config.dataset)  # named on the command line, so it may be code
    out = found.out or Path("runs") / f"{config.recipe}-{config.seed}"
    screen = Screen(quiet=found.quiet)
    run_training(config, out, device=found.device, data_root=found.data_root, fast=not found.plain, screen=screen)


def evaluate(args: list[str]) -> int | None:
    """Measures a model's accuracy on test images, as they are and under attack."""
    parser = Parser(prog="pixelpart evaluate", description=evaluate.__doc__)
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="run folder; .safetensors checkpoint; .pt2 archive of torch.export; or module:function, which returns an "
        "nn.Module on [0,1] images",
    )
    parser.add_argument(
        "--data",
        metavar="NAME",
        help="test images: the name of their set, folder:PATH or module:function; a model that is not a run's needs it "
        "(here: the run's own)",
    )
    add_folder_options(parser)
    parser.add_argument(
        "--out", type=Path, help="folder that keeps results and has them again (here: the run's own; else none)"
    )
    parser.add_argument(
        "--attacks",
        default=",".join(defaults.ATTACKS),
        help="comma-separated: natural; an attack with its steps, and restarts if more than one, such as pgd20, "
        "pgd20x5, mma20, or, knowing how PART trains, adaptive-pgd20, adaptive-mma20, adaptive-in20; autoattack, "
        "autoattack-plus; or a part of these: apgd-ce, apgd-dlr, apgd-t, fab, fab-t, "
        "square; mm3; in l2 and l1: apgd-l2, apgd-l1; NAME@EPS gives an attack an eps of its own, such as "
        "pgd20@16/255, apgd-l1@12 (here: %(default)s)",
    )
    parser.add_argument("--checkpoint", default="best", help="of a run folder: best, last or epoch-N")
    eps, step_size = defaults.EPS, defaults.STEP_SIZE
    parser.add_argument(
        "--eps", type=fraction, default=eps, help=f"budget of every pixel, in l_inf (here: {write_fraction(eps)})"
    )
    parser.add_argument(
        "--step-size",
        type=fraction,
        default=step_size,
        help=f"length of an attack's step (here: {write_fraction(step_size)})",
    )
    parser.add_argument("--images", type=int, help="the first so many test images (here: all)")
    parser.add_argument("--seed", type=int, default=defaults.SEED, help="seed of the attacks' random starts")
    parser.add_argument(
        "--search",
        default="auto",
        help="precision in which autoattack and its parts search: fp32, bf16 or auto, "
        "which is bf16 on a GPU; fp32 decides (here: %(default)s)",
    )
    parser.add_argument(
        "--engine", default="own", help="who runs autoattack: own, or reference, its authors' code (here: %(default)s)"
    )
    parser.add_argument("--batch-size", type=int, help="images at a time (here: 1024 on a GPU, 128 elsewhere)")
    parser.add_argument(
        "--workers",
        type=positive,
        default=1,
        help="processes that share the images, a GPU each where there are so many",
    )
    add_device_and_root(parser)
    parser.add_argument("--json", action="store_true", help="the entries of eval.json on stdout")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    found = parser.parse_all(args)
    found.data = with_options(found.data or "", size=found.size, skip_bad=found.skip_bad) or None
    if found.workers > 1 and "WORLD_SIZE" not in os.environ:
        command = [
            "-m",
            "torch.distributed.run",
            "--standalone",
            f"--nproc-per-node={found.workers}",
            "-m",
            "pixelpart",
        ]
        return subprocess.run([sys.executable, *command, "evaluate", *args]).returncode
    from pixelpart.evaluation.suite import evaluate as run_evaluation
    from pixelpart.world import joined, local_device

    with joined() as world, (screen := Screen(quiet=found.quiet or not world.leads)).bars() as move:
        result = run_evaluation(
            found.model,
            attacks=found.attacks,
            checkpoint=found.checkpoint,
            eps=found.eps,
            step_size=found.step_size,
            images=found.images,
            seed=found.seed,
            batch_size=found.batch_size,
            device=found.device or local_device(),
            data=found.data,
            root=found.data_root,
            out=found.out,
            search=found.search,
            engine=found.engine,
            say=screen.say,
            progress=lambda attack, done, total, share: move(attack, done, total, f"{share:.2%} right"),
            world=world,
        )
    if not world.leads:
        return None
    print(json.dumps(result.entries, indent=2) if found.json else result)
    if any(entry["flags"] is None for entry in result.entries):
        screen.say("these results are not kept; --out FOLDER keeps them")
    return None


def check(args: list[str]) -> None:
    """Tells whether a model resists attacks or only hides its gradients: five behaviours, a verdict each."""
    parser = Parser(prog="pixelpart check", description=check.__doc__)
    parser.add_argument("model", metavar="MODEL", help="as in `pixelpart evaluate`")
    parser.add_argument(
        "--surrogate",
        metavar="MODEL",
        help="another model for the same images, for the black-box attack (here: a small one, trained on the way where "
        "the training set is small)",
    )
    parser.add_argument("--data", metavar="NAME", help="test images, as in `pixelpart evaluate`")
    parser.add_argument("--out", type=Path, help="folder that keeps check.json (here: the run's own; else none)")
    parser.add_argument("--checkpoint", default="best", help="of a run folder: best, last or epoch-N")
    eps, step_size = defaults.EPS, defaults.STEP_SIZE
    parser.add_argument("--eps", type=fraction, default=eps, help=f"the smallest ball (here: {write_fraction(eps)})")
    parser.add_argument(
        "--step-size",
        type=fraction,
        default=step_size,
        help=f"length of a step in that ball; it grows with eps (here: {write_fraction(step_size)})",
    )
    parser.add_argument("--images", type=positive, help="the first so many test images (here: 1000)")
    parser.add_argument("--seed", type=int, default=defaults.SEED, help="seed of random starts and points")
    parser.add_argument("--batch-size", type=positive, help="images at a time (here: 1024 on a GPU, 128 elsewhere)")
    add_device_and_root(parser)
    parser.add_argument("--json", action="store_true", help="the content of check.json on stdout")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    found = parser.parse_all(args)
    from pixelpart.evaluation.obfuscation import check as run_check

    screen = Screen(quiet=found.quiet)
    with screen.bars() as move:
        report = run_check(
            found.model,
            surrogate=found.surrogate,
            eps=found.eps,
            step_size=found.step_size,
            images=found.images,
            checkpoint=found.checkpoint,
            seed=found.seed,
            batch_size=found.batch_size,
            device=found.device,
            progress=lambda what, done, total: move(what, done, total, ""),
            data=found.data,
            root=found.data_root,
            out=found.out,
        )
    print(json.dumps(report.as_json(), indent=2) if found.json else report)
    if report.kept is None:
        screen.say("this report is not kept; --out FOLDER keeps it")


def corruptions(args: list[str]) -> None:
    """Measures a model's accuracy on test images with noise, blur, weather and the like: CIFAR-10-C."""
    parser = Parser(prog="pixelpart corruptions", description=corruptions.__doc__)
    parser.add_argument("model", metavar="MODEL", help="as in `pixelpart evaluate`")
    parser.add_argument("--data", metavar="NAME", help="test images, as in `pixelpart evaluate`")
    parser.add_argument(
        "--out", type=Path, help="folder that keeps results and has them again (here: the run's own; else none)"
    )
    parser.add_argument("--names", help="comma-separated corruptions, such as fog,snow (here: all 19)")
    parser.add_argument("--severities", type=positives, help="comma-separated (here: 1,2,3,4,5)")
    parser.add_argument("--checkpoint", default="best", help="of a run folder: best, last or epoch-N")
    parser.add_argument("--images", type=int, help="the first so many test images (here: all)")
    parser.add_argument(
        "--folder", type=Path, help="the .npy files of CIFAR-10-C (here: CIFAR-10-C in the data root, else made)"
    )
    parser.add_argument(
        "--frost", type=Path, help="frost1.png to frost5.jpg (here: of the package imagecorruptions, else drawn frost)"
    )
    parser.add_argument("--batch-size", type=int, help="images at a time (here: 1024 on a GPU, 128 elsewhere)")
    add_device_and_root(parser)
    parser.add_argument("--json", action="store_true", help="means, and the entries of corruptions.json, on stdout")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    found = parser.parse_all(args)
    from pixelpart.evaluation import corruption

    screen = Screen(quiet=found.quiet)
    with screen.bars() as move:
        result = corruption.corruptions(
            found.model,
            names=found.names,
            **({"severities": found.severities} if found.severities else {}),
            checkpoint=found.checkpoint,
            images=found.images,
            folder=found.folder,
            frost=found.frost,
            batch_size=found.batch_size,
            device=found.device,
            data=found.data,
            root=found.data_root,
            out=found.out,
            say=screen.say,
            progress=move,
        )
    print(json.dumps(result.as_json(), indent=2) if found.json else result)
    if result.clean.entry["flags"] is None:
        screen.say("these results are not kept; --out FOLDER keeps them")


def explain(args: list[str]) -> None:
    """Makes the pictures of a run's report: heat, budget and attack of a few test images."""
    parser = Parser(prog="pixelpart explain", description=explain.__doc__)
    parser.add_argument("run", type=Path, help="run folder")
    parser.add_argument("--checkpoint", default="best", help="best, last or epoch-N")
    parser.add_argument("--images", type=int, default=12, help="so many, spread over the classes (here: %(default)s)")
    add_device_and_root(parser)
    found = parser.parse_all(args)
    from pixelpart.evaluation.explain import explain as run_explanation

    print(
        run_explanation(
            found.run, n=found.images, checkpoint=found.checkpoint, device=found.device, root=found.data_root
        )
    )


def compare(args: list[str]) -> None:
    """Tells whether two methods, or two models, differ on the same images: compare RUN ... --with RUN ..."""
    parser = Parser(prog="pixelpart compare", description=compare.__doc__)
    parser.add_argument("runs", type=Path, nargs="*", metavar="RUN", help="one run folder, or the seeds of one method")
    parser.add_argument("--with", dest="others", type=Path, nargs="+", metavar="RUN", help="what to compare them with")
    parser.add_argument("--attacks", help="comma-separated (here: all that every run has been put to)")
    parser.add_argument("--checkpoint", default="best", help="best, last or epoch-N")
    parser.add_argument(
        "--calibrate",
        action="store_true",
        help="no --with: how often one method is called different from itself, in simulation, and among the runs if "
        "there are four or more",
    )
    simulated = parser.add_argument_group("what --calibrate simulates (here: a world like that of the runs, if any)")
    simulated.add_argument("--seeds", type=positives, help="comma-separated: runs a side (here: 1,2,3,5,8)")
    simulated.add_argument("--repeats", type=positive, help="comparisons for each of them (here: 2000)")
    simulated.add_argument("--images", type=positive, help="test images (here: 10000)")
    simulated.add_argument("--accuracy", type=float, help="of both sides (here: 0.5)")
    simulated.add_argument("--deviation", type=float, help="of the accuracy from seed to seed (here: 0.003)")
    simulated.add_argument("--correlation", type=float, help="how alike two seeds find the images (here: 0.95)")
    parser.add_argument("--json", action="store_true", help="the same as JSON on stdout")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    found = parser.parse_all(args)
    attacks = [name.strip() for name in found.attacks.split(",")] if found.attacks else None
    fields = ("seeds", "repeats", "images", "accuracy", "deviation", "correlation")
    world = {name: getattr(found, name) for name in fields if getattr(found, name) is not None}
    if found.calibrate and not found.others:
        from pixelpart.evaluation.calibration import calibrate

        with Screen(quiet=found.quiet).bars("times") as move:
            result: Any = calibrate(
                found.runs,
                attacks=attacks,
                checkpoint=found.checkpoint,
                progress=lambda what, done, total: move(what, done, total, ""),
                **world,
            )
    else:
        if found.calibrate or not found.runs or not found.others:
            raise UserError("say `compare RUN ... --with RUN ...` or `compare --calibrate [RUN ...]`")
        if world:
            raise UserError(f"compare takes --{next(iter(world))} with --calibrate alone")
        from pixelpart.evaluation.compare import compare as run_comparison
        from pixelpart.evaluation.compare import named

        result = run_comparison(named(found.runs, found.others), attacks=attacks, checkpoint=found.checkpoint)
    print(json.dumps(result.as_json(), indent=2) if found.json else result)


def report(args: list[str]) -> None:
    """Writes one HTML page about run folders: curves, a table with intervals, pictures."""
    parser = Parser(prog="pixelpart report", description=report.__doc__)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="run folders")
    parser.add_argument("--out", type=Path, default=Path("report.html"), help="the page (here: %(default)s)")
    found = parser.parse_all(args)
    from pixelpart.report import write_report

    print(write_report(found.runs, found.out))


def data(args: list[str]) -> None:
    """Fetches, lists and verifies data sets: data get NAME | data list | data verify NAME."""
    parser = Parser(prog="pixelpart data", description=data.__doc__)
    parser.add_argument("what", choices=("get", "list", "verify"))
    parser.add_argument("name", nargs="?", help="data set, folder:PATH or module:function, for get and verify")
    add_folder_options(parser)
    parser.add_argument("--data-root", type=Path, help="where data sets live ($PIXELPART_DATA or ~/.cache/pixelpart)")
    parser.add_argument("--json", action="store_true")
    found = parser.parse_all(args)
    if (found.name is None) != (found.what == "list"):
        raise UserError("say `data list`, `data get NAME` or `data verify NAME`")
    from dataclasses import asdict

    from pixelpart import data as sets

    if found.what == "list":
        rows = sets.listing(root=found.data_root)
    else:
        name = sets.use(with_options(found.name, size=found.size, skip_bad=found.skip_bad))
        job = sets.verify if found.what == "verify" else sets.get
        unit = "images" if sets.find(name).decodes else "B"
        with Screen().bars(unit) as move:
            rows = [job(name, root=found.data_root, progress=lambda done, total, what: move(what, done, total, ""))]
    if found.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
    else:
        for row in rows:
            about = f" ({row.about})" if found.what == "list" else ""
            size = f"{row.images:>7} images {row.bytes / 1e6:>8.1f} MB"
            bad = f", {row.skipped} bad left out" if row.skipped else ""
            print(f"{row.name:<12} {row.status:<10} {size}{bad}  {row.where}{about}")


def bench(args: list[str]) -> None:
    """Measures speed beside the usual way of doing the same: bench train | attack | cam | scale | autoattack RUN."""
    parser = Parser(prog="pixelpart bench", description=bench.__doc__)
    parser.add_argument("what", choices=benches.KINDS)
    parser.add_argument("run", nargs="?", metavar="RUN", help="autoattack: the run folder whose model is attacked")
    parser.add_argument("--model", help="the network (here: resnet18)")
    parser.add_argument("--batch-size", type=positive, help="images at a time (here: 128; autoattack: 1024 on a GPU)")
    parser.add_argument("--steps", type=positive, help="train, attack, scale: steps of PGD (here: 10)")
    parser.add_argument("--methods", help=f"train: comma-separated (here: {','.join(benches.METHODS)})")
    parser.add_argument("--precision", choices=benches.PRECISIONS, help="train: our own step's (here: bf16)")
    parser.add_argument("--images", type=positive, help="autoattack: the first so many test images (here: 1000)")
    parser.add_argument("--search", help="autoattack: precision of our search (here: bf16 on a GPU, else fp32)")
    parser.add_argument("--repeats", type=positive, help=f"times are medians of so many (here: {benches.REPEATS})")
    add_device_and_root(parser)
    parser.add_argument("--json", action="store_true", help="rows, machine and settings as JSON on stdout")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    found = parser.parse_all(args)
    settings: dict[str, Any] = {"device": found.device}
    for name in ("run", "model", "batch_size", "steps", "methods", "precision", "images", "search", "repeats"):
        value = getattr(found, name)
        if value is not None and name not in benches.TAKES[found.what]:
            said = "run folder" if name == "run" else f"--{name.replace('_', '-')}"
            raise UserError(f"bench {found.what} takes no {said}")
        if value is not None:
            settings[name] = benches.parse_methods(value) if name == "methods" else value
    if found.what == "autoattack":
        if found.run is None:
            raise UserError("say whose model is attacked: bench autoattack RUN")
        settings["root"] = found.data_root
    run_bench = getattr(importlib.import_module(f"pixelpart.bench.{found.what}"), f"bench_{found.what}")
    result = run_bench(say=Screen(quiet=found.quiet).say, **settings)
    print(json.dumps(result.as_json(), indent=2) if found.json else result)


def demo(args: list[str]) -> None:
    """Trains AT and PART on the embedded set, attacks both, and writes a page about them; minutes, no download."""
    parser = Parser(prog="pixelpart demo", description=demo.__doc__)
    parser.add_argument(
        "--out", type=Path, default=Path("demo"), help="folder for both runs and report.html (here: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", help="cpu, cuda, ... (a GPU where there is one)")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    found = parser.parse_all(args)
    from pixelpart.experiments.demo import run_demo
    from pixelpart.report import write_report

    runs = run_demo(found.out, seed=found.seed, device=found.device, screen=Screen(quiet=found.quiet))
    print(
        write_report(
            [run.dir for run in runs], found.out / "report.html", title="pixelpart demo: AT and PART on shapes"
        )
    )


# -- parts


def add_device_and_root(parser: Any) -> None:
    parser.add_argument("--device", help="cpu, cuda, ... (a GPU where there is one)")
    parser.add_argument("--data-root", type=Path, help="where data sets live ($PIXELPART_DATA or ~/.cache/pixelpart)")


def add_folder_options(parser: Any) -> None:
    parser.add_argument("--size", type=positive, help="of folder:PATH: pixels a side")
    parser.add_argument("--skip-bad", action="store_true", help="of folder:PATH: leave out files that cannot be used")


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


COMMANDS: dict[str, Callable[[list[str]], int | None]] = {
    "demo": demo,
    "train": train,
    "evaluate": evaluate,
    "check": check,
    "corruptions": corruptions,
    "compare": compare,
    "explain": explain,
    "report": report,
    "data": data,
    "bench": bench,
}
