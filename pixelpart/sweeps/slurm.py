"""Tasks on Slurm, through submitit: burn-ins are a first array, on which the jobs depend."""

import json
import shutil
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from pixelpart.errors import UserError
from pixelpart.files import atomic_write
from pixelpart.sweeps.work import Task, perform

RESTARTS = 1000  # how often a job may reach its time limit
DEFAULTS = {"name": "pixelpart", "timeout_min": 60}
OF_ANY_CLUSTER = (
    "name", "timeout_min", "mem_gb", "nodes", "cpus_per_task", "gpus_per_node", "tasks_per_node", "stderr_to_stdout",
)  # fmt: skip


class SlurmTask:
    """What submitit pickles and calls. At the time limit it is saved, then submitit puts it back into the queue."""

    def __init__(self, threads: int) -> None:
        self.threads = threads

    def __call__(self, task: Task) -> None:
        import torch

        torch.set_num_threads(self.threads)
        requeue, received = signal.getsignal(signal.SIGUSR2), list[tuple[int, FrameType | None]]()

        def save_first(number: int, frame: FrameType | None) -> None:
            received.append((number, frame))
            signal.raise_signal(signal.SIGTERM)

        signal.signal(signal.SIGUSR2, save_first)
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            error = perform(task)
        except KeyboardInterrupt:
            if received and callable(requeue):
                signal.signal(signal.SIGTERM, signal.SIG_IGN)  # Slurm sends it on requeueing
                requeue(*received[0])
            raise
        if error:
            raise RuntimeError(error)

    def checkpoint(self, task: Task) -> Any:
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, task)


def submit(
    burn_ins: list[Task], tasks: list[Task], out: Path, *, threads: int, settings: Mapping[str, Any]
) -> tuple[list[str], list[str]]:
    """Submits what is not in the queue yet; returns the Slurm ids of the burn-ins and of the jobs."""
    executor = _executor(out / "slurm", DEFAULTS | {"cpus_per_task": threads} | dict(settings))
    record, queued = out / "slurm" / "submitted.json", _queue()
    known: dict[str, str] = json.loads(record.read_text(encoding="utf-8")) if record.exists() else {}
    known = {name: id for name, id in known.items() if id in queued}
    ids: list[list[str]] = []
    for stage in (burn_ins, tasks):
        named = {f"{task.id}@{task.burn_in}" if task.burn_in else task.id: task for task in stage}
        new = {name: task for name, task in named.items() if name not in known}
        submitted = _submit(executor, SlurmTask(threads), list(new.values()))
        known |= dict(zip(new, submitted, strict=True))
        atomic_write(record, json.dumps(known, indent=2) + "\n")
        ids.append(submitted)
        if first := sorted(id for name, id in known.items() if "@" in name):
            executor.update_parameters(slurm_dependency=f"afterany:{':'.join(first)}")
    return ids[0], ids[1]


def _executor(folder: Path, settings: dict[str, Any]) -> Any:
    try:
        import submitit
    except ImportError:
        raise UserError("--on slurm needs submitit: pip install 'pixelpart[slurm]'") from None
    if shutil.which("sbatch") is None:
        raise UserError("--on slurm needs Slurm: there is no sbatch on the PATH")
    executor = submitit.AutoExecutor(folder, cluster="slurm", slurm_max_num_timeout=RESTARTS)
    try:
        executor.update_parameters(**{k if k in OF_ANY_CLUSTER else f"slurm_{k}": v for k, v in settings.items()})
    except (NameError, ValueError, TypeError, AssertionError) as error:
        raise UserError(f"[slurm]: {str(error).splitlines()[0]}") from None
    if "signal_delay_s" not in settings:  # Slurm may warn a minute early: 90 s would leave nothing of 2 minutes
        executor.update_parameters(slurm_signal_delay_s=min(90, 15 * settings["timeout_min"]))
    return executor


def _submit(executor: Any, function: SlurmTask, tasks: list[Task]) -> list[str]:
    from submitit.core.utils import FailedJobError

    try:
        return [job.job_id for job in executor.map_array(function, tasks)] if tasks else []
    except FailedJobError as error:
        raise UserError(f"sbatch: {str(error).strip().splitlines()[-1]}") from None


def _queue() -> set[str]:
    """The ids of the user's jobs that wait or run; an array's are ARRAY_NUMBER."""
    command = ["squeue", "--me", "--noheader", "--array", "--format", "%i"]
    try:
        return set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())
    except subprocess.CalledProcessError as error:
        raise UserError(f"squeue: {error.stderr.strip()}") from None
