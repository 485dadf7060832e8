"""`pixelpart compare`."""

from pathlib import Path
from typing import Any

from pixelpart.cli.arguments import Parser, add_checkpoint, add_output, positive_int, positive_ints, print_result
from pixelpart.errors import UserError
from pixelpart.runtime.progress import Screen


def compare(args: list[str]) -> None:
    """Tests whether two methods, or two models, differ on the same images: compare RUN ... --with RUN ..."""
    parser = Parser("compare", compare.__doc__)
    parser.add_argument(
        "runs",
        type=Path,
        nargs="*",
        metavar="RUN",
        help="one run folder, or the seeds of one method; FOLDER/NAME for results stored with --out and --name",
    )
    parser.add_argument("--with", dest="others", type=Path, nargs="+", metavar="RUN", help="runs to compare them with")
    parser.add_argument(
        "--attacks",
        help="comma-separated; also corruptions, such as fog-3 (default: all attacks that every run was evaluated on)",
    )
    add_checkpoint(parser)
    parser.add_argument("--split", default="test", help="results on test or held-out images")
    parser.add_argument(
        "--calibrate",
        action="store_true",
        help="without --with: how often a method is found to differ from itself, in simulation and, with four or more "
        "runs, among the runs",
    )
    group = parser.add_argument_group("simulation of --calibrate (with runs: defaults are estimated from the runs)")
    group.add_argument("--seeds", type=positive_ints, help="comma-separated: runs per side (default: 1,2,3,5,8)")
    group.add_argument(
        "--repeats", type=positive_int, metavar="N", help="comparisons for each number of seeds (default: 2000)"
    )
    group.add_argument("--images", type=positive_int, metavar="N", help="test images (default: 10000)")
    group.add_argument("--accuracy", type=float, help="accuracy of both sides (default: 0.5)")
    group.add_argument("--deviation", type=float, help="deviation of the accuracy between seeds (default: 0.003)")
    group.add_argument("--correlation", type=float, help="correlation of two seeds over images (default: 0.95)")
    add_output(parser, json="print the comparison as JSON")
    found = parser.parse_all(args)
    attacks = [name.strip() for name in found.attacks.split(",")] if found.attacks else None
    fields = ("seeds", "repeats", "images", "accuracy", "deviation", "correlation")
    simulated = {name: getattr(found, name) for name in fields if getattr(found, name) is not None}
    result: Any
    if found.calibrate and not found.others:
        from pixelpart.comparison.calibration import calibrate

        with Screen(quiet=found.quiet).bars("times") as move:
            settings = {"attacks": attacks, "checkpoint": found.checkpoint, "split": found.split} | simulated
            result = calibrate(found.runs, progress=move, **settings)
    else:
        if found.calibrate or not found.runs or not found.others:
            raise UserError("write `compare RUN ... --with RUN ...` or `compare --calibrate [RUN ...]`")
        if simulated:
            raise UserError(f"--{next(iter(simulated))} needs --calibrate")
        from pixelpart.comparison.compare import compare as run_comparison
        from pixelpart.comparison.compare import name_groups

        groups = name_groups(found.runs, found.others)
        result = run_comparison(groups, attacks=attacks, checkpoint=found.checkpoint, split=found.split)
    print_result(result, as_json=found.json)
