"""`pixelpart bench`."""

from typing import Any

from pixelpart import bench as benches
from pixelpart.cli.arguments import Parser, add_machine, add_output, positive_int, print_result, use_model, use_threads
from pixelpart.errors import UserError, choose
from pixelpart.runtime.progress import Screen

NAMES = ("run", "model", "checkpoint", "batch_size", "steps", "methods", "precision", "images", "search", "repeats")


def bench(argv: list[str]) -> None:
    """Measures speed next to the usual implementation."""
    parser = Parser("bench", bench.__doc__)
    add = parser.add_argument
    add("what", metavar="WHAT", help=f"one of {', '.join(benches.BENCHES)}")
    add("run", nargs="?", metavar="RUN", help="autoattack: run folder of the model to attack")
    add("--model", metavar="NAME", help="network, or module:function (default: resnet18; autoattack: that of the run)")
    add("--checkpoint", help="autoattack: checkpoint of the run: best, last or epoch-N (default: best)")
    add(
        "--batch-size",
        type=positive_int,
        metavar="N",
        help="images per batch (default: 128; autoattack: 1024 on a GPU)",
    )
    add("--steps", type=positive_int, metavar="N", help="train, attack, scale, stream: PGD steps (default: 10)")
    add("--methods", help=f"train: comma-separated (default: {','.join(benches.METHODS)})")
    add("--precision", choices=benches.PRECISIONS, help="train: of our step (default: bf16)")
    add("--images", type=positive_int, metavar="N", help="autoattack: the first N test images (default: 1000)")
    add("--search", help="autoattack: precision of our search (default: bf16 on a GPU, else fp32)")
    add("--repeats", type=positive_int, help=f"report medians of N (default: {benches.REPEATS})", metavar="N")
    add_machine(parser)
    add_output(parser, json="print rows, machine and settings as JSON")
    args = parser.parse_all(argv)
    takes = choose(benches.BENCHES, args.what, "bench")[1]
    settings: dict[str, Any] = {"device": args.device}
    for name in NAMES:
        value = getattr(args, name)
        if value is None:
            continue
        if name not in takes:
            option = "a run folder" if name == "run" else f"--{name.replace('_', '-')}"
            raise UserError(f"bench {args.what} does not take {option}")
        settings[name] = benches.parse_methods(value) if name == "methods" else value
    if args.what == "autoattack":
        if args.run is None:
            raise UserError("bench autoattack needs a run folder: bench autoattack RUN")
        settings["root"], args.checkpoint = args.data_root, args.checkpoint or "best"
        args.model = [args.model] if args.model else None
        use_model(args, [args.run])
        settings.pop("model", None)
    elif args.model:
        from pixelpart import models

        models.use(args.model)
    use_threads(args)
    screen = Screen(quiet=args.quiet)
    with screen.lines():
        report = benches.run(args.what, say=screen.say, **settings)
    print_result(report, as_json=args.json)
