"""Figures of the page: as SVG in the colours of the page, so that dark mode and print work."""

import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import matplotlib
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pixelpart.experiments.common import plots
from pixelpart.report.arms import ArmResults, Column, ReportedArm
from pixelpart.report.formatting import enumerate_words
from pixelpart.report.run import Marked

MAX_LINES = 12  # arms in one plot of lines or classes
WIDTH = 3.9  # inches


@dataclass(frozen=True)
class Plot:
    name: str
    title: str
    about: str
    svg: Markup
    alt: str


@contextmanager
def drawing() -> Iterator[None]:
    """The style of the page's figures; a $ in a name is no formula."""
    with plots.style():
        matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "pixelpart", "text.parse_math": False})
        yield


def new_axes(width: float, height: float) -> tuple[Figure, Axes]:
    figure, (axes,) = plots.panels(1, width=width, height=height)
    return figure, axes


def colour_of(marked: Marked) -> str:
    return plots.COLOURS[marked.colour]


def is_comparison(measured: ArmResults, arms: Sequence[ReportedArm]) -> bool:
    """Whether these arms are enough for a plot, one only if there is no other, and not too many for it."""
    return min(2, len(measured.arms)) <= len(arms) <= MAX_LINES


def bars_caption(measured: ArmResults, arms: Sequence[ReportedArm], *columns: Column) -> str:
    """What the bars of a plot are, and the number of seeds and images."""
    cells = [measured.cell(arm, column) for arm in arms for column in columns]
    seeds = sorted({len(cell.values) for cell in cells if cell})
    over = "over images" if seeds == [1] else "over seeds and images" + " (one seed: over images)" * (seeds[0] == 1)
    number = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    images = enumerate_words([f"{n:,}" for n in dict.fromkeys(column.n for column in columns)])
    return f"Bars: 95 % intervals, {over}; {number} seed{'s' * (number != '1')} an arm; n = {images} images."


def svg_of(figure: Figure, *, prefix: str) -> Markup:
    """The figure for use inside HTML: without prolog, metadata and styles, with ids unique on the page."""
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
