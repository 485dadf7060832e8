"""matplotlib figures as SVG in the colours of the page, so that dark mode and print work."""

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from markupsafe import Markup

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MARKERS = (("o", "●"), ("s", "■"), ("^", "▲"), ("D", "◆"), ("v", "▼"), ("P", "✚"), ("X", "✖"), ("*", "★"))
COLOURS = 8  # --run-0 to --run-7 in report.css


def marker(place: int) -> tuple[str, str]:
    """The marker of a run or arm, for matplotlib and as a character; those of one colour have different ones."""
    return MARKERS[(place + place // COLOURS) % len(MARKERS)]


@contextmanager
def drawing() -> Iterator[None]:
    """The style of the page's figures; a $ in a name is no formula."""
    import matplotlib

    from pixelpart.experiments.common import plots

    with plots.style():
        matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "pixelpart", "text.parse_math": False})
        yield


def svg_of(figure: "Figure", *, prefix: str) -> Markup:
    """The figure for use inside HTML: without prolog, metadata and styles, with ids unique on the page."""
    from pixelpart.experiments.common import plots

    file = io.StringIO()
    figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    svg = file.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", svg).replace("xlink:href", "href")
    head, rest = svg.split(">", 1)
    svg = re.sub(r'\s(width|height|version)="[^"]*"', "", head) + ' aria-hidden="true" focusable="false">' + rest
    used = set(re.findall(r"#([A-Za-z][\w.-]*)\)?\"", svg)) | set(re.findall(r"url\(#([\w.-]+)\)", svg))
    svg = re.sub(r'\sid="([^"]*)"', lambda m: f' id="{prefix}-{m[1]}"' if m[1] in used else "", svg)
    svg = re.sub(r'href="#', f'href="#{prefix}-', svg)
    svg = re.sub(r"url\(#", f"url(#{prefix}-", svg)
    colours = {plots.INK: "currentColor", plots.FAINT: "var(--quiet)", "#ffffff": "var(--paper)"}
    colours |= {colour: f"var(--run-{place})" for place, colour in enumerate(plots.COLOURS)}
    for colour, name in colours.items():
        svg = svg.replace(colour, name)
    return Markup(re.sub(r"\n\s*", "\n", svg))  # matplotlib has escaped all text
