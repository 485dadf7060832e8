"""What configs of older versions look like: they can still be read, and runs keep their hash."""

from typing import Any

from pixelpart.config.values import split_data_label

ADDED = {  # fields added later: at these values they do not change a run's hash
    "size": 0,
    "skip_bad": False,
    "num_classes": 0,
    "classes": [],
    "eps_ramp": 0,
    "eps_from": "same",
    "mask.control": "none",
    "mask.mean": 0.0,
    "mask.mean_over": "image",
    "objective.smoothing": 0.0,
    "optim.name": "sgd",
    "optim.clip": 0.0,
    "awp.gamma": 0.0,
    "awp.after": 0,
    "holdout_seed": "same",
    "auto": [],
    "background": "white",
    "channels": 0,
}


def from_old_form(values: dict[str, Any]) -> dict[str, Any]:
    """The values with names and places of today.

    `mask.source` used to be called `mask.cam`; `dataset` used to hold size and skip_bad, as in folder:P@64+skip-bad.
    """
    mask = values.get("mask")
    if isinstance(mask, dict) and "cam" in mask and "source" not in mask:
        values = values | {"mask": {"source" if name == "cam" else name: value for name, value in mask.items()}}
    label = values.get("dataset")
    name, options = split_data_label(label) if isinstance(label, str) else (label, {})
    if name == label:
        return values
    size, given = options["size"], values.get("size") or 0
    if size and str(given) not in ("0", str(size)):
        raise ValueError(f"dataset {label!r} has size {size}, but size is {given}")
    skip_bad = options["skip_bad"] or values.get("skip_bad", False)
    values = values | {"dataset": name, "size": size or given, "skip_bad": skip_bad}
    return values | {"size": 0, "num_classes": 0} if name == "tinyimagenet" else values


def to_old_form(values: dict[str, Any], data_label: str) -> dict[str, Any]:
    """The JSON values of a config as the first versions wrote them, without fields of ADDED that are not used."""
    if values["dataset"] == "tinyimagenet" and values["skip_bad"]:
        values = values | {"size": 64, "num_classes": 200}
    mask = {"cam" if name == "source" else name: value for name, value in values["mask"].items()}
    return _in_use(values | {"dataset": data_label, "skip_bad": False, "mask": mask})


def _in_use(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """The values without unused fields, and without sections that are then empty."""
    sections = {k: _in_use(v, f"{prefix}{k}.") if isinstance(v, dict) else v for k, v in values.items()}
    return {k: v for k, v in sections.items() if v != {} and (prefix + k not in ADDED or v != ADDED[prefix + k])}
