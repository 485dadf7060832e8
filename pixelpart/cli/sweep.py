"""`pixelpart sweep`."""

import json
from collections import Counter
from pathlib import Path

from pixelpart.cli.arguments import Parser, add_device, add_output, add_threads, positive_int
from pixelpart.files import atomic_write
from pixelpart.runtime.progress import Screen

EXAMPLE = """the form of GRID, in TOML:
  base = "shapes-part"            # a recipe, or the path of a config
  attacks = "natural,pgd20"       # also: checkpoint, images, split, threads
  [set]                           # fields that all runs share, named as by the options of `train`
  epochs = 12                     # model and data may also be code of your own, module:function
  [grid]                          # every combination; [zip]: lists that go together
  seed = [0, 1]
  eps_low = ["6/255", "7/255"]
  [slurm]                         # passed to submitit
  timeout_min = 60"""


def sweep(argv: list[str]) -> int:
    """Trains and evaluates every run of a grid, here or on Slurm; run again, it starts only what is missing."""
    parser = Parser("sweep", f"{sweep.__doc__}\n\n{EXAMPLE}")
    add = parser.add_argument
    add("grid", type=Path, metavar="GRID", help="TOML file")
    add("--out", type=Path, metavar="FOLDER", help="folder of the runs (default: sweeps/GRID)")
    add(
        "--workers", type=positive_int, metavar="N", help="processes that share the runs (default: one, or one per GPU)"
    )
    add("--on", default="local", help="local or slurm")
    add("--status", action="store_true", help="start nothing; print the state of every run, read from files only")
    add("--table", type=Path, metavar="FILE", help="write the table as CSV; as FILE.tex, that of the means over seeds")
    add_device(parser)
    add_threads(parser, runs="threads of GRID, or 1")
    add_output(parser, json="print the table as JSON")
    args = parser.parse_all(argv)
    from pixelpart.sweeps.grid import read_grid
    from pixelpart.sweeps.local import visible_gpus
    from pixelpart.sweeps.sweep import sweep as run_sweep
    from pixelpart.sweeps.sweep import table_of

    grid = read_grid(args.grid)
    out = args.out or Path("sweeps") / args.grid.stem
    if not args.status:
        workers = args.workers or max(1, len(visible_gpus()) if args.device in (None, "cuda") else 1)
        screen = Screen(quiet=args.quiet)
        table = run_sweep(
            grid, out=out, workers=workers, threads=args.threads, device=args.device, on=args.on, screen=screen
        )
    else:
        table = table_of(grid, out)
    if args.table and args.table.suffix == ".tex":
        from pixelpart.experiments.common.tables import Table, latex

        means = Table("Mean [95 % interval], budget in 1/255", *table.means_as_text, table.notes)
        atomic_write(args.table, latex([means]))
    elif args.table:
        table.write_csv(args.table)
    states = Counter(row["state"] for row in table)
    if args.json:
        print(json.dumps(table, indent=2))
    else:
        print(table)
        print(", ".join(f"{n} {state}" for state, n in states.items()))
    return 1 if states["failed"] and not args.status else 0
