"""A run folder and a data folder made by an enemy, given to every command.

No code of theirs runs, no file outside is written, and every command ends: with a result, or with one line.
"""

import json
import os
import pickle
import shutil
import zlib
from pathlib import Path

import numpy as np

from children import Tally, command, fresh_copy
from damage import make_run
from small_runs import write_pictures

SCRIPT = "<script>alert('x')</script>"
ESCAPE = "\x1b]0;owned\x07"
FILES = (
    "config.json", "metrics.jsonl", "eval.json", "explain.json", "check.json", "corruptions.json", "clock.json",
    "explain.safetensors", "checkpoints/best.safetensors", "checkpoints/last.safetensors", "log.txt", ".lock",
    "eval/.lock",
)  # fmt: skip
COMMANDS = {
    "train": ["train", "RUN", "--quiet", "--device", "cpu"],
    "evaluate": ["evaluate", "RUN", "--images", "20", "--attacks", "natural,pgd1", "--device", "cpu", "--quiet"],
    "evaluate again": ["evaluate", "RUN", "--images", "40", "--attacks", "natural", "--device", "cpu", "--json"],
    "check": ["check", "RUN", "--images", "20", "--device", "cpu", "--quiet"],
    "corruptions": ["corruptions", "RUN", "--images", "8", "--device", "cpu", "--quiet"],
    "compare": ["compare", "RUN", "--with", "OTHER"],
    "explain": ["explain", "RUN", "--images", "4", "--device", "cpu"],
    "report": ["report", "RUN", "--out", "page.html"],
    "runs": ["runs", "."],
    "runs --json": ["runs", "RUN", "--json"],
    "sweep": ["sweep", "grid.toml", "--status", "--out", "sweep"],
    "fork": ["train", "shapes-part", "--init-from", "RUN@1", "--epochs", "2", "--out", "fork", "--quiet"],
    "experiment": ["experiment", "table1", "--from", ".", "--out", "made", "--quiet"],
    "delete": ["runs", "RUN", "--delete", "--yes"],
}


class Evil:
    """A pickle that writes a file when it is loaded."""

    def __reduce__(self):
        return os.system, ("touch PWNED",)


def edit(path, **changes):
    values = json.loads(path.read_text())
    path.write_text(json.dumps(values | changes))


def entries(path, **changes):
    """Changes the entries of eval.json, which then have no checksum."""
    content = json.loads(path.read_text())
    for entry in content["entries"]:
        entry.pop("sum", None)
        entry.update(changes)
    path.write_text(json.dumps(content))


def lines(path, **changes):
    rows = [json.loads(line) | changes for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps({k: v for k, v in row.items() if k != "sum"}) + "\n" for row in rows))


def replaced(name, make):
    def change(run):
        (path := run / name).unlink(missing_ok=True)
        path.parent.mkdir(exist_ok=True)
        make(path)

    return change


def linked(run):
    """Every file that a command may write is a link to the user's own file."""
    victim = run.parent / "victim"
    names = [*FILES[2:8], "log.txt", ".lock", "eval/.lock", "done.json"]
    names += [f"{Path(name).parent}/.{Path(name).name}.partial" for name in (*FILES, "done.json", "metrics.jsonl")]
    for name in names:
        replaced(name, lambda path: path.symlink_to(victim))(run)


def config(**changes):
    return lambda run: edit(run / "config.json", **changes)


def result(**changes):
    return lambda run: entries(run / "eval.json", **changes)


def cases():
    """Each makes a good run hostile."""
    found = {
        "network is code": config(model="evil:make"),
        "data set is code": config(dataset="evil:make"),
        "parent is nonsense": config(init_from="²@²"),
        "parent is far away": config(init_from="../" * 50 + "x@" + "9" * 5000),
        "huge network": config(model="wrn-9994-9999"),
        "huge numbers": config(batch_size=10**18, probe=10**18, holdout_seed=10**30, seed=10**30),
        "many classes": config(dataset="folder:x", size=64, num_classes=10**9, classes=["a", "b"]),
        "markup in names": config(recipe=SCRIPT + ESCAPE),
        "control characters in a data set": config(dataset=f"folder:{ESCAPE}\n"),
        "accuracy of 7": result(accuracy=7.0, correct=280),
        "wrong types": result(accuracy="x", n=[1], interval=None, warnings=3, settings=[], attack={}),
        "no fields": lambda run: (run / "eval.json").write_text('{"schema_version": 1, "entries": [{}, {"n": 3}]}'),
        "markup in results": result(attack=SCRIPT + ESCAPE, dataset=SCRIPT, warnings=[SCRIPT + ESCAPE], machine=SCRIPT),
        "NaN": result(accuracy=float("nan"), eps=float("nan"), interval=[float("nan")] * 2),
        "huge integers": result(n=10**400, correct=10**400, eps=10**400),
        "key of another file": result(key="../../victim", flags="../../victim", pixels="../../victim"),
        "metrics of markup": lambda run: lines(run / "metrics.jsonl", phase=SCRIPT, measured_on=ESCAPE),
        "metrics of huge numbers": lambda run: lines(run / "metrics.jsonl", loss=10**400, epoch=10**400),
        "links": linked,
    }
    for name in FILES:
        found |= {
            f"{name} is a pipe": replaced(name, os.mkfifo),
            f"{name} has no end": replaced(name, lambda path: path.symlink_to("/dev/zero")),
            f"{name} is a folder": replaced(name, Path.mkdir),
            f"{name} is a pickle": replaced(name, lambda path: path.write_bytes(pickle.dumps(Evil()))),
            f"{name} is nested": replaced(name, lambda path: path.write_text('{"a":' * 100_000)),
        }
    return found | {"flags are pickles": pickled_flags}


