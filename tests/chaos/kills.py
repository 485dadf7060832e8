"""SIGKILL at random moments and inside chosen calls; what goes on afterwards must end in the same bits."""

import functools
import os
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from children import Tally, kill_after, kill_in_call, run, start, wait
from pixelpart import data
from pixelpart.engine import stored_maps
from pixelpart.engine.train import train
from pixelpart.errors import UserError
from pixelpart.evaluation.evaluate import evaluate
from pixelpart.runs import RunFolder, load_checkpoint
from pixelpart.runtime.progress import Screen
from pixelpart.sweeps.jobs import job_states, run_jobs
from pixelpart.sweeps.table import read_table
from small_runs import ATTACKS, config, jobs, results_of, state_of, without_clock, write_pictures

QUIET = Screen(quiet=True)


@dataclass(frozen=True)
class Work:
    """Work in a folder: what `make` prepares, what is killed and repeated, and what must be there at the `end`."""

    work: Callable[[Path], object]
    end: Callable[[Path], object]
    make: Callable[[Path], object] = lambda folder: None
    check: Callable[[Path], object] = lambda folder: None  # after a kill; UserError if a file is broken


def kills(rng, folder, total=200):
    """A tally per kind of work, with `total` kills in all."""
    shares = {
        "training": (60, training, at_random),
        "checkpointing": (40, training, inside([(os, "fsync"), (os, "replace")], calls=50)),
        "mask renewal": (20, training, inside([(stored_maps, "current_maps")], calls=8)),
        "data preparation": (20, preparation, at_random),
        "evaluation": (30, evaluation, at_random),
        "sweep": (30, sweep, at_random),
    }
    for kind, (share, prepare, how) in shares.items():
        (place := folder / kind.replace(" ", "-")).mkdir()
        yield attack(f"SIGKILL: {kind}", prepare(place, rng), place, how, rng, kills=max(1, share * total // 200))
        shutil.rmtree(place)


def attack(kind, work, folder, how, rng, *, kills):
    """Kills the work and starts it again; whenever it is done, compares it and begins in a new folder."""
    tally, log, number = Tally(kind), folder / "log", 0
    expected, seconds = undisturbed(work, folder / "whole", log)
    here = folder / "0"
    work.make(here)
    while tally.attempts < kills and number < 10 * kills:
        code = how(functools.partial(work.work, here), rng, seconds, log)
        if code == -signal.SIGKILL:
            tally.add(broken(work, here))
        else:
            tally.failures += difference(work, here, code, log, expected)
            shutil.rmtree(here)
            here = folder / str(number := number + 1)
            work.make(here)
    tally.failures += [f"ended {number} times before a kill"] * (tally.attempts < kills)
    ended = run(functools.partial(work.work, here), log)
    tally.failures += difference(work, here, ended.code, log, expected)
    return tally


def undisturbed(work, folder, log):
    """What the work leaves, and the seconds that it takes."""
    work.make(folder)
    begun = time.monotonic()
    assert wait(start(functools.partial(work.work, folder), log)) == 0, log.read_text()
    return work.end(folder), time.monotonic() - begun


def broken(work, folder):
    """What is wrong with the files after a kill."""
    try:
        work.check(folder)
    except (UserError, OSError) as error:
        return f"after a kill: {error}"
    return ""


def difference(work, folder, code, log, expected):
    if code:
        return [f"does not go on: exit code {code}: {log.read_text()[-1500:]}"]
    return [] if work.end(folder) == expected else [f"{folder} ends with other bits"]


# -- ways to kill


def at_random(work, rng, seconds, log):
    return kill_after(work, rng.uniform(0, 0.9 * seconds), log)


def inside(functions, *, calls):
    def kill(work, rng, seconds, log):
        place, name = rng.choice(functions)
        return kill_in_call(work, place, name, rng.randint(1, calls), log, after=rng.random() < 0.5)

    return kill


# -- what is killed


def training(folder, rng):
    return Work(lambda here: train(config(), here, screen=QUIET) and None, state_of, check=check_run)


def check_run(folder):
    """Every file is whole, old or new."""
    run = RunFolder(folder)
    for path in folder.glob("checkpoints/*.safetensors"):
        load_checkpoint(path)
    run.read_metrics()
    if run.config_file.exists():
        run.read_config()


def preparation(folder, rng):
    settings = write_pictures(folder / "pictures", rng, n=512)

    def end(here):
        images, labels = data.load(**settings, root=here)
        return images.numpy().tobytes(), labels.tolist()

    return Work(lambda here: data.load(**settings, root=here) and None, end)


def evaluation(folder, rng):
    train(config(), folder / "run", screen=QUIET)
    settings = {"attacks": ATTACKS, "images": 120, "batch_size": 20, "device": "cpu"}
    return Work(
        lambda here: evaluate(here, **settings) and None,
        results_of,
        make=lambda here: shutil.copytree(folder / "run", here),
        check=lambda here: results_of(here) if (here / "eval.json").exists() else None,
    )


def sweep(folder, rng):
    def end(here):
        states = job_states(jobs(), here)
        found = read_table(jobs(), {state.job.id: state.folder for state in states})
        return [state.state for state in states], [without_clock(row) for row in found]

    return Work(lambda here: run_jobs(jobs(), here, screen=QUIET) and None, end)
