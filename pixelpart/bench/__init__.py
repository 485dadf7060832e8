"""How fast this is beside the usual way of doing the same, measured in one run. No torch in here: `--help` is quick."""

from pixelpart.errors import unknown

KINDS = ("attack", "cam", "scale", "train")
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
