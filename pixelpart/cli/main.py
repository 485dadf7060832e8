"""`pixelpart COMMAND`: the table of commands, and the exit codes.

0 on success, 2 on a user's mistake (one line, no traceback), 1 on a fault, 130 after Ctrl-C, 3 if `check --strict`
finds a suspicious model.
"""

import contextlib
import os
import sys
from collections.abc import Callable, Sequence

from pixelpart.cli.arguments import HelpShown
from pixelpart.cli.bench import bench
from pixelpart.cli.check import check
from pixelpart.cli.compare import compare
from pixelpart.cli.completion import completion
from pixelpart.cli.corruptions import corruptions
from pixelpart.cli.data import data
from pixelpart.cli.demo import demo
from pixelpart.cli.evaluate import evaluate
from pixelpart.cli.experiment import experiment
from pixelpart.cli.explain import explain
from pixelpart.cli.export import export
from pixelpart.cli.predict import predict
from pixelpart.cli.report import report
from pixelpart.cli.runs import runs
from pixelpart.cli.sweep import sweep
from pixelpart.cli.train import train
from pixelpart.errors import Diverged, UserError, choose
from pixelpart.version import code_version

COMMANDS: dict[str, Callable[[list[str]], int | None]] = {
    "demo": demo,
    "train": train,
    "evaluate": evaluate,
    "predict": predict,
    "check": check,
    "corruptions": corruptions,
    "compare": compare,
    "explain": explain,
    "sweep": sweep,
    "experiment": experiment,
    "report": report,
    "export": export,
    "runs": runs,
    "data": data,
    "bench": bench,
    "completion": completion,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    # OpenMP's threads wait for one another by spinning: two commands at once would take 18 times as long as one.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    argv = list(sys.argv[1:] if argv is None else argv)
    code = None
    try:
        with contextlib.suppress(HelpShown):
            code = run_command(argv)
        print(end="", flush=True)  # now, because a BrokenPipeError at exit cannot be caught
        return code or 0
    except KeyboardInterrupt:
        return 130
    except SystemExit as error:
        print(f"pixelpart: user code called sys.exit({error.code!r}) during the command", file=sys.stderr)
        return 1
    except BrokenPipeError:  # the reader of our output has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (UserError, Diverged, OSError) as error:
        print(f"pixelpart: {error}", file=sys.stderr)
        return 2 if isinstance(error, UserError) else 1


def run_command(argv: list[str]) -> int | None:
    for arg in argv:
        if arg.encode(errors="replace").decode() != arg:  # they are written to config.json and log.txt
            raise UserError(f"{arg!r} is not UTF-8; rename the file or folder")
    if not argv or argv[0] in ("-h", "--help"):
        print(usage())
        return 0
    if argv[0] in ("-V", "--version"):
        print(f"pixelpart {code_version()}")
        return 0
    return choose(COMMANDS, argv[0], "command")(argv[1:])


def usage() -> str:
    lines = "\n".join(f"  {name:<12} {command.__doc__}" for name, command in COMMANDS.items())
    return f"usage: pixelpart COMMAND ...\n\n{lines}\n\n`pixelpart COMMAND --help` lists the options of a command."
