"""A run folder for sharing: config, metrics, results, the weights of one checkpoint, and a model card."""

import json
import shutil
from pathlib import Path

from pixelpart.exports.card import model_card
from pixelpart.exports.trained import Trained
from pixelpart.files import atomic_write
from pixelpart.runs import EVAL_SCHEMA, RunFolder, load_checkpoint, save_checkpoint


def write_hub_folder(trained: Trained, path: Path) -> None:
    """A folder that `Run` opens and `evaluate` takes. It lacks what only training needs: momentum and stored maps."""
    source, partial = trained.run.folder, path.with_name(f".{path.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    tensors, facts = load_checkpoint(source.checkpoint(trained.checkpoint))
    prefix = "average." if trained.facts["weights"] == "averaged" else "model."
    weights = {name: tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    save_checkpoint(RunFolder(partial).checkpoint(trained.checkpoint), weights, facts)
    flags = [source.path / "eval" / f"{entry.get('key')}.npy" for entry in trained.results]
    for file in (source.config_file, source.metrics_file, *flags):
        if file.is_file():
            atomic_write(partial / file.relative_to(source.path), file.read_bytes())
    results = {"schema_version": EVAL_SCHEMA, "entries": trained.results}
    atomic_write(partial / "eval.json", json.dumps(results, indent=2) + "\n")
    atomic_write(partial / "README.md", model_card(trained))
    partial.rename(path)
