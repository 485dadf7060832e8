"""`pixelpart report`."""

from pathlib import Path

from pixelpart.cli.arguments import Parser


def report(argv: list[str]) -> None:
    """Writes one HTML page about runs, a sweep or an experiment: tables with intervals, plots, curves, pictures."""
    parser = Parser("report", report.__doc__)
    about = "run folders; or the folder of a sweep, an experiment or several experiments"
    parser.add_argument("folders", type=Path, nargs="+", metavar="RUN", help=about)
    parser.add_argument("--out", type=Path, default="report.html", help="file to write")
    args = parser.parse_all(argv)
    from pixelpart.report import write_report

    print(write_report(args.folders, args.out))
