"""`pixelpart bench`."""

import importlib
import json
from typing import Any

from pixelpart import bench as benches
from pixelpart.cli.arguments import add_running, positive
from pixelpart.cli.flags import Parser
from pixelpart.errors import UserError
from pixelpart.runtime.progress import Screen


def bench(args: list[str]) -> None:
    """Measures speed beside the usual way: bench train | attack | cam | scale | stream | autoattack RUN."""
    parser = Parser(prog="pixelpart bench", description=bench.__doc__)
    parser.add_argument("what", choices=benches.KINDS)
    parser.add_argument("run", nargs="?", metavar="RUN", help="autoattack: the run folder whose model is attacked")
    parser.add_argument("--model", help="the network, or module:function (here: resnet18)")
    parser.add_argument("--batch-size", type=positive, help="images at a time (here: 128; autoattack: 1024 on a GPU)")
    parser.add_argument("--steps", type=positive, help="train, attack, scale, stream: steps of PGD (here: 10)")
    parser.add_argument("--methods", help=f"train: comma-separated (here: {','.join(benches.METHODS)})")
    parser.add_argument("--precision", choices=benches.PRECISIONS, help="train: our own step's (here: bf16)")
    parser.add_argument("--images", type=positive, help="autoattack: the first so many test images (here: 1000)")
    parser.add_argument("--search", help="autoattack: precision of our search (here: bf16 on a GPU, else fp32)")
    parser.add_argument("--repeats", type=positive, help=f"times are medians of so many (here: {benches.REPEATS})")
    add_running(parser, json="rows, machine and settings as JSON on stdout")
    found = parser.parse_all(args)
    settings: dict[str, Any] = {"device": found.device}
    for name in ("run", "model", "batch_size", "steps", "methods", "precision", "images", "search", "repeats"):
        value = getattr(found, name)
        if value is not None and name not in benches.TAKES[found.what]:
            said = "run folder" if name == "run" else f"--{name.replace('_', '-')}"
            raise UserError(f"bench {found.what} takes no {said}")
        if value is not None:
            settings[name] = benches.parse_methods(value) if name == "methods" else value
    if found.what == "autoattack":
        if found.run is None:
            raise UserError("say whose model is attacked: bench autoattack RUN")
        settings["root"] = found.data_root
    if found.model:
        from pixelpart import models

        models.use(found.model)
    run_bench = getattr(importlib.import_module(f"pixelpart.bench.{found.what}"), f"bench_{found.what}")
    result = run_bench(say=Screen(quiet=found.quiet).say, **settings)
    print(json.dumps(result.as_json(), indent=2) if found.json else result)
