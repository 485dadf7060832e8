"""The pictures of explain.json as PNG data URIs at their own size; the page enlarges them without smoothing."""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image
from pydantic import Field
from safetensors import SafetensorError
from safetensors.numpy import load_file

from pixelpart.files import atomic_write
from pixelpart.report.formatting import NBSP, fraction
from pixelpart.report.run import Record, ReportedRun
from pixelpart.runs import EXPLAIN_SCHEMA, Run

COLOUR_MAPS = {"heat": "magma", "budget": "cividis", "signed": "RdBu_r", "share": "viridis"}
STATE = ("heat", "budget", "adversarial")  # arrays of explain.safetensors for each checkpoint
MAX_IMAGES = 12


class PredictionRecord(Record):
    label: int = Field(alias="class")
    confidence: float


class ImageRecord(Record):
    index: int
    label: int
    natural: PredictionRecord
    adversarial: PredictionRecord


class ObjectRecord(Record):
    n: int | None = None
    dead: int = 0
    object_area: float
    high_budget_on_object: float | None = None
    heat_on_object: float | None = None


class ExplainRecord(Record):
    """explain.json."""

    checkpoint: str
    epoch: int | None = None
    weights: str = ""
    epochs: tuple[int, ...] = ()  # absent in older files, as are `dataset` and the probabilities of all classes
    dataset: str = ""
    eps: float = Field(gt=0)
    steps: int
    classes: tuple[str, ...]
    images: tuple[ImageRecord, ...]
    object: ObjectRecord | None = None


NO_PICTURES = "no pictures yet: pixelpart explain RUN"


@dataclass(frozen=True)
class Explanation:
    """explain.json with the arrays of explain.safetensors, one row per image."""

    record: ExplainRecord
    arrays: dict[str, np.ndarray]

    @property
    def states(self) -> list[tuple[str, int | None]]:
        """Prefix of the arrays and epoch of each checkpoint: first the one explained, then those of kept epochs."""
        return [("", self.record.epoch), *((f"epoch-{epoch}.", epoch) for epoch in self.record.epochs)]

    def probabilities(self, prefix: str) -> np.ndarray:
        """(n, 2, classes) before and after the attack; NaN where an older file does not have them."""
        if f"{prefix}probabilities" in self.arrays:
            return self.arrays[f"{prefix}probabilities"]
        found = np.full((len(self.record.images), 2, len(self.record.classes)), np.nan)
        for row, image in enumerate(self.record.images):
            for when, prediction in enumerate((image.natural, image.adversarial)):
                found[row, when, prediction.label] = prediction.confidence
        return found


@dataclass(frozen=True)
class Cell:
    kind: str
    uri: str
    alt: str
    prediction: str = ""
    confidence: str = ""
    right: bool = False


@dataclass(frozen=True)
class Strip:
    """One run's pictures of one image, or why there are none."""

    place: int
    cells: list[Cell]
    missing: str = ""


@dataclass(frozen=True)
class ShownImage:
    index: int
    label: str
    strips: list[Strip]


def read_explanation(run: ReportedRun) -> Explanation | None:
    """What `pixelpart explain` wrote, or None with a note."""
    record = run.read_record("explain.json", EXPLAIN_SCHEMA, ExplainRecord)
    if record is None:
        run.notes.append(NO_PICTURES)
        return None
    try:
        arrays = load_file(run.path / "explain.safetensors")
        prefixes = ["", *(f"epoch-{epoch}." for epoch in record.epochs)]
        names = ["picture", *(f"{prefix}{name}" for prefix in prefixes for name in STATE), *arrays]
        if any(name not in arrays or len(arrays[name]) != len(record.images) for name in names):
            raise ValueError("the arrays do not match explain.json")
        labels = [label for i in record.images for label in (i.label, i.natural.label, i.adversarial.label)]
        if any(not 0 <= label < len(record.classes) for label in labels):
            raise ValueError("a label has no class name")
    except (SafetensorError, OSError, ValueError) as error:
        run.notes.append(f"no pictures: {error}; run `pixelpart explain RUN` again")
        return None
    return Explanation(record, arrays)


def budget_range(explanations: Sequence[Explanation | None]) -> tuple[float, float] | None:
    """The lowest and the highest budget of all pictures: a colour means the same budget everywhere on the page."""
    budgets = [e.arrays["budget"] for e in explanations if e]
    return (float(min(b.min() for b in budgets)), float(max(b.max() for b in budgets))) if budgets else None


def shown_images(runs: Sequence[ReportedRun], explanations: Sequence[Explanation | None]) -> list[ShownImage]:
    """At most MAX_IMAGES test images, each with a strip for every run."""
    scale = budget_range(explanations)
    if scale is None:
        return []
    labels = {i.index: e.record.classes[i.label] for e in explanations if e for i in e.record.images}
    pairs = list(zip(runs, explanations, strict=True))
    return [
        ShownImage(index, label, [_strip(place, run, e, index, scale) for place, (run, e) in enumerate(pairs)])
        for index, label in list(labels.items())[:MAX_IMAGES]
    ]


