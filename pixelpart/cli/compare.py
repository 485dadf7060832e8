"""`pixelpart compare`."""

from pathlib import Path

from pixelpart.cli.arguments import Parser, add_checkpoint, add_output, print_result
from pixelpart.errors import UserError


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
    add_output(parser, json="print the comparison as JSON")
    found = parser.parse_all(args)
    attacks = [name.strip() for name in found.attacks.split(",")] if found.attacks else None
    if not found.runs or not found.others:
        raise UserError("write `compare RUN ... --with RUN ...`")
    from pixelpart.comparison.compare import compare as run_comparison
    from pixelpart.comparison.compare import name_groups

    groups = name_groups(found.runs, found.others)
    result = run_comparison(groups, attacks=attacks, checkpoint=found.checkpoint, split=found.split)
    print_result(result, as_json=found.json)
