"""`pixelpart report`."""

from pathlib import Path

from pixelpart.cli.arguments import Parser


def report(args: list[str]) -> None:
    """Writes one HTML page about run folders: a table with intervals, training curves, pictures."""
    parser = Parser("report", report.__doc__)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="run folders")
    parser.add_argument("--out", type=Path, default="report.html", help="file to write")
    found = parser.parse_all(args)
    from pixelpart.report import write_report

    print(write_report(found.runs, found.out))
