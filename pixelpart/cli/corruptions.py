"""`pixelpart corruptions`."""

from pathlib import Path

from pixelpart.cli.arguments import (
    Parser,
    add_name,
    add_output,
    add_target,
    positive_ints,
    print_result,
    target_settings,
)
from pixelpart.runtime.progress import Screen


def corruptions(argv: list[str]) -> None:
    """Measures a model's accuracy on test images with noise, blur, weather and other corruptions: CIFAR-10-C."""
    parser = Parser("corruptions", corruptions.__doc__)
    add_target(parser, images="all")
    add_name(parser)
    parser.add_argument("--names", help="comma-separated corruptions, such as fog,snow (default: all 19)")
    parser.add_argument("--severities", type=positive_ints, default="1,2,3,4,5", help="comma-separated")
    parser.add_argument(
        "--folder",
        type=Path,
        metavar="FOLDER",
        help="folder with the .npy files of CIFAR-10-C (default: CIFAR-10-C in the data root; else generated)",
    )
    parser.add_argument(
        "--frost",
        type=Path,
        metavar="FOLDER",
        help="folder with frost1.png to frost5.jpg (default: those of the package imagecorruptions; else generated)",
    )
    add_output(parser, json="print the means and the entries of corruptions.json")
    args = parser.parse_all(argv)
    from pixelpart.evaluation.corruptions import corruptions as run_corruptions

    screen = Screen(quiet=args.quiet)
    with screen.bars() as move:
        result = run_corruptions(
            args.models[0], names=args.names, severities=args.severities, folder=args.folder, frost=args.frost,
            name=args.name, say=screen.say, progress=move, **target_settings(args),
        )  # fmt: skip
    print_result(result, as_json=args.json)
