"""How fast this is beside the usual way of doing the same, measured in one run. No torch in here: `--help` is quick."""

from pixelpart.errors import unknown

_STEP = ("model", "batch_size", "steps", "repeats")
TAKES = {  # the settings of each
    "attack": _STEP,
    "autoattack": ("run", "images", "search", "batch_size"),
    "cam": ("model", "batch_size", "repeats"),
    "scale": _STEP,
    "stream": _STEP,
    "train": (*_STEP, "methods", "precision"),
}
KINDS = tuple(TAKES)
METHODS = ("at", "part", "trades", "part-t", "mart", "part-m")
PRECISIONS = ("bf16", "fp32")
REPEATS = 3


def parse_methods(text: str) -> list[str]:
    """The methods of a comma-separated list, each once."""
    names = list(dict.fromkeys(text.split(",")))
    for name in names:
        if name not in METHODS:
            raise unknown("method", name, METHODS)
    return names
