"""`pixelpart check`."""

import json
from pathlib import Path

from pixelpart.cli.arguments import (
    add_batch_size,
    add_checkpoint,
    add_data,
    add_eps_and_step_size,
    add_model,
    add_running,
    positive,
    use_network,
)
from pixelpart.cli.flags import Parser
from pixelpart.config import DEFAULT_SEED
from pixelpart.runtime.progress import Screen

STRICT = 3  # exit code of a suspicious model; 1 is a fault and 2 a mistake


def check(args: list[str]) -> int:
    """Tells whether a model resists attacks or only hides its gradients: five behaviours, a verdict each."""
    parser = Parser(prog="pixelpart check", description=check.__doc__)
    add_model(parser)
    parser.add_argument(
        "--surrogate",
        metavar="MODEL",
        help="another model for the same images, for the black-box attack (here: a small one, trained on the way where "
        "the training set is small)",
    )
    add_data(parser)
    parser.add_argument("--out", type=Path, help="folder that keeps check.json (here: the run's own; else none)")
    add_checkpoint(parser)
    add_eps_and_step_size(parser, eps="the smallest ball", step_size="length of a step in that ball; it grows with eps")
    parser.add_argument("--images", type=positive, help="the first so many test images (here: 1000)")
    parser.add_argument("--seed", type=int, default=DEFAULT_SEED, help="seed of random starts and points")
    add_batch_size(parser, type=positive)
    parser.add_argument("--strict", action="store_true", help=f"exit with {STRICT} if the verdict is suspicious")
    add_running(parser, json="the content of check.json on stdout")
    found = parser.parse_all(args)
    from pixelpart.evaluation.checks.behaviours import SUSPICIOUS
    from pixelpart.evaluation.checks.obfuscation import check as run_check

    use_network(found)
    screen = Screen(quiet=found.quiet)
    with screen.bars() as move:
        report = run_check(
            found.model,
            surrogate=found.surrogate,
            eps=found.eps,
            step_size=found.step_size,
            images=found.images,
            checkpoint=found.checkpoint,
            seed=found.seed,
            batch_size=found.batch_size,
            device=found.device,
            progress=move,
            data=found.data,
            size=found.size,
            skip_bad=found.skip_bad,
            root=found.data_root,
            out=found.out,
        )
    print(json.dumps(report.as_json(), indent=2) if found.json else report)
    if report.kept is None:
        screen.say("this report is not kept; --out FOLDER keeps it")
    return STRICT if found.strict and report.verdict == SUSPICIOUS else 0
