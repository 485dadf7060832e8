"""Trains image classifiers that hold up under attack, and shows which pixels the defence spends its budget on."""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from pixelpart import attacks, data, masks, models, objectives, recipes
    from pixelpart.comparison.compare import compare
    from pixelpart.engine.train import train
    from pixelpart.evaluation.checks.obfuscation import check
    from pixelpart.evaluation.corruptions import corruptions
    from pixelpart.evaluation.evaluate import evaluate
    from pixelpart.evaluation.explain import explain
    from pixelpart.evaluation.predict import predict
    from pixelpart.exports.export import export
    from pixelpart.runs import Run
    from pixelpart.sweeps.sweep import sweep

__all__ = [
    "Run",
    "attacks",
    "check",
    "compare",
    "corruptions",
    "data",
    "evaluate",
    "explain",
    "export",
    "masks",
    "models",
    "objectives",
    "predict",
    "recipes",
    "sweep",
    "train",
]

_MODULES = {
    "Run": "pixelpart.runs",
    "check": "pixelpart.evaluation.checks.obfuscation",
    "compare": "pixelpart.comparison.compare",
    "corruptions": "pixelpart.evaluation.corruptions",
    "evaluate": "pixelpart.evaluation.evaluate",
    "explain": "pixelpart.evaluation.explain",
    "export": "pixelpart.exports.export",
    "predict": "pixelpart.evaluation.predict",
    "sweep": "pixelpart.sweeps.sweep",
    "train": "pixelpart.engine.train",
}


def __dir__() -> list[str]:
    return ["__version__", *__all__]


def __getattr__(name: str) -> Any:
    """Imports submodules and functions on first use, so that `pixelpart --help` does not wait for torch."""
    if name in _MODULES:
        return getattr(importlib.import_module(_MODULES[name]), name)
    if name in __all__:
        return importlib.import_module(f"pixelpart.{name}")
    raise AttributeError(f"module 'pixelpart' has no attribute {name!r}")