def pickled_flags(run):
    for path in (run / "eval").glob("*.npy"):
        np.save(path, np.array([Evil()] * 40, dtype=object), allow_pickle=True)


def hostile_folders(rng, folder, total=400, *, run_folder=None):
    """A tally for run folders and one for data folders, of at most `total` attempts each."""
    run = run_folder or make_run(folder / "good")
    home = folder / "home"
    tally = Tally("hostile run folder, every command")
    pairs = [(case, name) for case in cases() for name in COMMANDS]
    for case, name in rng.sample(pairs, total):
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir()
        hostile, other = fresh_copy(run, home / "run"), fresh_copy(run, home / "other")
        (home / "victim").write_text("mine")
        (home / "evil.py").write_text("open('PWNED', 'w').close()\ndef make(*_): pass\n")
        (home / "grid.toml").write_text('base = "shapes-part"\nimages = 40\n')
        cases()[case](hostile)
        words = {"RUN": "run", "OTHER": "other", "RUN@1": "run@1"}
        ended = command([words.get(word, word) for word in COMMANDS[name]], folder / "log", folder=home)
        problem = ended.problem(codes=(0, 1, 2, 3)) or misdeed(home, ended.text)
        tally.add(problem and f"{case}: {name}: {problem}")
        assert other.exists()
    yield tally
    yield hostile_pictures(rng, folder, run, total)


def misdeed(home, text):
    """What the enemy has achieved."""
    page = home / "page.html"
    if list(home.rglob("PWNED")):
        return "their code ran"
    if (home / "victim").read_text() != "mine":
        return f"a file outside was written: {(home / 'victim').read_text()[:100]!r}"
    if "\x1b" in text:
        return f"escape characters reach the terminal: {text[:300]!r}"
    if page.exists() and SCRIPT in page.read_text():
        return "their markup is in the page"
    return ""


# -- pictures


def png(width, height, pixels):
    """A PNG that claims this size."""

    def chunk(kind, body):
        return len(body).to_bytes(4, "big") + kind + body + zlib.crc32(kind + body).to_bytes(4, "big")

    head = width.to_bytes(4, "big") + height.to_bytes(4, "big") + b"\x08\x02\0\0\0"
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(pixels)) + chunk(b"IEND", b"")


PICTURES = {
    "a pipe": os.mkfifo,
    "no end": lambda path: path.symlink_to("/dev/zero"),
    "a link to itself": lambda path: path.symlink_to(path),
    "a link to nothing": lambda path: path.symlink_to("nowhere"),
    "a folder link": lambda path: path.symlink_to(path.parent),
    "a pickle": lambda path: path.write_bytes(pickle.dumps(Evil())),
    "a bomb": lambda path: path.write_bytes(png(60_000, 60_000, bytes(10**8))),
    "a size without pixels": lambda path: path.write_bytes(png(2**31 - 1, 2**31 - 1, b"")),
    "PostScript": lambda path: path.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(PWNED) (w) file\n"),
    "empty": lambda path: path.write_bytes(b""),
    "sparse": lambda path: (path.touch(), os.truncate(path, 1 << 40)),
}


def hostile_pictures(rng, folder, run, total):
    tally, home = Tally("hostile data folder"), folder / "home"
    words = ["--size", "24", "--data-root", "root"]
    commands = {
        "data": ["data", "verify", "folder:pictures", *words],
        "data --skip-bad": ["data", "verify", "folder:pictures", "--skip-bad", *words],
        "train": [
            "train", "shapes-at", "--data", "folder:pictures", "--size", "24", "--holdout", "4", "--epochs", "1",
            "--skip-bad", "--data-root", "root", "--device", "cpu", "--quiet", "--out", "made",
        ],
        "evaluate": ["evaluate", "run", "--data", "folder:pictures", "--skip-bad", *words, "--device", "cpu"],
    }  # fmt: skip
    pairs = [(case, name) for case in PICTURES for name in commands]
    for case, name in rng.sample(pairs, min(total, len(pairs))):
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir()
        fresh_copy(run, home / "run")
        (home / "victim").write_text("mine")
        write_pictures(home / "pictures", rng, n=24)
        PICTURES[case](home / "pictures" / "a" / "x.png")
        ended = command(commands[name], folder / "log", folder=home)
        problem = ended.problem(codes=(0, 2)) or misdeed(home, ended.text)
        tally.add(problem and f"{case}: {name}: {problem}")
    return tally
