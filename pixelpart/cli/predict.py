"""`pixelpart predict`."""

import json
from pathlib import Path

from pixelpart.cli.arguments import (
    Parser,
    add_checkpoint,
    add_device,
    add_model,
    add_output,
    add_threads,
    use_model,
    use_threads,
)
from pixelpart.runtime.progress import Screen


def predict(argv: list[str]) -> None:
    """Predicts the classes of pictures with the model of a run."""
    parser = Parser("predict", predict.__doc__)
    parser.add_argument("run", type=Path, metavar="RUN", help="run folder")
    parser.add_argument("pictures", type=Path, nargs="+", metavar="PICTURE", help="picture, or folder of pictures")
    parser.add_argument("--skip-bad", action="store_true", help="leave out files that cannot be read")
    add_checkpoint(parser)
    add_model(parser)
    add_device(parser)
    add_threads(parser)
    add_output(parser, json="print a list with the probabilities of all classes")
    args = parser.parse_all(argv)
    from pixelpart.evaluation.predict import predict as predict_pictures

    use_threads(args)
    use_model(args, [args.run])
    screen = Screen(quiet=args.quiet)
    with screen.bars("pictures") as move:
        found = predict_pictures(
            args.run, args.pictures, checkpoint=args.checkpoint, skip_bad=args.skip_bad, device=args.device,
            progress=move, say=screen.say,
        )  # fmt: skip
    print(json.dumps([one.as_json() for one in found], indent=2) if args.json else "\n".join(map(str, found)))
