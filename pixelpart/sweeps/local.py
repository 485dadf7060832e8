"""Tasks on this machine: in this process, or in workers that each perform one task after the other.

A worker reads pickled tasks and answers each with a line, its error. When its input ends, because the sweep was stopped
or killed, it saves and ends.
"""

import contextlib
import os
import pickle
import queue
import select
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from pixelpart.files import atomic_write
from pixelpart.sweeps.work import JobFiles, Task, perform

WORKER = [sys.executable, "-m", "pixelpart.sweeps.local"]
POLL_SECONDS = 0.5
OnFinished = Callable[[Task, str], None]  # called with every finished task and its error


@contextlib.contextmanager
def cpu_threads(n: int) -> Iterator[None]:
    """Computes with n threads in this process."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def perform_with(
    workers: "list[Worker]", tasks: list[Task], *, on_finished: OnFinished, watch: Callable[[], None]
) -> None:
    """Performs the tasks, one per worker at a time; `watch` is called now and then."""
    waiting, busy = deque(tasks), dict[IO[bytes], Worker]()  # by the pipe of their answers
    while waiting or busy:
        for worker in workers:
            if waiting and worker not in busy.values():
                busy[worker.begin(waiting.popleft())] = worker
        watch()
        for answers in select.select(list(busy), [], [], POLL_SECONDS)[0]:
            on_finished(*busy.pop(answers).end())


@contextlib.contextmanager
def started(n: int, out: Path, *, threads: int, device: str | None) -> "Iterator[list[Worker]]":
    """n workers, each with a GPU of its own if possible; at the end they are stopped, and save."""
    (out / "jobs").mkdir(parents=True, exist_ok=True)
    gpus = visible_gpus() if device in (None, "cuda") else []
    workers = []
    for k in range(n):
        settings = {"OMP_NUM_THREADS": str(threads)}
        settings |= {"CUDA_VISIBLE_DEVICES": gpus[k % len(gpus)]} if gpus else {}
        workers.append(Worker(out / "jobs" / f"worker-{k}.log", settings))
    try:
        yield workers
    finally:
        processes = [worker.process for worker in workers if worker.process is not None]
        for process in processes:
            with contextlib.suppress(OSError):
                process.stdin.close()  # type: ignore[union-attr]
        for process in processes:
            process.wait()


class Worker:
    """A process that performs tasks; where it has died, the next task starts a new one."""

    process: subprocess.Popen[bytes] | None = None
    task: Task

    def __init__(self, log: Path, settings: dict[str, str]) -> None:
        self.log, self.settings = log, settings

    def begin(self, task: Task) -> IO[bytes]:
        """Passes the task on; returns the pipe from which `end` reads the answer."""
        if self.process is None or self.process.poll() is not None:
            with open(self.log, "ab") as log:  # a session of its own: Ctrl-C reaches the sweep, which stops the workers
                self.process = subprocess.Popen(
                    WORKER, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=os.environ | self.settings,
                    start_new_session=True,
                )  # fmt: skip
        self.task = task
        assert self.process.stdin and self.process.stdout  # noqa: PT018
        with contextlib.suppress(OSError):  # it has died: the answer is empty
            self.process.stdin.write(pickle.dumps(task))
            self.process.stdin.flush()
        return self.process.stdout

    def end(self) -> tuple[Task, str]:
        """The task and its error, or an empty string; the death of the process is an error too."""
        assert self.process and self.process.stdout  # noqa: PT018
        if answer := self.process.stdout.readline().decode():
            return self.task, answer.rstrip("\n")
        code = self.process.wait()
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        error = f"the worker process ended {how}; see {self.log}"
        atomic_write(JobFiles(self.task.out, self.task.id).error, error + "\n")
        return self.task, error


def visible_gpus() -> list[str]:
    """The GPUs of this machine as CUDA_VISIBLE_DEVICES names them."""
    import torch

    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return [name for name in named.split(",") if name] if named else [str(k) for k in range(torch.cuda.device_count())]


@contextlib.contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """SIGTERM raises KeyboardInterrupt, as Ctrl-C does; only in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def serve() -> None:
    """The worker: performs the tasks that come in until the input ends or a signal stops it."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what user code prints goes to the log
    import torch

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    tasks: queue.SimpleQueue[Task] = queue.SimpleQueue()
    with contextlib.suppress(KeyboardInterrupt), sigterm_as_interrupt():
        threading.Thread(target=_receive, args=(tasks,), daemon=True).start()
        while True:
            print(perform(tasks.get()), file=answers, flush=True)


def _receive(tasks: "queue.SimpleQueue[Task]") -> None:
    with contextlib.suppress(EOFError):
        while True:
            tasks.put(pickle.load(sys.stdin.buffer))
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    serve()
