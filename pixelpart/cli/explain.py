"""`pixelpart explain`."""

from pathlib import Path

from pixelpart.cli.arguments import (
    Parser,
    add_data_root,
    add_device,
    add_run_options,
    add_threads,
    positive_int,
    use_model,
    use_threads,
)
from pixelpart.runtime.progress import Screen


def explain(args: list[str]) -> None:
    """Computes the pictures of a run's report: heat map, budget and attack of a few test images."""
    parser = Parser("explain", explain.__doc__)
    parser.add_argument("run", type=Path, metavar="RUN", help="run folder")
    parser.add_argument(
        "--images", type=positive_int, metavar="N", help="N images, spread over the classes (default: 12)"
    )
    add_run_options(parser)
    add_device(parser)
    add_threads(parser)
    add_data_root(parser)
    found = parser.parse_all(args)
    from pixelpart.evaluation.explain import explain as run_explanation

    use_threads(found)
    use_model(found, [found.run])
    settings = {name: getattr(found, name) for name in ("checkpoint", "data", "size", "skip_bad", "device")}
    with Screen().lines():
        path = run_explanation(found.run, n=found.images, root=found.data_root, **settings)
    print(path)
