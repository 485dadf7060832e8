"""Damaged files: a command that reads one gives the same result, or says in one line what is wrong.

Never a traceback, another figure, a hang or executed code.
"""

import functools
import json
import os
import re
import shutil
from pathlib import Path

from children import Tally, command, fresh_copy, run
from pixelpart import data
from pixelpart.cli.main import main
from pixelpart.engine.train import train
from pixelpart.evaluation.partial import PartialResult
from pixelpart.runs import RunFolder
from pixelpart.runtime.progress import Screen
from small_runs import EVALUATE, checkpoints_of, config, results_of, state_of, without_clock, write_pictures

QUIET = Screen(quiet=True)
GRID = """base = "shapes-part"
attacks = "natural,pgd2"
images = 40
[set]
epochs = 2
burn_in.epochs = 1
holdout = 10
probe = 16
batch_size = 50
attack.steps = 1
[grid]
eps_low = ["6/255", "7/255"]
"""


def damaged(content, rng):
    """The bytes after one accident of a disk, a copy or a hand."""
    kinds = ("flip", "flip", "flip", "truncate", "zero", "swap", "extend", "remove", "repeat", "digit", "empty")
    kind, n = rng.choice(kinds), len(content)
    a, b = sorted((rng.randrange(n), rng.randrange(n)))
    b = min(b, a + rng.choice((1, 8, 64, 512, n)))
    changed = bytearray(content)
    match kind:
        case "flip":
            place = rng.randrange(min(n, 2048)) if rng.random() < 0.5 else a  # headers come first
            changed[place] ^= 1 << rng.randrange(8)
        case "truncate":
            del changed[a:]
        case "zero":
            changed[a:b] = bytes(b - a)
        case "swap":
            changed[a:b] = changed[a:b][::-1]
        case "extend":
            changed += rng.randbytes(rng.choice((1, 8, 4096)))
        case "remove":
            del changed[a:b]
        case "repeat":
            changed[b:b] = changed[a:b]
        case "digit":
            digits = [i for i, byte in enumerate(changed) if chr(byte).isdigit()]
            if digits:
                changed[rng.choice(digits)] = ord(rng.choice("0123456789-e."))
        case "empty":
            changed = bytearray()
    return bytes(changed)


