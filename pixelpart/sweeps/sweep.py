"""`sweep`: trains and evaluates the runs of a grid file that are not there yet, and returns one table of all."""

from collections.abc import Sequence
from pathlib import Path

from pixelpart.runtime.progress import Screen
from pixelpart.sweeps.grid import Grid, read_grid
from pixelpart.sweeps.jobs import job_states, run_jobs
from pixelpart.sweeps.table import SweepTable, read_table
from pixelpart.sweeps.work import Job, JobFiles, use_code


def sweep(
    grid: str | Path | Grid,
    *,
    out: str | Path,
    workers: int = 1,
    threads: int | None = None,
    device: str | None = None,
    on: str = "local",
    screen: Screen | None = None,
) -> SweepTable:
    """A row per run of the grid, in its order, and `means` over seeds; a failed run has the state and its error.

    The runs are kept in the folder `out`, and the same call starts only what is missing there. `workers` processes
    share the jobs, each with a GPU of its own if possible, and compute with `threads` CPU threads, or as many as the
    grid says. On "slurm" the jobs are submitted, and what is there so far is returned at once.
    """
    if not isinstance(grid, Grid):
        grid = read_grid(Path(grid))
    check_values(grid.jobs, Path(out))
    run_jobs(
        grid.jobs, Path(out), workers=workers, threads=threads or grid.threads, device=device, on=on,
        slurm=grid.slurm, screen=screen,
    )  # fmt: skip
    return table_of(grid, Path(out))


def check_values(jobs: Sequence[Job], out: Path) -> None:
    """UserError for the first value that `train` would reject, such as an unknown name, in the runs not begun yet."""
    from pixelpart.engine.checkpoint import find_parent
    from pixelpart.engine.plan import check_plans
    from pixelpart.engine.training_data import with_data_fields

    configs = [job.config for job in jobs if not JobFiles(out, job.id).run.config_file.exists()]
    use_code(configs)
    # the grid has the fields of folders, which take long to list
    check_plans([c if c.dataset.startswith("folder:") else with_data_fields(c) for c in configs])
    for config in configs:
        if config.init_from:
            find_parent(config)


def table_of(grid: Grid, out: Path) -> SweepTable:
    """The table of what is there; nothing is started."""
    states = job_states(grid.jobs, out)
    table = read_table(grid.jobs, {state.job.id: state.folder for state in states})
    for row, state in zip(table, states, strict=True):
        row |= {"state": state.state, "error": state.error}
    return table
