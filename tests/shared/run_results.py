"""Run folders with results, without training or attacks."""

import hashlib

from pixelpart.config import Config
from pixelpart.evaluation import store
from pixelpart.files import atomic_write


def write_run(folder, results, *, file="eval.json", config=None, **changes):
    """A run folder with flags by attack as results; `changes` replace values in all entries."""
    config = Config(**(config or {}))
    atomic_write(folder / "config.json", config.to_json())
    for attack, flags in results.items():
        settings = {} if attack == "natural" else {"steps": 20, "step_size": 2 / 255, "restarts": 1}
        entry = {
            "attack": attack, "subject": None, "checkpoint": "best", "dataset": "shapes", "split": "test",
            "accuracy": flags.mean(), "correct": round(flags.mean() * changes.get("n", len(flags))), "n": len(flags),
            "settings": settings,
            "eps": 8 / 255 if settings else 0.0, "seed": 0, "precision": "fp32",
            "fingerprint": store.fingerprint(flags),
        } | changes  # fmt: skip
        key = hashlib.sha256(repr((attack, config.seed, sorted(changes.items()))).encode()).hexdigest()[:32]
        store.add_entry(folder, entry | {"key": key}, flags, file)
    return folder
