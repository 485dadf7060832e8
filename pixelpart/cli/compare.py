"""`pixelpart compare`."""

import json
from pathlib import Path
from typing import Any

from pixelpart.cli.arguments import positive, positives
from pixelpart.cli.flags import Parser
from pixelpart.errors import UserError
from pixelpart.runtime.progress import Screen


def compare(args: list[str]) -> None:
    """Tells whether two methods, or two models, differ on the same images: compare RUN ... --with RUN ..."""
    parser = Parser(prog="pixelpart compare", description=compare.__doc__)
    parser.add_argument("runs", type=Path, nargs="*", metavar="RUN", help="one run folder, or the seeds of one method")
    parser.add_argument("--with", dest="others", type=Path, nargs="+", metavar="RUN", help="what to compare them with")
    parser.add_argument(
        "--attacks",
        help="comma-separated; also corruptions, such as fog-3 (here: all attacks that every run has been put to)",
    )
    parser.add_argument("--checkpoint", default="best", help="best, last or epoch-N")
    parser.add_argument(
        "--calibrate",
        action="store_true",
        help="no --with: how often one method is called different from itself, in simulation, and among the runs if "
        "there are four or more",
    )
    simulated = parser.add_argument_group("what --calibrate simulates (here: a world like that of the runs, if any)")
    simulated.add_argument("--seeds", type=positives, help="comma-separated: runs a side (here: 1,2,3,5,8)")
    simulated.add_argument("--repeats", type=positive, help="comparisons for each of them (here: 2000)")
    simulated.add_argument("--images", type=positive, help="test images (here: 10000)")
    simulated.add_argument("--accuracy", type=float, help="of both sides (here: 0.5)")
    simulated.add_argument("--deviation", type=float, help="of the accuracy from seed to seed (here: 0.003)")
    simulated.add_argument("--correlation", type=float, help="how alike two seeds find the images (here: 0.95)")
    parser.add_argument("--json", action="store_true", help="the same as JSON on stdout")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    found = parser.parse_all(args)
    attacks = [name.strip() for name in found.attacks.split(",")] if found.attacks else None
    fields = ("seeds", "repeats", "images", "accuracy", "deviation", "correlation")
    world = {name: getattr(found, name) for name in fields if getattr(found, name) is not None}
    if found.calibrate and not found.others:
        from pixelpart.evaluation.calibration import calibrate

        with Screen(quiet=found.quiet).bars("times") as move:
            result: Any = calibrate(
                found.runs,
                attacks=attacks,
                checkpoint=found.checkpoint,
                progress=move,
                **world,
            )
    else:
        if found.calibrate or not found.runs or not found.others:
            raise UserError("say `compare RUN ... --with RUN ...` or `compare --calibrate [RUN ...]`")
        if world:
            raise UserError(f"compare takes --{next(iter(world))} with --calibrate alone")
        from pixelpart.evaluation.compare import compare as run_comparison
        from pixelpart.evaluation.compare import name_groups

        result = run_comparison(name_groups(found.runs, found.others), attacks=attacks, checkpoint=found.checkpoint)
    print(json.dumps(result.as_json(), indent=2) if found.json else result)
