"""What the page's script reads: the explained images of all runs as JSON, with pixels as compressed bytes in base64.

Heat and budget are one byte per pixel, the change of the attack one byte per value, in steps of eps / CHANGE_LEVELS.
Class probabilities are shown for the TOP_CLASSES most probable classes, in units of 1/10,000.
"""

import base64
import hashlib
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup

from pixelpart.evaluation.store import read_flags
from pixelpart.report import pictures
from pixelpart.report.explanation import Explanation, budget_range
from pixelpart.report.formatting import fraction
from pixelpart.report.pictures import coloured, png_uri, to_levels
from pixelpart.report.run import ReportedRun

SCRIPT = "".join((Path(__file__).parent / name).read_text(encoding="utf-8") for name in ("pixels.js", "report.js"))
CHANGE_LEVELS = 16
TOP_CLASSES = 6
ImageKey = tuple[int, bytes]  # number in the test set, pixels
SetKey = tuple[tuple[int, int, int], tuple[str, ...]]  # shape, classes
Pictured = dict[ImageKey, tuple[int, np.ndarray, np.ndarray | None, str]]  # label, pixels, object, file
UNKNOWN = 65535  # a probability that explain.json of an older version does not have


def section(runs: Sequence[ReportedRun]) -> dict[str, Any]:
    """The variables of pixels.html, and of the page around it."""
    data = explorer_data(runs)
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    count = sum(len(images["ids"]) for images in data["sets"]) if data else 0
    return {
        "images": pictures.shown_images(runs),
        "bars": {name: colour_bar(table) for name, table in pictures.COLOUR_MAPS.items()},
        "budget_levels": [fraction(level) for level in data["budget"]] if data else [],
        "three_channels": any(run.explanation.arrays["budget"].shape[1] == 3 for run in runs if run.explanation),
        "explorer": {"images": count, "data": htmlsafe_json_dumps(data)},
        "script": Markup(SCRIPT),
        "script_source": f"'sha256-{digest}'",  # no other script runs
    }


def explorer_data(runs: Sequence[ReportedRun]) -> dict[str, Any] | None:
    """The JSON of the page's script; None if no run is explained.

    Runs on pictures of the same shape and classes share a set; an image that several of them explain is in it once.
    """
    scale = budget_range(runs)
    if scale is None:
        return None
    sets: dict[SetKey, Pictured] = {}
    keys = {run: add_images(sets, run.explanation) for run in runs if run.explanation}
    ids = iter(unique_names([str(index) for images in sets.values() for index, _ in images]))
    run_objects = []
    for run in runs:
        about = {"label": run.label, "colour": run.colour, "mark": run.mark}
        if run.explanation:
            key, images = keys[run]
            about |= run_data(run, run.explanation, scale) | {"set": list(sets).index(key)}
            rows = {image: row for row, image in enumerate(images)}
            about["rows"] = [rows.get(image, -1) for image in sets[key]]
        run_objects.append({"set": None, "states": [], "flags": []} | about)
    return {
        "budget": scale,
        "change_levels": CHANGE_LEVELS,
        "top_classes": TOP_CLASSES,
        "colours": {name: colour_table(table) for name, table in pictures.COLOUR_MAPS.items()},
        "sets": [set_data(*key, images) | {"ids": [next(ids) for _ in images]} for key, images in sets.items()],
        "runs": run_objects,
    }


def add_images(sets: dict[SetKey, Pictured], explanation: Explanation) -> tuple[SetKey, list[ImageKey]]:
    """Adds the images of a run to their set; returns the keys of the set and of the images."""
    record, objects = explanation.record, explanation.arrays.get("object")
    levels = to_levels(explanation.arrays["picture"])
    shape: tuple[int, int, int] = levels.shape[1:]
    images = sets.setdefault((shape, record.classes), {})
    keys = [(image.index, levels[row].tobytes()) for row, image in enumerate(record.images)]
    for row, key in enumerate(keys):
        if key not in images or images[key][2] is None:
            image = record.images[row]
            images[key] = image.label, levels[row], None if objects is None else objects[row], image.file
    return (shape, record.classes), keys


def set_data(shape: tuple[int, int, int], classes: Sequence[str], images: Pictured) -> dict[str, Any]:
    labels, levels, objects, files = zip(*images.values(), strict=True)
    inside = [np.zeros(shape[1:], np.uint8) if part is None else part for part in objects]
    return {
        "shape": shape, "classes": classes, "labels": labels, "files": files,
        "pictures": compress(differences(np.stack(levels))),
        "objects": compress(*inside) if any(part is not None for part in objects) else None,
    }  # fmt: skip


