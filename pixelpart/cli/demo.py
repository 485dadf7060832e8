"""`pixelpart demo`."""

from pathlib import Path

from pixelpart.cli.flags import Parser
from pixelpart.runtime.progress import Screen


def demo(args: list[str]) -> None:
    """Trains AT and PART on the embedded set, attacks both, and writes a page about them; minutes, no download."""
    parser = Parser(prog="pixelpart demo", description=demo.__doc__)
    parser.add_argument(
        "--out", type=Path, default=Path("demo"), help="folder for both runs and report.html (here: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", help="cpu, cuda, ... (a GPU where there is one)")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    found = parser.parse_all(args)
    from pixelpart.experiments.demo import run_demo
    from pixelpart.report import write_report

    runs = run_demo(found.out, seed=found.seed, device=found.device, screen=Screen(quiet=found.quiet))
    print(
        write_report(
            [run.dir for run in runs], found.out / "report.html", title="pixelpart demo: AT and PART on shapes"
        )
    )
