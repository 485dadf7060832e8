"""`pixelpart explain`."""

from pathlib import Path

from pixelpart.cli.arguments import (
    Parser,
    add_machine,
    add_run_options,
    positive_int,
    positive_ints,
    use_model,
    use_threads,
)
from pixelpart.runtime.progress import Screen


def explain(argv: list[str]) -> None:
    """Computes the pictures of a run's report: heat map, budget and attack of some test images."""
    parser = Parser("explain", explain.__doc__)
    parser.add_argument("run", type=Path, metavar="RUN", help="run folder")
    parser.add_argument(
        "--images", type=positive_int, metavar="N", help="N images, spread over the classes (default: 12)"
    )
    parser.add_argument(
        "--epochs",
        type=epoch_list,
        metavar="LIST",
        help="kept epochs to explain too, such as 2,4, or none (default: all that the run kept, see train --keep)",
    )
    add_run_options(parser)
    add_machine(parser)
    args = parser.parse_all(argv)
    from pixelpart.evaluation.explain import explain as run_explanation
    from pixelpart.report.pictures import write_picture
    from pixelpart.runs import Run

    use_threads(args)
    use_model(args, [args.run])
    names = ("checkpoint", "epochs", "data", "size", "skip_bad", "device")
    settings = {name: getattr(args, name) for name in names}
    with Screen().bars() as move:
        path = run_explanation(args.run, n=args.images, root=args.data_root, progress=move, **settings)
    print(path)
    print(write_picture(Run(args.run)))


def epoch_list(text: str) -> list[int]:
    return [] if text == "none" else positive_ints(text)
