"""The pictures of an explanation: picture, heat map, budget, attacked picture and change of each image.

On the page they are PNG data URIs at their own size, which the page enlarges without smoothing.
"""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from pixelpart.files import atomic_write
from pixelpart.report.explanation import (
    ExplainRecord,
    Explanation,
    ImageRecord,
    PredictionRecord,
    budget_range,
)
from pixelpart.report.formatting import NBSP, fraction
from pixelpart.report.run import ReportedRun
from pixelpart.runs import Run

COLOUR_MAPS = {"heat": "magma", "budget": "cividis", "signed": "RdBu_r", "share": "viridis"}
MAX_IMAGES = 12


@dataclass(frozen=True)
class Picture:
    uri: str
    alt: str
    prediction: str = ""
    confidence: str = ""
    right: bool = False


@dataclass(frozen=True)
class Strip:
    """One run's pictures of one image by their kind, or why there are none."""

    run: ReportedRun
    cells: dict[str, Picture]
    missing: str = ""


@dataclass(frozen=True)
class ShownImage:
    index: int
    label: str
    file: str
    strips: list[Strip]


def shown_images(runs: Sequence[ReportedRun]) -> list[ShownImage]:
    """At most MAX_IMAGES test images, each with a strip for every run."""
    scale = budget_range(runs)
    if scale is None:
        return []
    records = [run.explanation.record for run in runs if run.explanation]
    shown = {image.index: (record.classes[image.label], image.file) for record in records for image in record.images}
    return [
        ShownImage(index, *named, [_strip(run, index, scale) for run in runs])
        for index, named in list(shown.items())[:MAX_IMAGES]
    ]


def _strip(run: ReportedRun, index: int, scale: tuple[float, float]) -> Strip:
    if (explanation := run.explanation) is None:
        return Strip(run, {}, "no pictures of this run yet")
    record = explanation.record
    row = next((k for k, image in enumerate(record.images) if image.index == index), None)
    if row is None:
        return Strip(run, {}, "this run has no pictures of this image")
    image, pictures = record.images[row], pictures_of(explanation, row, scale)
    of = f"of test image {index} ({record.classes[image.label]}), {run.label}"
    alts = {
        "picture": f"Picture {of}",
        "heat map": f"Heat map {of}",
        "budget": f"Budget {of}: {' to '.join(budget_levels(explanation, row))}",
        "attacked": f"Attacked picture {of}",
        "change": f"Change {of}: darker or brighter",
    }
    cells = {kind: Picture(png_uri(pictures[kind]), alt) for kind, alt in alts.items()}
    for kind, prediction in (("picture", image.natural), ("attacked", image.adversarial)):
        cells[kind] = _predicted(cells[kind], image, prediction, record)
    return Strip(run, cells)


def _predicted(cell: Picture, image: ImageRecord, prediction: PredictionRecord, record: ExplainRecord) -> Picture:
    name, right = record.classes[prediction.label], prediction.label == image.label
    alt = f"{cell.alt}; predicted as {name}, which is {'right' if right else 'wrong'}"
    return Picture(cell.uri, alt, name, f"{100 * prediction.confidence:.0f}{NBSP}%", right)


