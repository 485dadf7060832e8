"""`pixelpart explain`."""

from pathlib import Path

from pixelpart.cli.arguments import Parser, add_checkpoint, add_data_root, add_device, positive_int, use_network


def explain(args: list[str]) -> None:
    """Computes the pictures of a run's report: heat map, budget and attack of a few test images."""
    parser = Parser("explain", explain.__doc__)
    parser.add_argument("run", type=Path, metavar="RUN", help="run folder")
    parser.add_argument(
        "--images", type=positive_int, metavar="N", help="N images, spread over the classes (default: 12)"
    )
    add_checkpoint(parser)
    add_device(parser)
    add_data_root(parser)
    found = parser.parse_all(args)
    from pixelpart.evaluation.explain import explain as run_explanation

    use_network(found)
    settings = {"checkpoint": found.checkpoint, "device": found.device, "root": found.data_root}
    print(run_explanation(found.run, n=found.images, **settings))
