"""The model card of an exported run: what it is, how robust it is, how to use it."""

import contextlib
import json
import shlex

from pixelpart.config import Config, code_flags, is_user_code, write_fraction, write_size
from pixelpart.errors import UserError
from pixelpart.evaluation.attack_spec import parse_attack
from pixelpart.evaluation.results import Entry
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

With pixelpart installed, in the folder that contains `{folder}`{code_note}:

```python
import pixelpart as pp
import torch

{use_code}run = pp.Run({folder_name})
model, _ = run.load("{checkpoint}")
x = torch.rand(1, {shape})  # float images (n, {shape}) in [0, 1]
{picture}with torch.no_grad():
    print(model(x).softmax(1))  # the probabilities of the {num_classes} classes
```

{classes}`{evaluate}` measures its accuracy.

## Training

| setting | value |
|---|---|
{training}

All settings are in `config.json`, the metrics of every epoch in `metrics.jsonl`.
"""

METHOD = """
The method is PART: J. Zhang, F. Liu, D. Zhou, J. Zhang, T. Liu, Improving Accuracy-robustness Trade-off via Pixel
Reweighted Adversarial Training, ICML 2024.
"""

LIMITS = """An attack gives an upper bound on robust accuracy. Intervals cover the choice of test images, not the seed
of training."""


def model_card(trained: Trained, folder: str) -> str:
    """README.md of the folder of this name, with the front matter that model hubs read."""
    config, entries = trained.config, trained.results
    images = "a private data set" if _private(config) else config.dataset
    accuracies = [{"type": "accuracy", "name": _attack(e), "value": round(100 * e["accuracy"], 2)} for e in entries]
    result = {
        "task": {"type": "image-classification"},
        "dataset": {"name": images, "type": images},
        "metrics": accuracies,
    }
    checkpoint = f"{trained.checkpoint}, epoch {trained.facts['epoch']}, {trained.facts['weights']} weights"
    codes = [f"`{name}`" for name in (config.model, config.dataset) if is_user_code(name)]
    reads = "# a picture: x = pp.data.read_picture(PATH, run.config)[None] / 255\n"
    card = CARD.format(
        index=json.dumps({"name": trained.name, "results": [result] if accuracies else []}),
        name=trained.name,
        folder=folder,
        model=config.model,
        num_classes=trained.num_classes,
        size=write_size(trained.shape[1:]),
        images=images,
        results=_results(entries),
        folder_name=json.dumps(folder),
        code_note=f" and with the code of {' and '.join(codes)}, which is not part of it" if codes else "",
        use_code=f'pp.models.use("{config.model}")\n' if is_user_code(config.model) else "",
        picture=reads if config.dataset.startswith("folder:") else "",
        checkpoint=trained.checkpoint,
        shape=", ".join(map(str, trained.shape)),
        classes=f"The classes, in this order: {', '.join(f'`{name}`' for name in trained.classes)}.\n\n"
        if trained.classes
        else "",
        evaluate=_evaluate(trained, folder),
        training="\n".join(
            f"| {name} | {value} |" for name, value in (trained.settings() | {"checkpoint": checkpoint}).items()
        ),
    )
    return card + (METHOD if config.mask.rule != "none" else "")


def _private(config: Config) -> bool:
    """Whether the data set is a path or a name that means nothing to others."""
    return config.dataset.startswith("folder:") or is_user_code(config.dataset)


def _evaluate(trained: Trained, folder: str) -> str:
    """The command, with the flags for user code and for pictures that others do not have."""
    config = trained.config
    pictures = ["--data", "folder:PICTURES"] * config.dataset.startswith("folder:")
    attacks = ["--checkpoint", trained.checkpoint, "--attacks", "natural,autoattack"]
    return shlex.join(["pixelpart", "evaluate", folder, *attacks, *code_flags(config), *pictures])


def _results(entries: list[Entry]) -> str:
    if not entries:
        return "No results on its test images are kept with it."
    rows, notes = [], dict[str, None]()
    for entry in entries:
        warnings, (low, high) = entry.get("warnings", ()), entry["interval"]
        accuracy = f"{100 * entry['accuracy']:.2f}{' *' * bool(warnings)}"
        rows.append(f"| {_attack(entry)} | {accuracy} | [{100 * low:.2f}, {100 * high:.2f}] | {entry['n']} |")
        notes |= dict.fromkeys(f"\\* {_attack(entry)}: {warning}  " for warning in warnings)
    head = ["| attack | accuracy, % | 95 % interval | test images |", "|---|---|---|---|"]
    return "\n".join([*head, *rows, "", *notes, *[""] * bool(notes), LIMITS])


def _attack(entry: Entry) -> str:
    """The attack with its bound, such as natural or pgd20, eps 8/255."""
    name = entry["attack"]
    if name == "natural" or "@" in name:
        return name
    with contextlib.suppress(UserError):
        return f"{name}, {parse_attack(name, eps=entry['eps']).bound}"
    return f"{name}, eps {write_fraction(entry['eps'])}"  # an attack that is no longer in the tables