def write_picture(run: Run, *, rows: int = 4) -> Path:
    """Draws explain.png from explain.json: a row per image with picture, heat map, budget, attacked picture, change."""
    import matplotlib
    from matplotlib.figure import Figure

    reported = ReportedRun(run, label=run.dir.name)
    explanation, scale = reported.explanation, budget_range([reported])
    assert explanation is not None, reported.notes
    assert scale is not None
    record = explanation.record
    rows = min(rows, len(record.images))
    height, width = explanation.arrays["picture"].shape[2:]
    with matplotlib.rc_context():  # the user's matplotlibrc must not change the picture
        matplotlib.rcdefaults()
        figure = Figure(figsize=(8.2, rows * (1.5 * height / width + 0.35) + 0.5), dpi=120, layout="constrained")
        figure.suptitle(f"{reported.label}, {record.checkpoint} checkpoint, epoch {record.epoch}", fontsize=10)
        for row, axes in enumerate(figure.subplots(rows, 5, squeeze=False)):
            image, pictures = record.images[row], pictures_of(explanation, row, scale)
            titles = (
                f"{record.classes[image.label]}: {_verdict(image, image.natural, record)}",
                "heat map",
                f"budget {'–'.join(budget_levels(explanation, row))}",
                f"attacked: {_verdict(image, image.adversarial, record)}",
                "change: darker, brighter",
            )
            for one, title, pixels in zip(axes, titles, pictures.values(), strict=True):
                one.imshow(to_levels(pixels if pixels.shape[2] == 3 else pixels.repeat(3, 2)), interpolation="nearest")
                one.set_title(title.replace("$", r"\$"), fontsize=7)
                one.set_axis_off()
        file = io.BytesIO()
        figure.savefig(file, format="png")
    atomic_write(run.dir / "explain.png", file.getvalue())
    return run.dir / "explain.png"


def _verdict(image: ImageRecord, prediction: PredictionRecord, record: ExplainRecord) -> str:
    mark = "✓" if prediction.label == image.label else "✗"
    return f"{mark} {record.classes[prediction.label]} {100 * prediction.confidence:.0f} %"


# -- pixels


def pictures_of(explanation: Explanation, row: int, scale: tuple[float, float]) -> dict[str, np.ndarray]:
    """The five pictures of an image by their kind, each (h, w, 3), or (h, w, 1) for grey, in [0,1]."""
    arrays = explanation.arrays
    picture, attacked = (arrays[name][row].transpose(1, 2, 0) for name in ("picture", "adversarial"))
    return {
        "picture": picture,
        "heat map": coloured(arrays["heat"][row], table=COLOUR_MAPS["heat"]),
        "budget": coloured(budget_shade(arrays["budget"][row], *scale), table=COLOUR_MAPS["budget"]),
        "attacked": attacked,
        "change": coloured(signed_change(picture, attacked, eps=explanation.record.eps), table=COLOUR_MAPS["signed"]),
    }


def budget_levels(explanation: Explanation, row: int) -> list[str]:
    """The lowest and the highest budget of an image; one if they are equal."""
    budget = explanation.arrays["budget"][row]
    return list(dict.fromkeys(fraction(float(value)) for value in (budget.min(), budget.max())))


def png_uri(pixels: np.ndarray) -> str:
    """(h, w, 3), or (h, w, 1) for grey, in [0,1] as a data URI."""
    file = io.BytesIO()
    levels = to_levels(pixels)
    levels = levels[..., 0] if levels.shape[-1] == 1 else levels
    Image.fromarray(levels).save(file, format="PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def to_levels(values: np.ndarray) -> np.ndarray:
    """[0,1] as bytes."""
    return np.rint(np.clip(values, 0, 1) * 255).astype(np.uint8)


def coloured(values: np.ndarray, *, table: str) -> np.ndarray:
    """(h, w) in [0,1] as (h, w, 3) in a colour map of matplotlib."""
    import matplotlib

    return matplotlib.colormaps[table](np.clip(values, 0, 1))[..., :3]


def signed_change(picture: np.ndarray, adversarial: np.ndarray, *, eps: float) -> np.ndarray:
    """(h, w, c) as (h, w), the change averaged over channels: -eps is 0, no change is 1/2, +eps is 1."""
    return 0.5 + (adversarial - picture).mean(-1) / (2 * eps)


def budget_shade(budget: np.ndarray, low: float, high: float) -> np.ndarray:
    """(1 or 3, h, w) budgets as (h, w) in [0,1], averaged over channels; 1 if low equals high."""
    mean = budget.mean(0)
    return (mean - low) / (high - low) if high - low > 1e-9 else np.ones_like(mean)
