"""Tasks on this machine: in this process, or in workers that each perform one task after the other.

A worker reads pickled tasks and answers each with a line, its error. When its input ends, because the sweep was stopped
or killed, it saves and ends.
"""

import contextlib
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

from pixelpart.files import atomic_write
from pixelpart.sweeps.work import JobFiles, Task, perform

WORKER = [sys.executable, "-m", "pixelpart.sweeps.local"]
THREADS = "PIXELPART_THREADS"
POLL_SECONDS = 0.5
Report = Callable[[Task, str], None]  # called with every finished task and its error


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


def perform_with(workers: "list[Worker]", tasks: list[Task], *, report: Report, watch: Callable[[], None]) -> None:
    """Performs the tasks, one per worker at a time; `watch` is called now and then."""
    waiting, finished = deque(tasks), queue.SimpleQueue[tuple[Task, str]]()

    def serve_one(worker: Worker) -> None:
        with contextlib.suppress(IndexError):  # none is waiting
            while not worker.stopping:
                task = waiting.popleft()
                finished.put((task, worker.perform(task)))

    threads = [threading.Thread(target=serve_one, args=(worker,)) for worker in workers]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads) or not finished.empty():
        watch()
        with contextlib.suppress(queue.Empty):
            report(*finished.get(timeout=POLL_SECONDS))


@contextlib.contextmanager
def started(n: int, out: Path, *, threads: int, device: str | None) -> "Iterator[list[Worker]]":
    """n workers, each with a GPU of its own if possible; at the end they are stopped, and save."""
    (out / "jobs").mkdir(parents=True, exist_ok=True)
    gpus = visible_gpus() if device in (None, "cuda") else []
    settings = [{name: str(threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", THREADS)} for _ in range(n)]
    for k, setting in enumerate(settings):
        setting |= {"CUDA_VISIBLE_DEVICES": gpus[k % len(gpus)]} if gpus else {}
    workers = [Worker(out / "jobs" / f"worker-{k}.log", setting) for k, setting in enumerate(settings)]
    try:
        yield workers
    finally:
        for worker in workers:
            worker.stop()
        for worker in workers:
            if worker.process is not None:
                worker.process.wait()


class Worker:
    """A process that performs tasks; where it has died, the next task starts a new one."""

    def __init__(self, log: Path, settings: dict[str, str]) -> None:
        self.log, self.settings, self.stopping = log, settings, False
        self.process: subprocess.Popen[bytes] | None = None

    def perform(self, task: Task) -> str:
        """The error of the task, or an empty string; the death of the process is an error too."""
        if self.process is None or self.process.poll() is not None:
            with open(self.log, "ab") as log:  # a session of its own: Ctrl-C reaches the sweep, which stops the workers
                self.process = subprocess.Popen(
                    WORKER, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=os.environ | self.settings,
                    start_new_session=True,
                )  # fmt: skip
        process = self.process
        if self.stopping:  # perhaps since before the process was there
            self.stop()
        assert process.stdin and process.stdout  # noqa: PT018
        with contextlib.suppress(OSError, ValueError):  # it has died or was stopped: no answer comes
            process.stdin.write(pickle.dumps(task))
            process.stdin.flush()
        if answer := process.stdout.readline().decode():
            return answer.rstrip("\n")
        code = process.wait()
        if self.stopping:
            return "stopped"
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        error = f"the worker process ended {how}; see {self.log}"
        atomic_write(JobFiles(task.out, task.id).error, error + "\n")
        return error

    def stop(self) -> None:
        self.stopping = True
        if self.process is not None and self.process.stdin is not None:
            with contextlib.suppress(OSError):
                self.process.stdin.close()


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

    torch.set_num_threads(int(os.environ[THREADS]))
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
