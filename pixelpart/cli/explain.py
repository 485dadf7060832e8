"""`pixelpart explain`."""

from pathlib import Path

from pixelpart.cli.arguments import add_checkpoint, add_device_and_root, use_network
from pixelpart.cli.flags import Parser


def explain(args: list[str]) -> None:
    """Makes the pictures of a run's report: heat, budget and attack of a few test images."""
    parser = Parser(prog="pixelpart explain", description=explain.__doc__)
    parser.add_argument("run", type=Path, help="run folder")
    add_checkpoint(parser)
    parser.add_argument("--images", type=int, help="so many, spread over the classes (here: 12, or all if fewer)")
    add_device_and_root(parser)
    found = parser.parse_all(args)
    from pixelpart.evaluation.explain import explain as run_explanation

    use_network(found)
    print(
        run_explanation(
            found.run, n=found.images, checkpoint=found.checkpoint, device=found.device, root=found.data_root
        )
    )