def run_data(run: ReportedRun, explanation: Explanation, scale: tuple[float, float]) -> dict[str, Any]:
    record, labels = explanation.record, [image.label for image in explanation.record.images]
    return {
        "eps": record.eps,
        "attack": f"PGD with {record.steps} steps and eps {fraction(record.eps)}",
        "checkpoint": record.checkpoint,
        "burn_in": run.config.burn_in.epochs,
        "states": [
            {
                "epoch": epoch,
                "top": encode(top_classes(explanation.probabilities(prefix), labels)),
                "pixels": compress(*state_pixels(explanation, prefix, scale)),
            }
            for prefix, epoch in explanation.states
        ],
        "flags": known_flags(run, explanation),
    }


def state_pixels(explanation: Explanation, prefix: str, scale: tuple[float, float]) -> list[np.ndarray]:
    """Heat and budget of a checkpoint as differences of bytes, and the change as bytes."""
    arrays = explanation.arrays
    heat, budget = arrays[f"{prefix}heat"], arrays[f"{prefix}budget"]
    shade = np.stack([pictures.budget_shade(part, *scale) for part in budget])
    change = (arrays[f"{prefix}adversarial"] - arrays["picture"]) / explanation.record.eps
    steps = np.rint(np.clip(change, -1, 1) * CHANGE_LEVELS) + CHANGE_LEVELS
    return [differences(to_levels(heat)), differences(to_levels(shade)), steps.astype(np.uint8)]


def top_classes(probabilities: np.ndarray, labels: Sequence[int]) -> np.ndarray:
    """(n, 2, classes) as uint16 (n, TOP_CLASSES, 3): class, probability before and after; the label is among them."""
    strongest = np.nan_to_num(probabilities, nan=-1).max(1)
    order = np.argsort(-strongest, axis=1, kind="stable")[:, :TOP_CLASSES]
    for row, label in enumerate(labels):
        if label not in order[row]:
            order[row, -1] = label
    both = np.take_along_axis(probabilities, order[:, None], axis=2)
    units = np.where(np.isnan(both), UNKNOWN, np.rint(np.nan_to_num(both) * 10_000))
    shown = np.full((len(labels), TOP_CLASSES, 3), UNKNOWN, dtype="<u2")
    shown[:, : order.shape[1]] = np.stack([order, units[:, 0], units[:, 1]], axis=2)
    return shown


def known_flags(run: ReportedRun, explanation: Explanation) -> list[dict[str, str]]:
    """For each attack that `evaluate` ran on the explained checkpoint: 1 right, 0 wrong, - unknown, for each image."""
    record = explanation.record
    dataset = record.dataset or run.config.data_label
    flags_by_attack: dict[str, tuple[int, str]] = {}
    for m in run.measurements:
        if m.attack == "natural" or (m.checkpoint, m.dataset, m.split) != (record.checkpoint, dataset, "test"):
            continue
        if m.epoch != record.epoch or m.entry.get("subject") or (flags := read_flags(run.path, m.entry)) is None:
            continue
        name = m.column if m.own_eps or m.eps == record.eps else f"{m.column} at {fraction(m.eps)}"
        if m.n > flags_by_attack.get(name, (0, ""))[0]:
            known = "".join(str(int(flags[i.index])) if i.index < m.n else "-" for i in record.images)
            flags_by_attack[name] = m.n, known
    return [{"name": name, "values": values} for name, (_, values) in flags_by_attack.items()]


# -- bytes


def encode(values: np.ndarray) -> str:
    return base64.b64encode(values.tobytes()).decode()


def compress(*parts: np.ndarray) -> str:
    """Bytes, one part after the other; level 6: the change is close to noise, and more effort saves little."""
    return base64.b64encode(zlib.compress(b"".join(part.tobytes() for part in parts), 6)).decode()


def differences(levels: np.ndarray) -> np.ndarray:
    """Each row minus the row above, then each byte minus the one before, modulo 256: smooth images shrink by half."""
    zero = np.uint8(0)
    return np.diff(np.diff(levels, axis=-2, prepend=zero), axis=-1, prepend=zero)


def colour_table(name: str) -> str:
    """256 colours of a colour map of matplotlib."""
    return encode(to_levels(coloured(np.arange(256) / 255, table=name)))


def colour_bar(name: str) -> str:
    return png_uri(coloured(np.linspace(0, 1, 64)[None], table=name))


def unique_names(names: Sequence[str]) -> list[str]:
    """The names, with .2, .3, ... after those that were there before."""
    seen: dict[str, int] = {}
    unique = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        unique.append(name if seen[name] == 1 else f"{name}.{seen[name]}")
    return unique
