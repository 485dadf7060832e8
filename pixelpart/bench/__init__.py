"""Speed next to the usual implementation, measured in one run. No torch here, so that `--help` is quick."""

import importlib
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from pixelpart.errors import unknown

if TYPE_CHECKING:
    from pixelpart.bench.timing import BenchReport

_STEP = ("model", "batch_size", "steps", "repeats")
BENCHES = {  # the module and the settings of each
    "attack": ("components", _STEP),
    "autoattack": ("autoattack", ("run", "model", "checkpoint", "images", "search", "batch_size")),
    "cam": ("components", ("model", "batch_size", "repeats")),
    "scale": ("train", _STEP),
    "stream": ("train", _STEP),
    "train": ("train", (*_STEP, "methods", "precision")),
}
METHODS = ("at", "part", "trades", "part-t", "mart", "part-m")
PRECISIONS = ("bf16", "fp32")
REPEATS = 3


def run(
    bench: str,
    *,
    device: str | None = None,
    repeats: int = REPEATS,
    say: Callable[[str], None] = lambda line: None,
    **settings: Any,
) -> "BenchReport":
    """The report of a bench; times are medians of `repeats` rounds."""
    from pixelpart.bench.timing import Bench, BenchReport, arithmetic, describe_machine
    from pixelpart.runtime.device import choose_device

    target, module = choose_device(device), importlib.import_module(f"pixelpart.bench.{BENCHES[bench][0]}")
    running = Bench(BenchReport(bench, {}, describe_machine(target)), target, repeats, say)
    # AutoAttack is timed once, and its two engines choose their own arithmetic.
    once = bench == "autoattack"
    with nullcontext() if once else arithmetic(target, settings.get("precision", "bf16")):
        getattr(module, f"bench_{bench}")(running, **settings)
    running.report.settings |= {} if once else {"repeats": repeats}
    return running.report


def parse_methods(text: str) -> list[str]:
    """The methods of a comma-separated list, without duplicates."""
    names = list(dict.fromkeys(text.split(",")))
    for name in names:
        if name not in METHODS:
            raise unknown("method", name, METHODS)
    return names
