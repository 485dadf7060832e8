"""`pixelpart experiment`."""

import json
from pathlib import Path

from pixelpart.cli.arguments import Parser, add_device, add_output, add_threads, positive_int
from pixelpart.errors import choose
from pixelpart.experiments import EXPERIMENTS
from pixelpart.runtime.progress import Screen
from pixelpart.runtime.tables import text_table


def experiment(argv: list[str]) -> int:
    """Runs an experiment of the paper, or lists them: trains, attacks, writes a table and a figure."""
    parser = Parser("experiment", experiment.__doc__)
    add = parser.add_argument
    add("name", nargs="?", metavar="NAME", help="experiment (default: list them)")
    add("--scale", default="demo", help="demo: shapes, four epochs, a CPU; paper: the paper's recipes, a GPU")
    add("--data", metavar="NAME", help="table1 at paper scale: cifar10, svhn or tinyimagenet (default: cifar10)")
    add(
        "--seeds",
        type=positive_int,
        metavar="N",
        help="runs of each arm, with seeds 0 to N - 1 (default: by experiment)",
    )
    add("--arms", nargs="+", default=(), metavar="ARM", help="train only these; the table shows others that are there")
    add("--out", type=Path, metavar="FOLDER", help="folder for runs, tables and figures (default: experiments/SCALE)")
    add("--from", dest="source", type=Path, metavar="FOLDER", help="use the finished runs below FOLDER; train nothing")
    add("--workers", type=positive_int, default="1", metavar="N", help="runs at a time")
    add_threads(parser, runs="1")
    add("--on", default="local", help="local, or slurm: submit the runs and return")
    add_device(parser)
    add_output(parser, json="print result.json instead of the table")
    args = parser.parse_all(argv)
    if args.name is None:
        print(listing())
        return 0
    choose(EXPERIMENTS, args.name, "experiment")
    from pixelpart.experiments.common.experiment import run_experiment

    screen = Screen(quiet=args.quiet)
    outcome = run_experiment(
        args.name, out=args.out or Path("experiments") / args.scale, scale=args.scale, data=args.data,
        seeds=args.seeds, only=args.arms, source=args.source, workers=args.workers, threads=args.threads or 1,
        device=args.device, on=args.on, screen=screen,
    )  # fmt: skip
    shown = outcome.results.as_json() if outcome.results else {"waits": outcome.text}
    print(json.dumps(shown, indent=2) if args.json else outcome.text)
    for state in outcome.failed:
        screen.say(f"failed: {state.folder}: {state.error}")
    if outcome.missing:
        screen.say(f"{len(outcome.missing)} of {len(outcome.states)} runs are not finished; run the command again")
    if outcome.results:
        screen.say(f"table.md, table.tex, figure.png, figure.pdf and result.json are in {outcome.folder}")
    return 1 if outcome.failed else 0


def listing() -> str:
    """Name, number in the paper, title and time of each experiment."""
    head = ["name", "in the paper", "what", "--scale demo", "--scale paper"]
    rows = [[name, one.number, one.title, one.demo, one.paper] for name, one in EXPERIMENTS.items()]
    about = (
        "Estimated times. demo: shapes, four epochs, two CPU cores; paper: the paper's recipes, three seeds, one H200"
    )
    return f"{text_table(head, rows)}\n\n{about}"
