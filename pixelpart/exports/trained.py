"""What is exported: a model, and what is known of it."""

from dataclasses import dataclass
from typing import Any

from pixelpart import data
from pixelpart.config import Config
from pixelpart.evaluation.entries import Entry, on_most_images, read_entries, without_replaced
from pixelpart.models import Classifier
from pixelpart.runs import Facts, Run


@dataclass(frozen=True)
class Trained:
    """The model of a checkpoint in eval mode, the checkpoint's facts, and the kept results on its test images."""

    run: Run
    checkpoint: str
    model: Classifier
    facts: Facts
    results: list[Entry]

    @classmethod
    def of(cls, run: Run, checkpoint: str) -> "Trained":
        model, facts = run.load(checkpoint)
        own = {"subject": None, "checkpoint": checkpoint, "dataset": run.config.data_label, "split": "test"}
        entries = without_replaced(run.dir, read_entries(run.dir))
        results = on_most_images(entry for entry in entries if own.items() <= entry.items())
        return cls(run, checkpoint, model, facts, results)

    @property
    def config(self) -> Config:
        return self.run.config

    @property
    def name(self) -> str:
        return self.run.dir.resolve().name

    @property
    def epochs_done(self) -> int:
        """The last epoch of the run, finished or not."""
        rows = self.run.folder.read_metrics([])
        return max(self.facts["epoch"], rows[-1]["epoch"] if rows else 0)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of the images."""
        return data.shape_of(self.config)

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes, in the order of the logits; () if they have no names."""
        known = data.SETS.get(self.config.dataset)
        return known.classes if known else self.config.classes

    @property
    def num_classes(self) -> int:
        known = data.SETS.get(self.config.dataset)
        return known.num_classes if known else self.config.num_classes

    def describe(self) -> dict[str, Any]:
        """What a pt2 or onnx file keeps beside the network, as JSON."""
        numbers = ("attack", "eps", "accuracy", "interval", "n", "warnings")
        return {
            "input": f"float32 (n, {', '.join(map(str, self.shape))}) in [0, 1]; normalisation is part of the model",
            "output": f"logits (n, {self.num_classes})",
            "classes": list(self.classes),
            "recipe": self.config.recipe,
            "config": self.config.hash(),
            "checkpoint": self.checkpoint,
            "epoch": self.facts.get("epoch"),
            "weights": self.facts["weights"],
            "results": [{name: entry[name] for name in numbers} for entry in self.results],
        }
