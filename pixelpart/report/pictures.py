"""Arrays as PNG data URIs at their own size; the page enlarges them without smoothing."""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image

from pixelpart.report.reading import Answer, Explained, RunFiles
from pixelpart.report.words import NBSP, fraction

HEAT = "magma"
BUDGET = "cividis"


@dataclass(frozen=True)
class Cell:
    kind: str
    uri: str
    alt: str
    verdict: str = ""
    confidence: str = ""
    right: bool = False


@dataclass(frozen=True)
class Strip:
    """One run's pictures of one image, or the words that say why there are none."""

    place: int
    label: str
    cells: list[Cell]
    missing: str = ""


@dataclass(frozen=True)
class Subject:
    index: int
    label: str
    strips: list[Strip]


def png_uri(pixels: np.ndarray) -> str:
    """(h, w, 3) in [0,1] as a data URI."""
    file = io.BytesIO()
    levels = np.rint(np.clip(pixels, 0, 1) * 255).astype(np.uint8)
    Image.fromarray(levels).save(file, format="PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def coloured(values: np.ndarray, *, table: str) -> np.ndarray:
    """(h, w) in [0,1] as (h, w, 3) in the colours of one of matplotlib's tables."""
    import matplotlib

    return matplotlib.colormaps[table](np.clip(values, 0, 1))[..., :3]


def amplified(picture: np.ndarray, adversarial: np.ndarray, *, eps: float) -> np.ndarray:
    """The change, with -eps drawn as 0, none as 1/2 and +eps as 1."""
    return 0.5 + (adversarial - picture) / (2 * eps)


def budget_range(runs: Sequence[RunFiles]) -> tuple[float, float] | None:
    """The lowest and the highest budget of all pictures, so that one colour means one budget on the whole page."""
    budgets = [run.arrays["budget"] for run in runs if run.arrays]
    return (float(min(b.min() for b in budgets)), float(max(b.max() for b in budgets))) if budgets else None


def budget_shade(budget: np.ndarray, low: float, high: float) -> np.ndarray:
    """(1 or 3, h, w) budgets as (h, w) shades in [0,1], the mean over channels; all equal: 1."""
    mean = budget.mean(0)
    return (mean - low) / (high - low) if high - low > 1e-9 else np.ones_like(mean)


def colour_bar(table: str) -> str:
    return png_uri(coloured(np.linspace(0, 1, 64)[None], table=table))


def subjects(runs: Sequence[RunFiles], *, most: int = 12) -> list[Subject]:
    """For each of at most `most` test images, the strips of all runs."""
    scale = budget_range(runs)
    if scale is None:
        return []
    labels = {
        i.index: run.explained.name(i.label)
        for run in runs
        if run.explained and run.arrays
        for i in run.explained.images
    }
    return [
        Subject(index, label, [_strip(run, place, index, scale) for place, run in enumerate(runs)])
        for index, label in list(labels.items())[:most]
    ]


def _strip(run: RunFiles, place: int, index: int, scale: tuple[float, float]) -> Strip:
    explained = run.explained
    if explained is None or not run.arrays:
        return Strip(place, run.label, [], "no pictures of this run yet")
    where = next((k for k, image in enumerate(explained.images) if image.index == index), None)
    if where is None:
        return Strip(place, run.label, [], "this image is not among those explained for this run")
    image = explained.images[where]
    truth = explained.name(image.label)
    picture, adversarial = (run.arrays[name][where].transpose(1, 2, 0) for name in ("picture", "adversarial"))
    of = f"of test image {index} ({truth}), {run.label}"
    budget = run.arrays["budget"][where]
    levels = " to ".join(dict.fromkeys(fraction(float(v)) for v in (budget.min(), budget.max())))
    change = amplified(picture, adversarial, eps=explained.eps)
    return Strip(place, run.label, [
        _answered("picture", picture, image.natural, explained, truth, f"Picture {of}"),
        Cell("heat map", png_uri(coloured(run.arrays["heat"][where], table=HEAT)), f"Heat map {of}"),
        Cell("budget", png_uri(coloured(budget_shade(budget, *scale), table=BUDGET)), f"Budget {of}: {levels}"),
        _answered("attacked", adversarial, image.adversarial, explained, truth, f"Attacked picture {of}"),
        Cell("change", png_uri(change), f"Change {of}, amplified {0.5 / explained.eps:.0f} times"),
    ])  # fmt: skip


def _answered(kind: str, pixels: np.ndarray, answer: Answer, explained: Explained, truth: str, alt: str) -> Cell:
    said = explained.name(answer.said)
    right = said == truth
    words = f"{alt}; the model says {said}, which is {'right' if right else 'wrong'}"
    return Cell(kind, png_uri(pixels), words, said, f"{100 * answer.confidence:.0f}{NBSP}%", right)
