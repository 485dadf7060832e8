"""`pixelpart compare`."""

from pathlib import Path

from pixelpart.cli.arguments import Parser, add_checkpoint, add_output, print_result
from pixelpart.errors import UserError


def compare(argv: list[str]) -> None:
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
    args = parser.parse_all(argv)
    attacks = [name.strip() for name in args.attacks.split(",")] if args.attacks else None
    if not args.runs or not args.others:
        raise UserError("write `compare RUN ... --with RUN ...`")
    from pixelpart.comparison.compare import compare as run_comparison
    from pixelpart.comparison.compare import name_groups

    groups = name_groups(args.runs, args.others)
    result = run_comparison(groups, attacks=attacks, checkpoint=args.checkpoint, split=args.split)
    print_result(result, as_json=args.json)
