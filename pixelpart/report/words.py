"""Numbers as a reader would write them."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

NBSP = "\u00a0"


def percent(share: float) -> str:
    return f"{100 * share:.1f}{NBSP}%"


def fraction(value: float | None) -> str:
    """8/255 where the value is that to float32's precision, else four digits."""
    if value is None:
        return "none"
    levels = round(value * 255, 2)
    return f"{levels:g}/255" if levels and abs(levels / 255 - value) < 1e-7 else f"{value:.4g}"


def bound(eps: float | None, settings: Mapping[str, Any]) -> str:
    """What an attack may change at most: eps 8/255, by a mask eps 12/255 and 8/255, or in another norm l2 eps 0.5."""
    if "eps_low" in settings:
        return f"eps {fraction(eps)} and {fraction(settings['eps_low'])}"
    return f"{settings['norm']} eps {eps:g}" if "norm" in settings else f"eps {fraction(eps)}"


def seconds(value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return "time not recorded"
    if value < 100:
        return f"{value:.3g}{NBSP}s"
    return f"{value / 60:.0f}{NBSP}min" if value < 6000 else f"{value / 3600:.1f}{NBSP}h"


def count(value: int, thing: str) -> str:
    small = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
    number = small[value] if value < len(small) else f"{value:,}"
    return f"{number} {thing}{'' if value == 1 else 's'}"


def listed(items: Sequence[str]) -> str:
    """a; a and b; a, b and c."""
    return " and ".join([", ".join(items[:-1]), items[-1]]) if len(items) > 1 else "".join(items)


def sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
