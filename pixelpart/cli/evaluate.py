"""`pixelpart evaluate`."""

import argparse
import json
import os

from pixelpart.cli.arguments import (
    add_batch_size,
    add_checkpoint,
    add_eps_and_step_size,
    add_folder_options,
    add_out,
    add_running,
    positive,
    use_network,
)
from pixelpart.cli.flags import Parser
from pixelpart.config import DEFAULT_ATTACKS, DEFAULT_SEED
from pixelpart.errors import UserError
from pixelpart.runtime.progress import Screen


def evaluate(args: list[str]) -> int:
    """Measures a model's accuracy on test images, as they are and under attack."""
    parser = Parser(prog="pixelpart evaluate", description=evaluate.__doc__)
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="run folder; .safetensors checkpoint; .pt2 archive of torch.export; or module:function, which returns an "
        "nn.Module on [0,1] images",
    )
    parser.add_argument(
        "--data",
        metavar="NAME",
        help="test images: the name of their set, folder:PATH or module:function; a model that is not a run's needs it "
        "(here: the run's own)",
    )
    add_folder_options(parser)
    add_out(parser)
    parser.add_argument(
        "--attacks",
        default=",".join(DEFAULT_ATTACKS),
        help="comma-separated: natural; an attack with its steps, and restarts if more than one, such as pgd20, "
        "pgd20x5, mma20, or, knowing how PART trains, adaptive-pgd20, adaptive-mma20, adaptive-in20; autoattack, "
        "autoattack-plus; or a part of these: apgd-ce, apgd-dlr, apgd-t, fab, fab-t, "
        "square; apgd (apgd-ce, then apgd-t); mm3; in l2 and l1: apgd-l2, apgd-l1; NAME@EPS gives an attack an eps of "
        "its own, such as pgd20@16/255, apgd-l1@12 (here: %(default)s)",
    )
    add_checkpoint(parser)
    add_eps_and_step_size(parser, eps="budget of every pixel, in l_inf", step_size="length of an attack's step")
    parser.add_argument("--images", type=int, help="the first so many test images (here: all)")
    parser.add_argument("--seed", type=int, default=DEFAULT_SEED, help="seed of the attacks' random starts")
    parser.add_argument(
        "--search",
        default="auto",
        help="precision in which attacks search: fp32, bf16, or auto, which is bf16 on a GPU for autoattack and its "
        "parts and fp32 for the others; fp32 decides (here: %(default)s)",
    )
    parser.add_argument(
        "--engine", default="own", help="who runs autoattack: own, or reference, its authors' code (here: %(default)s)"
    )
    add_batch_size(parser)
    parser.add_argument(
        "--workers",
        type=positive,
        default=1,
        help="processes that share the images, a GPU each where there are so many",
    )
    add_running(parser, json="the entries of eval.json on stdout")
    found = parser.parse_all(args)
    if found.workers > 1:
        from pixelpart.runtime.world import launch, tell_launcher

        if "WORLD_SIZE" not in os.environ:
            return launch(found.workers, ["evaluate", *args])
        try:
            measure(found)
        except UserError as error:
            return tell_launcher(error)
        return 0
    measure(found)
    return 0


def measure(found: argparse.Namespace) -> None:
    from pixelpart.evaluation.evaluate import evaluate as run_evaluation
    from pixelpart.runtime.world import joined, local_device

    use_network(found)
    with joined() as world, (screen := Screen(quiet=found.quiet or not world.leads)).bars("tries") as move:
        result = run_evaluation(
            found.model,
            attacks=found.attacks,
            checkpoint=found.checkpoint,
            eps=found.eps,
            step_size=found.step_size,
            images=found.images,
            seed=found.seed,
            batch_size=found.batch_size,
            device=found.device or local_device(),
            data=found.data,
            size=found.size,
            skip_bad=found.skip_bad,
            root=found.data_root,
            out=found.out,
            search=found.search,
            engine=found.engine,
            say=screen.say,
            progress=lambda attack, done, total, share: move(attack, done, total, f"{share:.2%} right"),
            world=world,
        )
    if not world.leads:
        return
    print(json.dumps(result.entries, indent=2) if found.json else result)
    if any(entry["flags"] is None for entry in result.entries):
        screen.say("these results are not kept; --out FOLDER keeps them")