def damages(rng, folder, total=1000, *, run_folder=None):
    """A tally per kind of file, with `total` damaged files in all; `run_folder` is what `make_run` has made."""
    log = folder / "log"
    run_folder = run_folder or make_run(folder / "run")
    shares = {
        "last.safetensors": (150, "checkpoints/last.safetensors", (resumes,)),
        "best.safetensors": (150, "checkpoints/best.safetensors", (evaluates,)),
        "metrics.jsonl": (150, "metrics.jsonl", (lists, resumes, reports)),
        "config.json": (150, "config.json", (evaluates, lists, reports)),
        "eval.json": (150, "eval.json", (evaluates, lists, compares, reports)),
        "flags": (50, "eval/*.npy", (evaluates, compares, reports)),
        "explain.json, check.json": (50, "*[nk].json", (reports,)),
        "explain.safetensors": (30, "explain.safetensors", (reports,)),
    }
    truth = Truth(run_folder, log)
    for kind, (share, pattern, commands) in shares.items():
        tally = Tally(f"damage: {kind}")
        for _ in range(max(1, share * total // 1000)):
            here = fresh_copy(run_folder, folder / "copy")
            path = rng.choice(sorted(here.glob(pattern)))
            path.write_bytes(damaged(path.read_bytes(), rng))
            tally.add(rng.choice(commands)(here, log, truth, kind))
        yield tally
    yield damaged_cache(rng, folder / "pictures", log, attempts=max(1, 70 * total // 1000))
    yield damaged_sweep(rng, folder / "sweep", log, attempts=max(1, 30 * total // 1000))
    yield damaged_partial(rng, folder, run_folder, log, truth, attempts=max(1, 20 * total // 1000))


def make_run(folder, *, check=True):
    """A finished run with all the files that commands read; check.json, which takes longest, on request."""
    train(config(), folder, screen=QUIET)
    log = folder.with_name("log")
    for args in (
        ["evaluate", folder, *EVALUATE],
        ["explain", folder, "--images", "8", "--device", "cpu"],
        *([["check", folder, "--images", "40", "--device", "cpu", "--quiet"]] * check),
    ):
        assert not (problem := command(args, log, folder=folder.parent).problem(codes=(0,))), problem
    return folder


class Truth:
    """What the commands say of the undamaged run."""

    def __init__(self, folder, log):
        self.state = state_of(folder)
        self.figures = figures(command(["evaluate", folder, *EVALUATE], log).text)
        rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        self.during = [{("natural", row["natural"]), ("pgd1", row["pgd"])} for row in rows]  # of each epoch
        self.measured = {(entry["attack"], entry["accuracy"]) for entry in results_of(folder)[0]} | self.during[-1]
        self.compared = command(["compare", folder, "--with", folder, "--json"], log).text


def figures(text):
    """Accuracy, interval, number correct and flags of each attack, from `evaluate --json`."""
    names = ("attack", "accuracy", "interval", "correct", "n", "eps", "settings", "fingerprint")
    return [{name: entry[name] for name in names} for entry in json.loads(text)]


# -- commands that read a damaged run; each returns the problem


def evaluates(here, log, truth, kind):
    ended = command(["evaluate", here, *EVALUATE], log)
    if not (problem := ended.problem()) and ended.code == 0 and figures(ended.text) != truth.figures:
        return f"{kind}: evaluate gives another figure: {ended.text[:1000]}"
    return problem and f"{kind}: evaluate: {problem}"


def resumes(here, log, truth, kind):
    """Trains the run once more: it is finished, or the damage is reported."""
    ended = command(["train", here, "--quiet", "--device", "cpu"], log)
    problem = ended.problem()
    if not problem and ended.code == 0:
        files, rows, _ = truth.state
        found = [without_clock(row) for row in RunFolder(here).read_metrics([])]
        if checkpoints_of(here) != files or any(row not in rows for row in found):
            return f"{kind}: train leaves other files"
        if found != rows and "without a row" not in (here / "log.txt").read_text():
            return f"{kind}: train loses rows without a word"
    return problem and f"{kind}: train: {problem}"


def lists(here, log, truth, kind):
    ended = command(["runs", here, "--json"], log)
    if problem := ended.problem():
        return f"{kind}: runs: {problem}"
    if ended.code == 0 and kind != "config.json":  # which says what the run is
        (listed,) = json.loads(ended.text)
        for measured in (listed["natural"], listed["robust"]):
            known = truth.measured.union(*truth.during if listed["epoch"] < len(truth.during) else ())
            if measured and (measured["attack"], measured["accuracy"]) not in known:
                return f"{kind}: runs gives another figure: {measured}"
    return ""


def compares(here, log, truth, kind):
    ended = command(["compare", here, "--with", here, "--json"], log)
    if problem := ended.problem():
        return f"{kind}: compare: {problem}"
    same = ended.code == 2 or all(
        line in truth.compared for line in ended.text.splitlines() if re.search(r'"(accuracy|difference)', line)
    )
    return "" if same else f"{kind}: compare gives another figure: {ended.text[:1000]}"


def reports(here, log, truth, kind):
    problem = command(["report", here, "--out", here / "report.html"], log).problem()
    return problem and f"{kind}: report: {problem}"


# -- caches, sweeps, unfinished evaluations


def damaged_cache(rng, folder, log, *, attempts):
    """A decoded picture cache is used as it was written or made again."""
    tally, settings = Tally("damage: cache of decoded pictures"), write_pictures(folder / "pictures", rng)
    images, labels = data.load(**settings, root=folder / "root")

    def work(root):
        found = data.load(**settings, root=root)
        return 0 if found[0].equal(images) and found[1].equal(labels) else 3

    for _ in range(attempts):
        here = fresh_copy(folder / "root", folder / "copy")
        path = rng.choice(sorted(path for path in here.rglob("*") if path.suffix in (".npy", ".json")))
        path.write_bytes(damaged(path.read_bytes(), rng))
        tally.add(run(functools.partial(work, here), log).problem(codes=(0,)))
    return tally


def damaged_sweep(rng, folder, log, *, attempts):
    """A sweep with a damaged grid, done.json or error file gives its table, or one line."""
    tally, whole = Tally("damage: sweep grid, done.json"), folder / "whole"
    whole.mkdir(parents=True)
    (whole / "grid.toml").write_text(GRID)
    args = ["sweep", "grid.toml", "--out", "out", "--device", "cpu", "--json", "--quiet"]
    first = command(args, log, folder=whole)
    expected = table(first.text)
    for _ in range(attempts):
        here = fresh_copy(whole, folder / "copy")
        path = rng.choice([here / "grid.toml", *here.glob("out/runs/*/done.json")])
        path.write_bytes(damaged(path.read_bytes(), rng))
        grid = path.name == "grid.toml"
        ended = command([*args, *(["--status"] if grid else [])], log, folder=here)
        wrong = not ended.problem() and ended.code == 0 and not grid and table(ended.text) != expected
        tally.add(ended.problem(), f"another table: {ended.text}" if wrong else "")
    return tally


def table(text):
    return [{name: value for name, value in row.items() if name != "seconds"} for row in json.loads(text)]


def damaged_partial(rng, folder, run_folder, log, truth, *, attempts):
    """The tries of a killed evaluation, damaged, cost time and change no flag."""
    tally, whole = Tally("damage: unfinished evaluation"), fresh_copy(run_folder, folder / "unfinished")
    (whole / "eval.json").unlink()
    shutil.rmtree(whole / "eval")

    def unfinished():
        add, tries = PartialResult.add, []

        def limited(self, *outcome):
            add(self, *outcome)
            tries.append(1)
            if len(tries) == 6:
                os._exit(0)

        PartialResult.add = limited
        return main(["evaluate", str(whole), *EVALUATE])

    run(unfinished, log)
    assert list(whole.glob("eval/*.partial"))
    for _ in range(attempts):
        here = fresh_copy(whole, folder / "copy")
        path = rng.choice(sorted(Path(here).glob("eval/*.partial")))
        path.write_bytes(damaged(path.read_bytes(), rng))
        tally.add(evaluates(here, log, truth, "partial"))
    return tally
