"""`pixelpart report`."""

from pathlib import Path

from pixelpart.cli.flags import Parser


def report(args: list[str]) -> None:
    """Writes one HTML page about run folders: curves, a table with intervals, pictures."""
    parser = Parser(prog="pixelpart report", description=report.__doc__)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="run folders")
    parser.add_argument("--out", type=Path, default=Path("report.html"), help="the page (here: %(default)s)")
    found = parser.parse_all(args)
    from pixelpart.report import write_report

    print(write_report(found.runs, found.out))
