"""`pixelpart evaluate`."""

import argparse
import json
import os
from pathlib import Path
from typing import Any

from pixelpart.cli.arguments import (
    Parser,
    add_attack_settings,
    add_name,
    add_output,
    add_target,
    positive_int,
    target_settings,
)
from pixelpart.config import DEFAULT_ATTACKS
from pixelpart.errors import UserError
from pixelpart.runtime.progress import Screen

ATTACKS = (
    "comma-separated: natural (the images as they are), pgd20 (an attack and its steps), pgd20x5 (with 5 restarts), "
    "autoattack, ...; pgd20@16/255 has its own eps. docs/reference.md lists all, and so does an unknown name"
)


def evaluate(argv: list[str]) -> int:
    """Measures the accuracy of models on test or held-out images, clean and under attack."""
    parser = Parser("evaluate", evaluate.__doc__)
    add_target(parser, images="all", several=True)
    add_name(parser)
    parser.add_argument(
        "--split",
        default="test",
        help="images: test, or held-out, the training images that the run held out (which chose its best checkpoint, "
        "but not its last)",
    )
    parser.add_argument("--attacks", default=",".join(DEFAULT_ATTACKS), help=ATTACKS)
    add_attack_settings(parser, eps="largest change of a pixel (l_inf)", step_size="length of a step of an attack")
    parser.add_argument(
        "--search",
        default="auto",
        help="precision in which attacks search: fp32, bf16, or auto: bf16 on a GPU for autoattack and its parts, fp32 "
        "for the others. The result is always decided in fp32",
    )
    parser.add_argument(
        "--engine", default="own", help="implementation of autoattack: own, or reference, the code of its authors"
    )
    parser.add_argument(
        "--workers",
        type=positive_int,
        default="1",
        metavar="N",
        help="processes that share the images, each with its own GPU if possible",
    )
    add_output(parser, json="print a list of entries of eval.json, each with its model")
    args = parser.parse_all(argv)
    if args.name is not None and len(args.models) > 1:
        raise UserError(f"--name {args.name} names one model, not {len(args.models)}")
    if args.workers == 1:
        evaluate_in_process(args)
        return 0
    from pixelpart.runtime.world import launch, report_to_launcher

    if "WORLD_SIZE" not in os.environ:
        return launch(args.workers, ["evaluate", *argv])
    try:
        evaluate_in_process(args)
    except UserError as error:
        return report_to_launcher(error)
    return 0


def evaluate_in_process(args: argparse.Namespace) -> None:
    """Evaluates in this process, which may be one of several workers; the first prints the results."""
    from pixelpart.evaluation.evaluate import evaluate as run_evaluation
    from pixelpart.runtime.world import joined, local_device

    settings = target_settings(args)
    entries: list[dict[str, Any]] = []
    with joined() as world:
        screen = Screen(quiet=args.quiet or not world.leads)
        settings["device"] = args.device or local_device()
        for model in args.models:
            try:
                with screen.bars("tries") as move:
                    result = run_evaluation(
                        model, split=args.split, attacks=args.attacks, eps=args.eps, step_size=args.step_size,
                        seed=args.seed, search=args.search, engine=args.engine, name=args.name, say=screen.say,
                        progress=move, world=world, **settings,
                    )  # fmt: skip
            except KeyboardInterrupt:
                if args.out or Path(model).is_dir():
                    screen.say("stopped; the same command continues from the stored results")
                raise
            entries += [{"model": model} | entry for entry in result.entries]
            if world.leads and not args.json:
                print(f"{model}:\n{result}" if len(args.models) > 1 else result, flush=True)
    if world.leads and args.json:
        print(json.dumps(entries, indent=2))
