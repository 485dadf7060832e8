"""`pixelpart runs`."""

import json
import shutil
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from pixelpart.cli.arguments import Parser
from pixelpart.config import DEFAULT_EPS, write_fraction
from pixelpart.errors import UserError
from pixelpart.listing import ListedAccuracy, ListedRun, check_deletable, delete_run, find_runs, is_run, read_run
from pixelpart.runtime.progress import Screen
from pixelpart.runtime.tables import text_table
from pixelpart.sweeps.labels import settings_of_runs

HEAD = ("run", "recipe", "seed", "settings", "epoch", "natural", "robust", "attack", "state")
NARROW = ("attack", "recipe", "settings", "seed")  # columns that a narrow terminal does not show, the first to go first


def runs(argv: list[str]) -> int:
    """Lists runs with their results, or deletes them."""
    parser = Parser("runs", runs.__doc__)
    add = parser.add_argument
    add(
        "patterns",
        nargs="*",
        metavar="PATTERN",
        help="folder: the runs in it and below; or a quoted pattern of paths, names or recipes, such as 'part-*' "
        "(default: all below the current folder)",
    )
    add("--delete", action="store_true", help="delete the runs; a PATTERN is then a run folder or a pattern")
    add("--yes", action="store_true", help="--delete: do not ask; required without a terminal")
    add("--json", action="store_true", help="print a list of JSON objects")
    args = parser.parse_all(argv)
    if args.delete:
        return delete(args.patterns, yes=args.yes, as_json=args.json)
    listed = find_runs(args.patterns)
    print(json.dumps([run.as_json() for run in listed], indent=2) if args.json else table(listed, width=columns()))
    return 0


def table(listed: Sequence[ListedRun], *, width: int | None = None) -> str:
    """The runs as a table of at most `width` columns, with its marks explained and a count."""
    if not listed:
        return "no runs below the current folder"
    measured = [one for run in listed for one in (run.natural, run.robust) if one]
    notes = [run.problem for run in listed if run.problem]
    if any(one.checkpoint is None for one in measured):
        notes.append("~ measured during training, not by `pixelpart evaluate`")
    if any(one.warnings for one in measured):
        notes.append("* has warnings, which `pixelpart evaluate RUN` prints")
    counts = Counter(run.state for run in listed)
    notes.append(f"{counted(listed)}: {', '.join(f'{n} {state}' for state, n in sorted(counts.items()))}")
    return "\n".join([fitted(cells(listed), width), *notes])


def counted(listed: Sequence[ListedRun]) -> str:
    return f"{len(listed)} run{'s' * (len(listed) != 1)}"


def cells(listed: Sequence[ListedRun]) -> list[dict[str, str]]:
    """The texts of each run by column; settings are those in which the runs of a recipe differ."""
    settings = settings_of_runs({run.path: run.config for run in listed if run.config})
    rows = []
    for run in listed:
        epoch = f"{run.epoch}/{run.epochs}" if run.epochs else ""
        who = (str(run.path), run.recipe, "" if run.seed is None else str(run.seed), settings.get(run.path, ""))
        results = (percent(run.natural), percent(run.robust), attack(run))
        rows.append(dict(zip(HEAD, (*who, epoch, *results, run.state), strict=True)))
    return rows


def attack(run: ListedRun) -> str:
    """The attack, and in which ways it is not the usual one: 8/255, as many images as natural, best, test images."""
    if (robust := run.robust) is None:
        return ""
    name = robust.attack
    if robust.eps != DEFAULT_EPS and "@" not in name:
        name += f"@{write_fraction(robust.eps)}"
    if robust.checkpoint is None:
        return name
    fewer = run.natural is not None and robust.images < run.natural.images
    ways = (f"{robust.images} images" * fewer, robust.checkpoint, robust.split)
    return ", ".join([name, *(way for way in ways if way not in ("", "best", "test"))])


def percent(measured: ListedAccuracy | None) -> str:
    if measured is None:
        return ""
    mark = "~" if measured.checkpoint is None else "*" if measured.warnings else ""
    return f"{measured.accuracy:.1%}{mark}"


def fitted(rows: Sequence[dict[str, str]], width: int | None) -> str:
    """The rows as a table; in a narrow terminal without some columns, then with the ends of paths only."""
    names = [name for name in HEAD if name != "settings" or any(row[name] for row in rows)]
    for dropped in range(len(NARROW) + 1):
        head = [name for name in names if name not in NARROW[:dropped]]
        widths = {name: max(len(name), *(len(row[name]) for row in rows)) for name in head}
        room = (width or sys.maxsize) - sum(2 + widths[name] for name in head[1:])
        if room >= min(widths["run"], 16):
            break
    room = max(room, 4)
    short = [row | {"run": row["run"] if len(row["run"]) <= room else f"…{row['run'][1 - room :]}"} for row in rows]
    return text_table(head, [[row[name] for name in head] for row in short])


def columns() -> int | None:
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


# -- deleting


def delete(patterns: Sequence[str], *, yes: bool, as_json: bool) -> int:
    """Deletes the runs that the patterns select, after a question on a terminal."""
    if not patterns:
        raise UserError("name the runs to delete: pixelpart runs PATTERN ... --delete")
    chosen: dict[Path, ListedRun] = {}
    for pattern in patterns:
        folder = Path(pattern)
        if folder.is_dir() and not is_run(folder):
            raise UserError(f"{folder} is not a run folder; '{folder}/*' means the runs below it")
        chosen |= {run.path: run for run in ([read_run(folder)] if folder.is_dir() else find_runs([pattern]))}
    for path in chosen:
        check_deletable(path)
    listed, screen = list(chosen.values()), Screen()
    if not yes:
        if not sys.stdin.isatty():
            raise UserError("--delete needs --yes when stdin is not a terminal")
        screen.say(table(listed, width=screen.console.width))
        print(f"delete {counted(listed)}? [y/N] ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            screen.say("nothing was deleted")
            return 1
    for run in listed:
        left = delete_run(run.path)
        kept = f"; these are not files of a run and remain: {', '.join(map(str, left))}" if left else ""
        screen.say(f"deleted {run.path}{kept}")
    if as_json:
        print(json.dumps([run.as_json() for run in listed], indent=2))
    return 0
