"""Tasks on this machine: in this process, or in several that each take one task after the other.

A worker reads tasks as JSON lines and answers each with its error. When its input ends, because the sweep was stopped
or killed, it saves and ends.
"""

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from types import TracebackType

from pixelpart.files import atomic_write
from pixelpart.runtime.progress import Screen
from pixelpart.sweeps.work import JobFiles, Task, perform

WORKER = [sys.executable, "-m", "pixelpart.sweeps.local"]
POLL_SECONDS = 0.5
Report = Callable[[Task, str], None]  # called with every finished task and its error


def perform_here(tasks: list[Task], *, threads: int, screen: Screen, report: Report) -> None:
    """Performs the tasks one after the other in this process."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for task in tasks:
            report(task, perform(task, screen))
    finally:
        torch.set_num_threads(before)


class Worker:
    """A process that performs tasks; a new one is started if it has died."""

    def __init__(self, log: Path, environment: dict[str, str]) -> None:
        self.log, self.environment, self.stopping = log, environment, False
        self.process: subprocess.Popen[str] | None = None

    def perform(self, task: Task) -> str:
        """The error of the task, or an empty string; also of a process that dies."""
        if self.stopping:
            return ""
        if self.process is None or self.process.poll() is not None:
            self.process = self.start()
        process = self.process
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(OSError, ValueError):  # the pipe is closed: no reply will come
            process.stdin.write(task.to_json() + "\n")
            process.stdin.flush()
        if reply := process.stdout.readline():
            return json.loads(reply)
        code = process.wait()
        if self.stopping:
            return ""
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        error = f"the worker process was ended {how}; see {self.log}"
        atomic_write(JobFiles(task.out, task.id).error, error + "\n")
        return error

    def start(self) -> "subprocess.Popen[str]":
        # in a session of its own: Ctrl-C reaches the sweep only, which then stops its workers once
        with open(self.log, "a") as log:
            return subprocess.Popen(
                WORKER, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
                env=os.environ | self.environment, start_new_session=True,
            )  # fmt: skip

    def stop(self) -> None:
        self.stopping = True
        if self.process is not None and self.process.stdin is not None:
            with contextlib.suppress(OSError):
                self.process.stdin.close()


class Workers:
    """Several workers, which stay for all calls of `perform`; leaving the context stops them."""

    def __init__(self, n: int, out: Path, *, threads: int, device: str | None) -> None:
        (out / "jobs").mkdir(parents=True, exist_ok=True)
        gpus = visible_gpus() if device in (None, "cuda") else []
        plain = {name: str(threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", THREADS)}
        self.workers = [
            Worker(
                out / "jobs" / f"worker-{k}.log",
                plain | ({"CUDA_VISIBLE_DEVICES": gpus[k % len(gpus)]} if gpus else {}),
            )
            for k in range(n)
        ]

    def perform(self, tasks: list[Task], *, report: Report, watch: Callable[[], None]) -> None:
        """Performs the tasks, several at a time; `watch` is called now and then."""
        idle: queue.SimpleQueue[Worker] = queue.SimpleQueue()
        for worker in self.workers:
            idle.put(worker)

        def perform_one(task: Task) -> str:
            worker = idle.get()
            try:
                return worker.perform(task)
            finally:
                idle.put(worker)

        threads = ThreadPoolExecutor(len(self.workers))
        running: dict[Future[str], Task] = {threads.submit(perform_one, task): task for task in tasks}
        try:
            while running:
                for future in wait(running, timeout=POLL_SECONDS, return_when=FIRST_COMPLETED).done:
                    report(running.pop(future), future.result())
                watch()
        finally:
            if running:  # interrupted
                self.stop()
            threads.shutdown(cancel_futures=True)

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()
        for worker in self.workers:
            if worker.process is not None:
                worker.process.wait()

    def stop(self) -> None:
        for worker in self.workers:
            worker.stop()


def visible_gpus() -> list[str]:
    """The GPUs of this machine as CUDA_VISIBLE_DEVICES names them."""
    import torch

    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return [name for name in named.split(",") if name] if named else [str(k) for k in range(torch.cuda.device_count())]


@contextlib.contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """SIGTERM raises KeyboardInterrupt, as Ctrl-C does, in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


# -- the worker's side

THREADS = "PIXELPART_THREADS"


def serve() -> None:
    """Performs the tasks that come in until the input ends or a signal stops it."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what user code prints goes to the log
    import torch

    torch.set_num_threads(int(os.environ[THREADS]))
    tasks: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(tasks,), daemon=True).start()
    with contextlib.suppress(KeyboardInterrupt), sigterm_as_interrupt():
        while True:
            error = perform(Task.from_json(tasks.get()))
            print(json.dumps(error), file=replies, flush=True)


def _receive(tasks: "queue.SimpleQueue[str]") -> None:
    for line in sys.stdin:
        tasks.put(line)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    serve()
