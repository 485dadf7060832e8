"""`pixelpart explain` and `pixelpart report`."""

from pathlib import Path

from pixelpart.commands.arguments import add_checkpoint, add_device_and_root, use_network
from pixelpart.flags import Parser


def explain(args: list[str]) -> None:
    """Makes the pictures of a run's report: heat, budget and attack of a few test images."""
    parser = Parser(prog="pixelpart explain", description=explain.__doc__)
    parser.add_argument("run", type=Path, help="run folder")
    add_checkpoint(parser)
    parser.add_argument("--images", type=int, help="so many, spread over the classes (here: 12, or all if fewer)")
    add_device_and_root(parser)
    found = parser.parse_all(args)
    from pixelpart.evaluation.explain import explain as run_explanation

    use_network(found)
    print(
        run_explanation(
            found.run, n=found.images, checkpoint=found.checkpoint, device=found.device, root=found.data_root
        )
    )


def report(args: list[str]) -> None:
    """Writes one HTML page about run folders: curves, a table with intervals, pictures."""
    parser = Parser(prog="pixelpart report", description=report.__doc__)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="run folders")
    parser.add_argument("--out", type=Path, default=Path("report.html"), help="the page (here: %(default)s)")
    found = parser.parse_all(args)
    from pixelpart.report import write_report

    print(write_report(found.runs, found.out))
