"""No space left: one line and an exit code, the previous files whole; with space again, the same bits.

A small file system in memory is mounted where that is allowed (root on Linux); elsewhere, and in `make test`, a limit
on the size of a file stands in for it.
"""

import contextlib
import functools
import os
import resource
import shutil
import subprocess

from children import Tally, fresh_copy, run
from damage import GRID
from kills import check_run
from pixelpart.cli.main import main
from pixelpart.engine.train import train
from pixelpart.errors import UserError
from pixelpart.runtime.progress import Screen
from small_runs import EVALUATE, config, results_of, state_of

QUIET = Screen(quiet=True)
SIZE = 8 << 20  # of the small file system
COMMANDS = ("train", "evaluate", "report", "sweep")


def full_disks(rng, folder, total=60, *, mount=True):
    """A tally per way in which space runs out, with `total` attempts in all."""
    mounted = mount and mount_small(folder / "small")
    try:
        yield attempts(rng, folder, total, mounted)
    finally:
        if mounted:
            subprocess.run(["umount", folder / "small"], check=True)


def mount_small(place):
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", place]
    return shutil.which("mount") and subprocess.run(command, capture_output=True, check=False).returncode == 0


def attempts(rng, folder, total, mounted):
    tally = Tally("full disk" if mounted else "limit on the size of a file")
    log, home = folder / "log", folder / "small" / "home"
    finished = folder / "finished"
    settings = config()
    train(settings, finished, screen=QUIET)
    run(functools.partial(main_in, folder, "evaluate", finished), log)
    truth, ran_out = (state_of(finished), results_of(finished)), 0
    for number in range(total):
        command = COMMANDS[number % len(COMMANDS)]
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        begun = prepare(command, finished, home)
        with no_space(home, rng, mounted) as limit:
            ended = run(functools.partial(work, command, begun, limit), log)
        ran_out += ended.code != 0
        problem = ended.problem(codes=(0, 1, 2)) or ("" if ended.code == 0 else unexplained(ended.text))
        tally.add(problem and f"{command}: {problem}", broken(begun), goes_on(command, begun, truth, log))
    tally.failures += [] if ran_out else ["space never ran out"]
    return tally


def prepare(command, finished, home):
    """What there is before the disk is full."""
    if command in ("evaluate", "report"):
        run_folder = fresh_copy(finished, home / "run")
        if command == "evaluate":
            (run_folder / "eval.json").unlink()
            shutil.rmtree(run_folder / "eval")
        return run_folder
    if command == "sweep":
        (home / "grid.toml").write_text(GRID)
    else:
        train(config(), home / "run", screen=QUIET, stop_after=1)
    return home / "run"


@contextlib.contextmanager
def no_space(home, rng, mounted):
    """A disk with little space, or else the largest size of a file, in bytes."""
    if not mounted:
        yield rng.choice((3_000, 20_000, 100_000, 300_000, 460_000))  # the child's own output is a file too
        return
    filler = home / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(4096)):
            pass
    space = rng.choice((0, 4096, 8192, 100_000, 300_000, 460_000, 1_000_000, 2_000_000))
    os.truncate(filler, max(0, filler.stat().st_size - space))
    yield None
    filler.unlink()


def work(command, run_folder, limit):
    if limit is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    return main_in(run_folder.parent, command, run_folder)


def main_in(folder, command, run_folder):
    args = {
        "train": ["train", run_folder, "--device", "cpu", "--quiet"],
        "evaluate": ["evaluate", run_folder, *EVALUATE],
        "report": ["report", run_folder, "--out", folder / "page.html"],
        "sweep": ["sweep", "grid.toml", "--out", "out", "--device", "cpu", "--quiet"],
    }
    with contextlib.chdir(folder):
        return main([str(arg) for arg in args[command]])


def unexplained(text):
    reasons = ("No space left on device", "File too large")
    return "" if any(reason in text for reason in reasons) else f"does not say why: {text[-500:]}"


def broken(run_folder):
    try:
        check_run(run_folder)
    except (UserError, OSError) as error:
        return f"a file is broken: {error}"
    return ""


def goes_on(command, run_folder, truth, log):
    """With space, the same command ends as if nothing had been."""
    ended = run(functools.partial(work, command, run_folder, None), log)
    if problem := ended.problem(codes=(0,)):
        return f"{command} does not go on: {problem}"
    state, results = truth
    same = {
        "train": lambda: state_of(run_folder) == state,
        "evaluate": lambda: results_of(run_folder) == results,
        "report": lambda: (run_folder.parent / "page.html").exists(),
        "sweep": lambda: "2 done" in ended.text,
    }
    return "" if same[command]() else f"{command} ends with other bits"
