"""`pixelpart corruptions`."""

import json
from pathlib import Path

from pixelpart.cli.arguments import (
    add_batch_size,
    add_checkpoint,
    add_data,
    add_model,
    add_out,
    add_running,
    positives,
    use_network,
)
from pixelpart.cli.flags import Parser
from pixelpart.runtime.progress import Screen


def corruptions(args: list[str]) -> None:
    """Measures a model's accuracy on test images with noise, blur, weather and the like: CIFAR-10-C."""
    parser = Parser(prog="pixelpart corruptions", description=corruptions.__doc__)
    add_model(parser)
    add_data(parser)
    add_out(parser)
    parser.add_argument("--names", help="comma-separated corruptions, such as fog,snow (here: all 19)")
    parser.add_argument("--severities", type=positives, help="comma-separated (here: 1,2,3,4,5)")
    add_checkpoint(parser)
    parser.add_argument("--images", type=int, help="the first so many test images (here: all)")
    parser.add_argument(
        "--folder", type=Path, help="the .npy files of CIFAR-10-C (here: CIFAR-10-C in the data root, else made)"
    )
    parser.add_argument(
        "--frost", type=Path, help="frost1.png to frost5.jpg (here: of the package imagecorruptions, else drawn frost)"
    )
    add_batch_size(parser)
    add_running(parser, json="means, and the entries of corruptions.json, on stdout")
    found = parser.parse_all(args)

    from pixelpart.evaluation.corruptions import corruptions as run_corruptions

    use_network(found)
    screen = Screen(quiet=found.quiet)
    with screen.bars() as move:
        result = run_corruptions(
            found.model,
            names=found.names,
            **({"severities": found.severities} if found.severities else {}),
            checkpoint=found.checkpoint,
            images=found.images,
            folder=found.folder,
            frost=found.frost,
            batch_size=found.batch_size,
            device=found.device,
            data=found.data,
            size=found.size,
            skip_bad=found.skip_bad,
            root=found.data_root,
            out=found.out,
            say=screen.say,
            progress=move,
        )
    print(json.dumps(result.as_json(), indent=2) if found.json else result)
    if result.clean.entry["flags"] is None:
        screen.say("these results are not kept; --out FOLDER keeps them")
