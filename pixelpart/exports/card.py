"""The model card of an exported run: what it is, how robust it is, how to use it."""

import json

from pixelpart.config import is_user_code, write_fraction, write_size
from pixelpart.evaluation.entries import Entry
from pixelpart.exports.trained import Trained

CARD = """---
library_name: pixelpart
pipeline_tag: image-classification
tags: [adversarial-robustness]
model-index: [{index}]
---

# {name}

An image classifier ({model}, {num_classes} classes, images of {size} pixels), trained on {images} by pixelpart.

{results}

## Use

```python
import pixelpart as pp
import torch

model, _ = pp.Run("{name}").load("{checkpoint}")  # "{name}": this folder
x = torch.rand(1, {shape})  # float images (n, {shape}) in [0, 1]
with torch.no_grad():
    print(model(x).softmax(1))  # the probabilities of the {num_classes} classes
```

`pixelpart evaluate {name} --checkpoint {checkpoint} --attacks natural,autoattack` measures its accuracy.

## Training

| setting | value |
|---|---|
{training}

All settings are in `config.json`, the metrics of every epoch in `metrics.jsonl`. The method, PART: J. Zhang, F. Liu,
D. Zhou, J. Zhang, T. Liu, Improving Accuracy-robustness Trade-off via Pixel Reweighted Adversarial Training, ICML 2024.
"""

LIMITS = """An attack gives an upper bound on robust accuracy. Intervals cover the choice of test images, not the seed
of training."""


def model_card(trained: Trained) -> str:
    """README.md of the folder, with the front matter that model hubs read."""
    config, entries = trained.config, trained.results
    own = config.dataset.startswith("folder:") or is_user_code(config.dataset)  # a path or a name that is nobody else's
    images = "pictures of its own" if own else config.dataset
    accuracies = [{"type": "accuracy", "name": _attack(e), "value": round(100 * e["accuracy"], 2)} for e in entries]
    result = {
        "task": {"type": "image-classification"},
        "dataset": {"name": images, "type": images},
        "metrics": accuracies,
    }
    return CARD.format(
        index=json.dumps({"name": trained.name, "results": [result] if accuracies else []}),
        name=trained.name,
        model=config.model,
        num_classes=trained.num_classes,
        size=write_size(trained.shape[1:]),
        images=images,
        results=_results(entries),
        checkpoint=trained.checkpoint,
        shape=", ".join(map(str, trained.shape)),
        training="\n".join(f"| {name} | {value} |" for name, value in _training(trained).items()),
    )


def _results(entries: list[Entry]) -> str:
    if not entries:
        return "Its accuracy has not been measured."
    rows, notes = [], dict[str, None]()
    for entry in entries:
        warnings, (low, high) = entry.get("warnings", ()), entry["interval"]
        accuracy = f"{100 * entry['accuracy']:.2f}{' *' * bool(warnings)}"
        rows.append(f"| {_attack(entry)} | {accuracy} | [{100 * low:.2f}, {100 * high:.2f}] | {entry['n']} |")
        notes |= dict.fromkeys(f"\\* {_attack(entry)}: {warning}  " for warning in warnings)
    head = ["| attack | accuracy, % | 95 % interval | test images |", "|---|---|---|---|"]
    return "\n".join([*head, *rows, "", *notes, LIMITS])


def _training(trained: Trained) -> dict[str, object]:
    config, mask = trained.config, trained.config.mask
    masked = {
        "eps_low": write_fraction(config.eps_low),
        "mask": f"{mask.source}, rule {mask.rule}, control {mask.control}",
    }
    return {
        "recipe": config.recipe,
        "objective": config.objective.name,
        "eps": write_fraction(config.eps),
        **(masked if mask.rule != "none" else {}),
        "epochs": config.epochs,
        "seed": config.seed,
        "checkpoint": f"{trained.checkpoint}, epoch {trained.facts['epoch']}, {trained.facts['weights']} weights",
    }


def _attack(entry: Entry) -> str:
    """The attack with its eps, such as natural or pgd20, 8/255."""
    name = entry["attack"]
    return name if name == "natural" or "@" in name else f"{name}, {write_fraction(entry['eps'])}"
