"""Many jobs in one folder: OUT/runs/ID are the runs, OUT/jobs the locks and errors of jobs.

Jobs are found again by their identity, so that the same call starts only what is missing.
"""

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pixelpart.config import differing_fields
from pixelpart.errors import UserError, unknown
from pixelpart.files import lock_holder, locked_folder
from pixelpart.runs import RunFolder
from pixelpart.runtime.progress import Screen
from pixelpart.sweeps import local
from pixelpart.sweeps import slurm as slurm_jobs
from pixelpart.sweeps.burn_ins import share_burn_ins
from pixelpart.sweeps.identity import identity
from pixelpart.sweeps.labels import describe
from pixelpart.sweeps.work import Job, JobFiles, Task, last_line, perform

PLACES = ("local", "slurm")


@dataclass(frozen=True)
class JobState:
    """How far a job has come."""

    job: Job
    folder: Path
    state: str  # done, running, failed, unfinished or missing
    error: str = ""  # the last line, of a failed job


def run_jobs(
    jobs: Sequence[Job],
    out: Path,
    *,
    workers: int = 1,
    threads: int = 1,
    device: str | None = None,
    on: str = "local",
    slurm: Mapping[str, Any] | None = None,
    screen: Screen | None = None,
    names: Mapping[str, str] | None = None,
) -> list[JobState]:
    """Trains and evaluates what is missing in the folder `out`, then returns the state of every job.

    A failed job does not stop the others. Each job computes with `threads` CPU threads, so that results do not depend
    on the number of workers. `names`, by id, are shown in place of the fields in which jobs differ.
    """
    if on not in PLACES:
        raise unknown("place", on, PLACES)
    screen = screen or Screen()
    with locked_folder(out, "sweep"):
        burn_ins, tasks = plan(jobs, out, device=device)
        if on == "slurm" and tasks:
            ids = slurm_jobs.submit(burn_ins, tasks, out.resolve(), threads=threads, settings=slurm or {})
            for what, numbers in zip(("burn-ins", "jobs"), ids, strict=True):
                if numbers:
                    screen.say(f"submitted {what}: {' '.join(numbers)}")
        elif tasks:
            if device is not None:
                from pixelpart.runtime.device import choose_device

                choose_device(device)  # a mistake ends the sweep, not every job
            log = _SweepLog(tasks, screen, names or describe([task.jobs[0] for task in tasks]))
            try:
                with local.sigterm_as_interrupt():
                    if workers == 1:
                        with local.cpu_threads(threads):
                            for task in (*burn_ins, *tasks):
                                screen.say(f"{log.name(task)}: started")
                                log.add(task, perform(task, screen))
                    else:
                        _run_workers((burn_ins, tasks), out, log, workers=workers, threads=threads, device=device)
            except KeyboardInterrupt:
                screen.say(f"stopped after {log.finished} of {len(tasks)} runs; the same command resumes")
                raise
    return job_states(jobs, out)


class _SweepLog:
    """Prints a line for every finished task."""

    def __init__(self, tasks: list[Task], screen: Screen, names: Mapping[str, str]) -> None:
        self.tasks, self.screen, self.names, self.finished, self.begun = tasks, screen, names, 0, time.monotonic()

    def name(self, task: Task) -> str:
        name = self.names.get(task.id, task.id)
        return f"burn-in of {name}" if task.burn_in else name

    def add(self, task: Task, error: str) -> None:
        self.finished += not task.burn_in
        count = "" if task.burn_in else f"{self.finished}/{len(self.tasks)} "
        seconds = time.monotonic() - self.begun
        self.screen.say(f"{count}{self.name(task)}: {f'failed: {error}' if error else 'done'}, {seconds:.0f} s")


def _run_workers(
    stages: Sequence[list[Task]], out: Path, log: _SweepLog, *, workers: int, threads: int, device: str | None
) -> None:
    """Performs the stages one after the other in several processes."""
    folders = [RunFolder(out / "runs" / task.id) for task in stages[1]]
    total = sum(task.config.epochs for task in stages[1])
    with log.screen.bars("epochs") as progress, local.started(workers, out, threads=threads, device=device) as pool:

        def watch() -> None:
            progress("sweep", sum(map(_epochs, folders)), total, f"{log.finished} done")

        for stage in stages:
            local.perform_with(pool, stage, on_finished=log.add, watch=watch)


def plan(jobs: Iterable[Job], out: Path, *, device: str | None) -> tuple[list[Task], list[Task]]:
    """The burn-ins that several runs share, and a task per run that is not done."""
    runs: dict[str, list[Job]] = {}
    for job in jobs:
        runs.setdefault(job.id, []).append(job)
    tasks = []
    for id, group in runs.items():
        _require_same_run(group[0], RunFolder(out / "runs" / id))
        missing = tuple(job for job in group if not JobFiles(out, id).is_done(job))
        if missing:
            tasks.append(Task(out.resolve(), id, missing[0].config, missing, device=device))
    return share_burn_ins(tasks)


def _require_same_run(job: Job, folder: RunFolder) -> None:
    """UserError if the folder holds a run with another config, as after an edit."""
    if not folder.config_file.exists():
        return
    theirs = folder.read_config()
    own = {name: getattr(job.config, name) for name in ("init_from", "keep")}  # which sharing burn-ins sets
    planned = theirs.model_copy(update=own)  # without the run that it was forked from, which may be deleted
    if identity(planned) != job.id and identity(theirs, folder=folder.path) != job.id:
        differing = "; ".join(differing_fields(planned, job.config))
        raise UserError(f"{folder.path} holds a run with another config ({differing}); move it away")


def job_states(jobs: Iterable[Job], out: Path) -> list[JobState]:
    """The state of every job, read from files."""
    return [_state(job, JobFiles(out, job.id)) for job in jobs]


def _state(job: Job, files: JobFiles) -> JobState:
    if files.is_done(job):
        state = "done"
    elif lock_holder(files.lock):
        state = "running"
    elif files.error.exists():
        state = "failed"
    else:
        state = "unfinished" if files.run.config_file.exists() else "missing"
    return JobState(job, files.run.path, state, last_line(files.error) if state == "failed" else "")


def find_finished(jobs: Iterable[Job], root: Path, say: Callable[[str], None] = lambda text: None) -> dict[str, Path]:
    """The folders of finished runs below `root`, by the ids of the jobs.

    Of several with one id, the one with flags of the most attacks, then the first by name. `say` gets a line for each
    fork whose parent is not there, since it is then unknown which run it is.
    """
    wanted, folders = {job.id for job in jobs}, dict[str, Path]()
    paths = (path.parent for path in root.rglob("config.json"))
    for path in sorted(paths, key=lambda path: (-len([*path.glob("eval/*.npy")]), path)):
        folder = RunFolder(path)
        with contextlib.suppress(UserError):
            config = folder.read_config()
            try:
                id = identity(config, folder=path)
            except UserError as error:
                say(f"not used: {path}, a fork of {config.init_from}: {error}")
                continue
            if id in wanted - folders.keys() and _epochs(folder) == config.epochs:
                folders[id] = path
    return folders


def _epochs(folder: RunFolder) -> int:
    rows = folder.read_metrics([])  # corrupt lines are reported where figures are made of them
    return rows[-1]["epoch"] if rows else 0
