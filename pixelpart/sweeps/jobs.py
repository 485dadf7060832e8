"""Many jobs in one folder: OUT/runs/ID are the runs, OUT/jobs/ID.* say what was done with each, and its error.

Jobs are found again by their identity, so that the same call starts only what is missing.
"""

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pixelpart.config import Config
from pixelpart.errors import UserError
from pixelpart.files import exclusive_lock
from pixelpart.runs import RunFolder
from pixelpart.runtime.progress import Screen
from pixelpart.sweeps.burn_ins import share_burn_ins
from pixelpart.sweeps.identity import identity
from pixelpart.sweeps.work import Job, JobFiles, Task, last_line, perform


@dataclass(frozen=True)
class JobState:
    """How far a job has come."""

    job: Job
    folder: Path
    state: str  # done, running, failed or missing
    error: str = ""  # the last line, of a failed job
    epochs: int = 0  # that are trained


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
) -> list[JobState]:
    """Trains and evaluates what is missing in the folder `out`, then returns the state of every job.

    A failed job does not stop the others. Each job computes with `threads` CPU threads, so that results do not depend
    on the number of workers.
    """
    screen = screen or Screen()
    with _locked(out):
        burn_ins, tasks = plan(jobs, out, device=device)
        for stage in (burn_ins, tasks):
            with _threads(threads):
                for task in stage:
                    perform(task, screen)
    return job_states(jobs, out)


def plan(jobs: Iterable[Job], out: Path, *, device: str | None) -> tuple[list[Task], list[Task]]:
    """The burn-ins that several runs share, and a task per run that is not done."""
    runs: dict[str, list[Job]] = {}
    for job in jobs:
        runs.setdefault(job.id, []).append(job)
    missing = {id: tuple(job for job in asked if not JobFiles(out, id).is_done(job)) for id, asked in runs.items()}
    tasks = [Task(out, id, asked[0].config, asked, device=device) for id, asked in missing.items() if asked]
    return share_burn_ins(tasks)


def job_states(jobs: Iterable[Job], out: Path) -> list[JobState]:
    """The state of every job, read from files."""
    return [_state(job, JobFiles(out, job.id)) for job in jobs]


def _state(job: Job, files: JobFiles) -> JobState:
    rows = files.run.read_metrics()
    if files.is_done(job):
        state = "done"
    elif _is_locked(files.lock):
        state = "running"
    else:
        state = "failed" if files.error.exists() else "missing"
    error = last_line(files.error) if state == "failed" else ""
    return JobState(job, files.run.path, state, error, rows[-1]["epoch"] if rows else 0)


def find_runs(jobs: Iterable[Job], root: Path) -> dict[str, Path]:
    """The run folders below `root`, by the ids of the jobs; of several the one with most epochs."""
    wanted, found = {job.id for job in jobs}, dict[str, Path]()
    for path in sorted(root.rglob("config.json")):
        with contextlib.suppress(UserError):
            id = identity(RunFolder(path.parent).read_config(), folder=path.parent)
            if id in wanted and (id not in found or _epochs(path.parent) > _epochs(found[id])):
                found[id] = path.parent
    return found


def _epochs(folder: Path) -> int:
    rows = RunFolder(folder).read_metrics()
    return rows[-1]["epoch"] if rows else 0


def _is_locked(path: Path) -> bool:
    if path.exists():
        try:
            with exclusive_lock(path, wait=False):
                pass
        except BlockingIOError:
            return True
    return False


@contextlib.contextmanager
def _locked(out: Path) -> Iterator[None]:
    """Keeps other sweeps out of the folder; UserError if one is working in it."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(exclusive_lock(out / ".lock", wait=False))
        except BlockingIOError:
            raise UserError(f"another process is running a sweep in {out}") from None
        except OSError as error:
            raise UserError(f"cannot use {out} as a sweep folder: {error.strerror}") from None
        yield


@contextlib.contextmanager
def _threads(n: int) -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)
