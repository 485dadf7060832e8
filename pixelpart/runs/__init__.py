"""A run on disk, and `Run`, the same opened for use. Importing this is quick: torch is imported late."""

from pixelpart.runs.checkpoints import Facts, fill, load_checkpoint, read_facts, save_checkpoint
from pixelpart.runs.folder import MetricsRow, RunFolder, mean_budget
from pixelpart.runs.run import Run, build_model, config_of, load_model

EVAL_SCHEMA = 1  # layout of eval.json
EXPLAIN_SCHEMA = 1  # layout of explain.json

__all__ = [
    "EVAL_SCHEMA", "EXPLAIN_SCHEMA", "Facts", "MetricsRow", "Run", "RunFolder", "build_model", "config_of", "fill",
    "load_checkpoint", "load_model", "mean_budget", "read_facts", "save_checkpoint",
]  # fmt: skip
