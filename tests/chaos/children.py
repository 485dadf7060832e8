"""Work in forked children of a process that has imported torch: killed, timed, and judged by how they end."""

import contextlib
import os
import resource
import shutil
import signal
import sys
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path

from pixelpart.cli.main import main

MEMORY = 12 << 30  # bytes of address space: a file that makes a child allocate more is a fault
SECONDS = 60.0  # a child that takes longer hangs


@dataclass
class Tally:
    """How often one kind of attack was made, and what went wrong."""

    kind: str
    attempts: int = 0
    failures: list[str] = field(default_factory=list)

    def add(self, *problems):
        """Counts one attempt; problems are strings, empty ones do not count."""
        self.attempts += 1
        self.failures += [problem for problem in problems if problem]


@dataclass(frozen=True)
class Ended:
    code: int  # negative: the signal that ended it
    text: str  # stdout and stderr

    def problem(self, *, codes=(0, 2)):
        """Why this is not the end of a command: a traceback, a signal, a hang, another code, or several lines."""
        lines = [line for line in self.text.splitlines() if line.startswith("pixelpart: ")]
        if self.code == -signal.SIGXCPU:
            return f"no end after {SECONDS:.0f} s: {self.text[-300:]}"
        if "Traceback (most recent call last)" in self.text or self.code not in codes:
            return f"exit code {self.code}: {self.text[-1500:]}"
        if self.code == 2 and (len(lines) != 1 or self.text.rstrip().splitlines()[-1] != lines[0]):
            return f"exit code 2 without one line that says why: {self.text[-500:]}"
        return ""


def start(work, log):
    """The pid of a child that does the work, with its output in the file `log`."""
    pid = os.fork()
    if pid:
        return pid
    code = 99
    try:
        handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        for stream in (1, 2):
            os.dup2(handle, stream)
        sys.stdin = os.fdopen(os.open(os.devnull, os.O_RDONLY))
        sys.stdout = sys.stderr = os.fdopen(1, "w", buffering=1, errors="backslashreplace", closefd=False)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        code = work() or 0
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):  # a full disk
            sys.stdout.flush()
        os._exit(code)


def wait(pid, seconds=SECONDS):
    """The exit code of a child, which is killed if it takes longer: then that of SIGXCPU, which nothing else sends."""
    code = exit_code(pid, seconds)
    return -signal.SIGXCPU if code is None else code


def exit_code(pid, seconds):
    """The exit code of a child that ends within some seconds; otherwise it is killed, and the result is None."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.0005)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


def run(work, log):
    """How a child that does the work ends."""
    code = wait(start(work, log))
    return Ended(code, Path(log).read_text(errors="replace"))


def command(args, log, *, folder=None):
    """How `pixelpart ARGS`, called in this folder, ends."""

    def work():
        if folder:
            os.chdir(folder)
        return main([str(arg) for arg in args])

    return run(work, log)


def kill_after(work, seconds, log):
    """Starts the work and sends SIGKILL after some seconds; its exit code, -9 if it was killed."""
    code = exit_code(start(work, log), seconds)
    return -signal.SIGKILL if code is None else code


def kill_in_call(work, place, name, number, log, *, after):
    """Does the work in a child that sends itself SIGKILL before or after a call of a function; its exit code."""

    def trapped():
        original, calls = getattr(place, name), []

        def counted(*args, **settings):
            calls.append(1)
            if len(calls) == number and not after:
                os.kill(os.getpid(), signal.SIGKILL)
            result = original(*args, **settings)
            if len(calls) == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        setattr(place, name, counted)
        return work()

    return wait(start(trapped, log))


def fresh_copy(folder, copy):
    """A copy of the folder in the place of an older one."""
    shutil.rmtree(copy, ignore_errors=True)
    return Path(shutil.copytree(folder, copy, symlinks=True))