def _strip(
    place: int, run: ReportedRun, explanation: Explanation | None, index: int, scale: tuple[float, float]
) -> Strip:
    if explanation is None:
        return Strip(place, [], "no pictures of this run yet")
    record, arrays = explanation.record, explanation.arrays
    at = next((k for k, image in enumerate(record.images) if image.index == index), None)
    if at is None:
        return Strip(place, [], "this run has no pictures of this image")
    image = record.images[at]
    picture, adversarial = (arrays[name][at].transpose(1, 2, 0) for name in ("picture", "adversarial"))
    of = f"of test image {index} ({record.classes[image.label]}), {run.label}"
    budget = arrays["budget"][at]
    shade = budget_shade(budget, *scale)
    levels = " to ".join(dict.fromkeys(fraction(float(v)) for v in (budget.min(), budget.max())))
    change = signed_change(picture, adversarial, eps=record.eps)
    return Strip(place, [
        _predicted("picture", picture, image, image.natural, record, f"Picture {of}"),
        Cell("heat map", png_uri(coloured(arrays["heat"][at], table=COLOUR_MAPS["heat"])), f"Heat map {of}"),
        Cell("budget", png_uri(coloured(shade, table=COLOUR_MAPS["budget"])), f"Budget {of}: {levels}"),
        _predicted("attacked", adversarial, image, image.adversarial, record, f"Attacked picture {of}"),
        Cell("change", png_uri(coloured(change, table=COLOUR_MAPS["signed"])), f"Change {of}: darker or brighter"),
    ])  # fmt: skip


def _predicted(
    kind: str, pixels: np.ndarray, image: ImageRecord, prediction: PredictionRecord, record: ExplainRecord, alt: str
) -> Cell:
    name, right = record.classes[prediction.label], prediction.label == image.label
    alt = f"{alt}; predicted as {name}, which is {'right' if right else 'wrong'}"
    return Cell(kind, png_uri(pixels), alt, name, f"{100 * prediction.confidence:.0f}{NBSP}%", right)


def write_picture(run: Run, *, rows: int = 4) -> Path:
    """Draws explain.png from explain.json: a row per image with picture, heat map, budget, attacked picture, change."""
    import matplotlib
    from matplotlib.figure import Figure

    reported = ReportedRun(run, label=run.dir.name)
    explanation = read_explanation(reported)
    assert explanation is not None, reported.notes
    record, arrays = explanation.record, explanation.arrays
    scale = budget_range([explanation])
    assert scale is not None
    rows = min(rows, len(record.images))
    height, width = arrays["picture"].shape[2:]
    with matplotlib.rc_context():  # the user's matplotlibrc must not change the picture
        matplotlib.rcdefaults()
        figure = Figure(figsize=(8.2, rows * (1.5 * height / width + 0.35) + 0.5), dpi=120, layout="constrained")
        figure.suptitle(f"{reported.label}, {record.checkpoint} checkpoint, epoch {record.epoch}", fontsize=10)
        for row, axes in enumerate(figure.subplots(rows, 5, squeeze=False)):
            image, budget = record.images[row], arrays["budget"][row]
            picture, adversarial = (arrays[name][row].transpose(1, 2, 0) for name in ("picture", "adversarial"))
            levels = "–".join(dict.fromkeys(fraction(float(value)) for value in (budget.min(), budget.max())))
            change = signed_change(picture, adversarial, eps=record.eps)
            cells = {
                f"{record.classes[image.label]}: {_verdict(image, image.natural, record)}": picture,
                "heat map": coloured(arrays["heat"][row], table=COLOUR_MAPS["heat"]),
                f"budget {levels}": coloured(budget_shade(budget, *scale), table=COLOUR_MAPS["budget"]),
                f"attacked: {_verdict(image, image.adversarial, record)}": adversarial,
                "change: darker, brighter": coloured(change, table=COLOUR_MAPS["signed"]),
            }
            for one, (text, pixels) in zip(axes, cells.items(), strict=True):
                one.imshow(to_levels(pixels if pixels.shape[2] == 3 else pixels.repeat(3, 2)), interpolation="nearest")
                one.set_title(text.replace("$", r"\$"), fontsize=7)
                one.set_axis_off()
        file = io.BytesIO()
        figure.savefig(file, format="png")
    atomic_write(run.dir / "explain.png", file.getvalue())
    return run.dir / "explain.png"


def _verdict(image: ImageRecord, prediction: PredictionRecord, record: ExplainRecord) -> str:
    mark = "✓" if prediction.label == image.label else "✗"
    return f"{mark} {record.classes[prediction.label]} {100 * prediction.confidence:.0f} %"


# -- pixels


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


def colour_bar(table: str) -> str:
    return png_uri(coloured(np.linspace(0, 1, 64)[None], table=table))
