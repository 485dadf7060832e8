"""Ctrl-C and SIGTERM as a request to stop, on which the training loop saves and stops."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class Stopped(KeyboardInterrupt):
    """Raised after a request to stop, once the run is saved."""


@contextmanager
def stop_requests(announce: Callable[[], None]) -> Iterator[threading.Event]:
    """An event that Ctrl-C and SIGTERM set; a second signal raises KeyboardInterrupt at once.

    At the first signal a thread calls `announce`, since the signal may have interrupted the printing of a line.
    """
    stop, ended = threading.Event(), threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def request(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    def wait() -> None:
        stop.wait()
        if not ended.is_set():
            announce()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    before = {number: signal.signal(number, request) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if not stop.is_set():
            ended.set()
            stop.set()
        thread.join()
