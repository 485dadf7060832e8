"""One job: train, evaluate, measure. It may be killed at any moment; the next call resumes it."""

import dataclasses
import gc
import importlib
import json
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pixelpart.config import DEFAULT_STEP_SIZE, Config
from pixelpart.errors import Diverged, UserError
from pixelpart.files import atomic_write, exclusive_lock, parse_json, read_text
from pixelpart.runs import Run, RunFolder, read_facts
from pixelpart.runtime.progress import Screen
from pixelpart.sweeps.identity import identity

WAIT_SECONDS = 1.0  # between two checks of a burn-in that another process trains


@dataclass(frozen=True)
class Job:
    """A run to be trained and evaluated."""

    config: Config
    attacks: tuple[str, ...] = ()
    checkpoint: str = "best"
    images: int | None = None  # the first n test images; None: all
    split: str = "test"
    step_size: float | None = None  # of the attacks; None: the default of `evaluate`
    # module:function, called with run, job and device; its JSON is kept in the run's measures/
    measures: tuple[str, ...] = ()

    @cached_property
    def id(self) -> str:
        return identity(self.config)

    @property
    def request(self) -> dict[str, Any]:
        """What is done with the trained run, as JSON."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.name != "config"}
        return values | {"attacks": list(self.attacks), "measures": list(self.measures)}


class JobFiles:
    """The files of the job with this id in the sweep folder `out`."""

    def __init__(self, out: Path, id: str) -> None:
        self.run = RunFolder(out / "runs" / id)
        self.done = self.run.path / "done.json"
        self.lock, self.error = out / "jobs" / f"{id}.lock", out / "jobs" / f"{id}.error"

    def is_done(self, job: Job) -> bool:
        """Whether the run is trained and all that the job requests was done with it."""
        return job.request in self.read_done() and all(self.measure(name).exists() for name in job.measures)

    def measure(self, name: str) -> Path:
        """Where the JSON of a measure, module:function, is kept."""
        return self.run.path / "measures" / f"{name.partition(':')[2]}.json"

    def read_done(self) -> list[dict[str, Any]]:
        """The requests that are done; those of a file that cannot be read are done again."""
        try:
            requests = parse_json(read_text(self.done))
        except (OSError, ValueError):
            return []
        return [_without_default(request) for request in requests] if isinstance(requests, list) else []

    def add_done(self, job: Job) -> None:
        before = [request for request in self.read_done() if request != job.request]
        atomic_write(self.done, json.dumps([*before, job.request], indent=2) + "\n")

    def begun(self) -> Config | None:
        """The config of the run if there is a checkpoint from which it resumes."""
        return self.run.read_config() if self.run.checkpoint("last").exists() else None


@dataclass(frozen=True)
class Task:
    """One run and all jobs that use it, performed by one process."""

    out: Path
    id: str
    config: Config
    jobs: tuple[Job, ...] = ()
    parent: "Task | None" = None  # the burn-in that the run is forked from
    burn_in: int | None = None  # its last epoch, if the task trains only a burn-in that other runs are forked from
    device: str | None = None


def _without_default(request: Any) -> Any:
    """A request of a version that wrote the default step size of the attacks as a number."""
    if not isinstance(request, dict) or request.get("step_size") != DEFAULT_STEP_SIZE:
        return request
    return request if "@" in str(request.get("attacks")) else request | {"step_size": None}


def perform(task: Task, screen: Screen | None = None) -> str:
    """Does the task; returns the error, which is also written to a file, or an empty string."""
    files = JobFiles(task.out, task.id)
    with exclusive_lock(files.lock, wait=True):
        files.error.unlink(missing_ok=True)
        screen = screen or Screen(quiet=True)
        try:
            # a burn-in has no jobs; it may be of a run found in the folder, but only of one with the names of a job
            use_code([job.config for job in task.jobs] or [task.config])
            run = _train(task, files, screen)
            for job in task.jobs:
                if not files.is_done(job):
                    _evaluate(run, job, files, task.device, screen)
                    files.add_done(job)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # also SystemExit of user code
            short = isinstance(error, UserError | Diverged)
            atomic_write(files.error, f"{error}\n" if short else traceback.format_exc())
            return last_line(files.error)
        finally:
            _free_memory()
    return ""


def use_code(configs: Sequence[Config]) -> None:
    """Allows the networks and the data sets of configs that the caller gave to be user code."""
    from pixelpart import data, models

    for config in configs:
        models.use(config.model)
        data.use(config.dataset)


def last_line(path: Path) -> str:
    return read_text(path, errors="replace").rstrip().rpartition("\n")[2] if path.exists() else ""


def _train(task: Task, files: JobFiles, screen: Screen) -> Run:
    from pixelpart.engine.train import train
    from pixelpart.engine.training_data import with_data_fields

    config = files.begun()
    if config is None:
        config = task.config
        if (parent := task.parent) and _provide_burn_in(parent, screen):
            config = config.model_copy(update={"init_from": f"{parent.out / 'runs' / parent.id}@{parent.burn_in}"})
        if files.run.config_file.exists():  # killed before its first save; then it may have been planned otherwise
            atomic_write(files.run.config_file, with_data_fields(config).to_json())
    last = files.run.checkpoint("last")
    if not last.exists() or read_facts(last)["position"]["epoch"] < config.epochs:
        train(config, files.run.path, device=task.device, screen=screen, stop_after=task.burn_in)
    return Run(files.run.path)


def _provide_burn_in(task: Task, screen: Screen) -> bool:
    """Waits for the shared burn-in, or trains it if no other process does; False if that fails."""
    files = JobFiles(task.out, task.id)
    checkpoint = files.run.checkpoint(f"epoch-{task.burn_in}")
    while not checkpoint.exists():
        with ExitStack() as stack:
            try:
                stack.enter_context(exclusive_lock(files.lock, wait=False))
            except BlockingIOError:
                time.sleep(WAIT_SECONDS)
                continue
            try:
                _train(task, files, screen)
            except Exception:  # reported by that run itself; this one then trains its own first epochs
                return False
            return checkpoint.exists()
    return True


def _evaluate(run: Run, job: Job, files: JobFiles, device: str | None, screen: Screen) -> None:
    from pixelpart.evaluation.evaluate import evaluate

    if job.attacks:
        settings: dict[str, Any] = {"checkpoint": job.checkpoint, "images": job.images, "split": job.split}
        settings["step_size"] = job.step_size
        with screen.bars("tries") as progress:
            evaluate(run, attacks=job.attacks, device=device, progress=progress, **settings)
    for name in job.measures:
        module, _, function = name.partition(":")
        if not (path := files.measure(name)).exists():
            value = getattr(importlib.import_module(module), function)(run, job, device)
            atomic_write(path, json.dumps(value) + "\n")


def _free_memory() -> None:
    """Frees what the run has compiled and captured on a GPU: the next job of the process starts like the first."""
    torch = sys.modules.get("torch")
    if torch and torch.cuda.is_initialized():
        gc.collect()
        torch._dynamo.reset()
        torch.cuda.empty_cache()
