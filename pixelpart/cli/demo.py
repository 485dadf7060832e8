"""`pixelpart demo`."""

from pathlib import Path

from pixelpart.cli.arguments import Parser, add_device, add_threads, use_threads
from pixelpart.runtime.progress import Screen


def demo(argv: list[str]) -> None:
    """Trains AT and PART on the built-in data set, attacks both and writes a report; minutes, no download."""
    parser = Parser("demo", demo.__doc__)
    parser.add_argument(
        "--out", type=Path, default="demo", metavar="FOLDER", help="folder for both runs and report.html"
    )
    parser.add_argument("--seed", type=int, default="0", help="seed of both runs")
    add_device(parser)
    add_threads(parser)
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    args = parser.parse_all(argv)
    from pixelpart.experiments.demo import run_demo
    from pixelpart.report import write_report

    use_threads(args)
    runs = run_demo(args.out, seed=args.seed, device=args.device, screen=Screen(quiet=args.quiet))
    title = "pixelpart demo: AT and PART on shapes"
    print(write_report([run.dir for run in runs], args.out / "report.html", title=title))
