"""explain.json and explain.safetensors of a run."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from pydantic import Field
from safetensors import SafetensorError
from safetensors.numpy import load_file

from pixelpart.report.run import JsonRecord, ReportedRun
from pixelpart.runs import EXPLAIN_SCHEMA

STATE = ("heat", "budget", "adversarial")  # arrays of explain.safetensors for each checkpoint
NO_PICTURES = "no pictures yet"


class PredictionRecord(JsonRecord):
    label: int = Field(alias="class")
    confidence: float


class ImageRecord(JsonRecord):
    index: int
    label: int
    file: str = ""  # relative to the folder of the pictures
    natural: PredictionRecord
    adversarial: PredictionRecord


class ObjectRecord(JsonRecord):
    n: int | None = None
    dead: int = 0
    object_area: float
    high_budget_on_object: float | None = None
    heat_on_object: float | None = None


class ExplainRecord(JsonRecord):
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
        probabilities = np.full((len(self.record.images), 2, len(self.record.classes)), np.nan)
        for row, image in enumerate(self.record.images):
            for when, prediction in enumerate((image.natural, image.adversarial)):
                probabilities[row, when, prediction.label] = prediction.confidence
        return probabilities

    def check(self) -> None:
        """ValueError if the two files do not match."""
        record, arrays = self.record, self.arrays
        names = ["picture", *(f"{prefix}{name}" for prefix, _ in self.states for name in STATE), *arrays]
        if any(name not in arrays or len(arrays[name]) != len(record.images) for name in names):
            raise ValueError("the arrays do not match explain.json")
        labels = [label for i in record.images for label in (i.label, i.natural.label, i.adversarial.label)]
        if any(not 0 <= label < len(record.classes) for label in labels):
            raise ValueError("a label has no class name")


def read_explanation(run: ReportedRun) -> Explanation | None:
    """See `ReportedRun.explanation`."""
    record = run.read_record("explain.json", EXPLAIN_SCHEMA, ExplainRecord)
    if record is None:
        run.notes.append(f"{NO_PICTURES}: run `{run.run.command('explain')}`")
        return None
    try:
        if (path := run.path / "explain.safetensors").exists() and not path.is_file():
            raise OSError(f"{path.name} is not a regular file")
        explanation = Explanation(record, load_file(path))
        explanation.check()
    except (SafetensorError, OSError, ValueError) as error:
        run.notes.append(f"no pictures: {error}; run `{run.run.command('explain')}` again")
        return None
    return explanation


def budget_range(runs: Sequence[ReportedRun]) -> tuple[float, float] | None:
    """The lowest and the highest budget of all pictures: a colour means the same budget everywhere on the page."""
    budgets = [run.explanation.arrays["budget"] for run in runs if run.explanation]
    return (float(min(b.min() for b in budgets)), float(max(b.max() for b in budgets))) if budgets else None
