"""`pixelpart export`."""

from pathlib import Path

from pixelpart.cli.arguments import Parser, add_checkpoint, add_model, use_model
from pixelpart.errors import UserError


def export(argv: list[str]) -> None:
    """Writes the model of a run for other programs: torch.export, ONNX, RobustBench, a folder with a model card."""
    parser = Parser("export", export.__doc__)
    parser.add_argument("run", type=Path, metavar="RUN", help="run folder")
    parser.add_argument(
        "--to",
        metavar="FORMAT",
        help="pt2: an archive of torch.export; onnx; robustbench: the weights of a resnet18, preactresnet18 or wrn-*; "
        "hub: a run folder for sharing, with a model card",
    )
    parser.add_argument("--out", type=Path, help="file or folder to write (default: the run's name, here)")
    add_checkpoint(parser)
    add_model(parser)
    args = parser.parse_all(argv)
    from pixelpart.exports import FORMATS
    from pixelpart.exports.export import export as export_run

    if not args.to:
        raise UserError(f"--to is missing; choose from {', '.join(FORMATS)}")
    use_model(args, [args.run])
    print(export_run(args.run, to=args.to, out=args.out, checkpoint=args.checkpoint))
