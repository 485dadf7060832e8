"""Numbers and lists as text."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pixelpart.config import split_data_label, write_size

NBSP = "\u00a0"


def percent(share: float, *, digits: int = 2) -> str:
    return f"{100 * share:.{digits}f}{NBSP}%"


def fraction(value: float | None) -> str:
    """8/255 where the value is equal to it in float32 precision, else four digits."""
    if value is None:
        return "none"
    levels = round(value * 255, 2)
    return f"{levels:g}/255" if levels and abs(levels / 255 - value) < 1e-7 else f"{value:.4g}"


def describe_data(label: str) -> str:
    """A data set as a label of `data_label` names it, in words: folder pics (32 pixels)."""
    name, options = split_data_label(label)
    about = [f"{write_size(options['size'])} pixels"] if options.get("size") else []
    about += ["grey"] if options.get("channels") == 1 else []
    about += [f"on {colour}"] if (colour := options.get("background", "white")) != "white" else []
    about += ["bad files skipped"] if options.get("skip_bad") else []
    name = f"folder {path}" if (path := name.removeprefix("folder:")) != name else name
    return f"{name} ({', '.join(about)})" if about else name


def describe_images(dataset: str, split: str) -> str:
    """The images of a measurement: test images of shapes."""
    return "images passed as tensors" if dataset == "given" else f"{split} images of {describe_data(dataset)}"


def describe_eps(eps: float | None, settings: Mapping[str, Any]) -> str:
    """The bound of an attack: eps 8/255; with a mask, eps 12/255 and 8/255; in another norm, l2 eps 0.5."""
    if "eps_low" in settings:
        return f"eps {fraction(eps)} and {fraction(settings['eps_low'])}"
    return f"{settings['norm']} eps {eps:g}" if "norm" in settings else f"eps {fraction(eps)}"


def duration(seconds: float | None) -> str:
    if seconds is None or not math.isfinite(seconds):
        return "time not recorded"
    if seconds < 100:
        return f"{seconds:.3g}{NBSP}s"
    return f"{seconds / 60:.0f}{NBSP}min" if seconds < 6000 else f"{seconds / 3600:.1f}{NBSP}h"


def count(n: int, noun: str) -> str:
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def enumerate_words(items: Sequence[str]) -> str:
    """a; a and b; a, b and c."""
    return " and ".join([", ".join(items[:-1]), items[-1]]) if len(items) > 1 else "".join(items)


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def short(text: str, most: int = 52) -> str:
    """The text without its middle if it is long: names of arms often differ at the end only."""
    start = most // 2
    return text if len(text) <= most else f"{text[:start]}…{text[start + 1 - most :]}"


def p_value(p: float) -> str:
    return f"p = {p:.2g}" if p >= 0.001 else "p < 0.001"
