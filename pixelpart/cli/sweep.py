"""`pixelpart sweep`."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from pixelpart.cli.arguments import Parser, add_device, add_output, add_threads, positive_int
from pixelpart.files import atomic_write
from pixelpart.runtime.progress import Screen
from pixelpart.runtime.tables import text_table

if TYPE_CHECKING:
    from pixelpart.sweeps.table import Table
    from pixelpart.sweeps.work import Job

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


def sweep(args: list[str]) -> int:
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
    found = parser.parse_all(args)
    from pixelpart.sweeps.grid import read_grid
    from pixelpart.sweeps.local import visible_gpus
    from pixelpart.sweeps.sweep import sweep as run_sweep
    from pixelpart.sweeps.sweep import table_of

    grid = read_grid(found.grid)
    out = found.out or Path("sweeps") / found.grid.stem
    if not found.status:
        workers = found.workers or max(1, len(visible_gpus()) if found.device in (None, "cuda") else 1)
        screen = Screen(quiet=found.quiet)
        table = run_sweep(
            grid, out=out, workers=workers, threads=found.threads, device=found.device, on=found.on, screen=screen
        )
    else:
        table = table_of(grid, out)
    head, means = ["mean over seeds", "seeds", "budget", *grid.jobs[0].attacks], seed_means(grid.jobs, table, out)
    if found.table and found.table.suffix == ".tex":
        from pixelpart.experiments.common.tables import Table, latex

        atomic_write(found.table, latex([Table("Mean [95 % interval], budget in 1/255", head, means, table.notes)]))
    elif found.table:
        table.write_csv(found.table)
    states = Counter(row["state"] for row in table)
    if found.json:
        print(json.dumps(table, indent=2))
    else:
        print(table)
        if any(int(seeds) > 1 for _, seeds, *_ in means):
            print(f"\n{text_table(head, means)}\n")
        print(", ".join(f"{n} {state}" for state, n in states.items()))
    return 1 if states["failed"] and not found.status else 0


def seed_means(jobs: Sequence["Job"], table: "Table", out: Path) -> list[list[str]]:
    """A row per arm: label, seeds that have all results, mean budget and mean accuracies over these."""
    from pixelpart.sweeps.table import arms, find_entry
    from pixelpart.sweeps.work import JobFiles

    attacks, rows, budgets = jobs[0].attacks, [], {row["run"]: row["budget"] for row in table}
    for arm, group in arms(jobs).items():
        folders = {job.id: JobFiles(out, job.id).run.path for job in group}
        runs = {
            job.id: [(folders[job.id], find_entry(job, attack, folders[job.id])) for attack in attacks] for job in group
        }
        complete = {id: run for id, run in runs.items() if run and all(entry for _, entry in run)}
        if complete:
            known = [budgets[id] for id in complete if budgets[id] is not None]
            budget = f"{fmean(known):.2f}" if known else ""
            columns = zip(*complete.values(), strict=True)
            rows.append([arm, str(len(complete)), budget, *(mean(column) for column in columns)])
    return rows


def mean(results: Sequence[tuple[Path, Any]]) -> str:
    """The mean accuracy of runs, folder and entry of each, with its interval if all have their flags.

    A star marks it if one of them has warnings.
    """
    import numpy as np

    from pixelpart.evaluation.store import read_flags
    from pixelpart.experiments.common.intervals import accuracy_interval
    from pixelpart.sweeps.table import percent

    flags = [found for folder, entry in results if (found := read_flags(folder, entry)) is not None]
    interval = None
    if len(flags) == len(results) and len(set(map(len, flags))) == 1:
        low, high = accuracy_interval(np.stack(flags))
        interval = max(0.0, low / 100), min(1.0, high / 100)
    warned = any(entry.get("warnings") for _, entry in results)
    return percent(fmean(entry["accuracy"] for _, entry in results), interval, warned=warned)
