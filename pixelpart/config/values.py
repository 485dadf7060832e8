"""Values as they are written in files and on the command line: 8/255, 64x96, #808080, folder:photos@64."""

import math
import re
import reprlib
from fractions import Fraction
from typing import Any

Size = int | tuple[int, int]  # of square images, or height and width


def parse_fraction(value: Any) -> float:
    """8/255, 7.5/255 or 0.03 as a float; ValueError for anything else."""
    if not isinstance(value, str):
        return value
    try:
        numerator, slash, denominator = value.partition("/")
        number = float(numerator) / float(denominator if slash else 1)
    except (ValueError, ZeroDivisionError):
        raise ValueError(f"{value!r} is not a number or a fraction such as 8/255") from None
    if not math.isfinite(number):
        raise ValueError(f"{value!r} is not a finite number")
    return number


def parse_eps(value: Any) -> float:
    """A number or a fraction from 0 to 1; ValueError for anything else."""
    number = parse_fraction(value)
    if isinstance(number, int | float) and not 0 <= number <= 1:
        raise ValueError(f"{reprlib.repr(value)} is out of range: choose a number from 0 to 1{levels_hint(number)}")
    return number


def levels_hint(number: float) -> str:
    """What was probably meant by an eps above 1."""
    return f"; {number:g} of 255 levels is {number:g}/255" if 1 < number <= 255 else ""


def write_fraction(value: float) -> float | str:
    """k/255 with a short k if that is exactly the float, else the float."""
    levels = Fraction(value * 255).limit_denominator(10)
    text = f"{float(levels):g}/255"
    return text if value and parse_fraction(text) == value else value


def parse_size(value: Any) -> Size:
    """64, "64" or "64x96", which is height x width; ValueError for anything else."""
    text = "x".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    match = re.fullmatch(r"(\d+)(?:x(\d+))?", text.replace(" ", ""))
    if match is None:
        raise ValueError(f"{value!r} is not a number of pixels, such as 64, or height x width, such as 64x96")
    height, width = int(match[1]), int(match[2] or match[1])
    return height if height == width else (height, width)


def write_size(size: Size) -> int | str:
    return size if isinstance(size, int) else "{}x{}".format(*size)


def height_width(size: Size) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else size


def check_colour(name: Any) -> str:
    """The name in lower case; ValueError unless it is a colour that Pillow knows, or #rrggbb."""
    name = str(name).strip().lower()
    if name != "white":
        from PIL import ImageColor

        if not re.fullmatch("#[0-9a-f]{6}", name) and name not in ImageColor.colormap:
            raise ValueError(f"{name!r} is not a colour such as black or #808080")
    return name


# -- names of data sets and models

DATA_LABEL = re.compile(
    r"(?P<name>folder:.+?|tinyimagenet)(?:@(?P<size>\d{1,5}(?:x\d{1,5})?))?(?P<grey>\+grey)?"
    r"(?:\+on-(?P<background>#[0-9a-f]{6}|[a-z]+))?(?P<skip_bad>\+skip-bad)?"
)


def is_user_code(name: str) -> bool:
    """Whether a model or data set is named module:function."""
    return ":" in name and not name.startswith("folder:")


def data_label(
    name: str, *, size: Size = 0, skip_bad: bool = False, background: str = "white", channels: int = 0
) -> str:
    """A data set and its options as one string, such as folder:P@64+skip-bad: what hashes and eval.json record."""
    if name.startswith("folder:"):
        name += f"@{write_size(size)}" if size else ""
        name += "+grey" if channels == 1 else ""
        name += f"+on-{background}" if background != "white" else ""
    return f"{name}+skip-bad" if skip_bad else name


def split_data_label(label: str) -> tuple[str, dict[str, Any]]:
    """Name and options of a label that `data_label` made; a plain name is returned as it is."""
    match = DATA_LABEL.fullmatch(label)
    if match is None or (match["size"] and match["name"] == "tinyimagenet"):
        return label, {}
    options = {"size": parse_size(match["size"] or 0), "skip_bad": match["skip_bad"] is not None}
    if not match["name"].startswith("folder:"):
        return match["name"], options
    return match["name"], options | {
        "background": match["background"] or "white",
        "channels": 1 if match["grey"] else 3,
    }
