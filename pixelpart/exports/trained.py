"""What is exported: a model, and what is known of it."""

from dataclasses import dataclass
from typing import Any

from pixelpart import data
from pixelpart.config import Config, write_fraction
from pixelpart.evaluation.results import Entry, current_entries, on_most_images
from pixelpart.models import Classifier
from pixelpart.objectives import OBJECTIVES
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
        entries = current_entries(run.dir)
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
        return data.classes_of(self.config)

    @property
    def num_classes(self) -> int:
        return len(self.classes) or self.config.num_classes

    def settings(self) -> dict[str, Any]:
        """How the run was trained: the settings that a user of the model asks for, and how far it got."""
        config, mask, done, objective = self.config, self.config.mask, self.epochs_done, self.config.objective
        masked = {
            "eps_low": write_fraction(config.eps_low),
            "mask": f"{mask.source}, rule {mask.rule}, control {mask.control}",
        }
        return {
            "recipe": config.recipe,
            "objective": objective.name + (f", beta {objective.beta:g}" if OBJECTIVES[objective.name].weighted else ""),
            "eps": write_fraction(config.eps),
            **(masked if mask.rule != "none" else {}),
            "epochs": config.epochs if done >= config.epochs else f"{done} of {config.epochs}: training is unfinished",
            "seed": config.seed,
        }

    def describe(self) -> dict[str, Any]:
        """What a pt2 or onnx file keeps beside the network, as JSON."""
        config = self.config
        pictures = {
            "resize": "a JPEG by Pillow's draft at twice the size; upright, cropped around the centre to the shape of "
            "the images, then bicubic as in Pillow",
            "background": config.background,
        }
        numbers = ("attack", "eps", "accuracy", "interval", "n", "warnings")
        return {
            "input": f"float32 (n, {', '.join(map(str, self.shape))}) in [0, 1]; normalisation is part of the model",
            "output": f"logits (n, {self.num_classes})",
            "shape": list(self.shape),
            **({"pictures": pictures} if config.dataset.startswith("folder:") else {}),
            "classes": list(self.classes),
            "training": self.settings(),
            "config": config.hash(),
            "checkpoint": self.checkpoint,
            "epoch": self.facts.get("epoch"),
            "weights": self.facts["weights"],
            "results": [{name: entry[name] for name in numbers} for entry in self.results],
        }
