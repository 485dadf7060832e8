"""A run folder for sharing: config, metrics, results, the weights of one checkpoint, and a model card."""

import json
import shutil
from pathlib import Path

from pixelpart.evaluation.store import stored_arrays
from pixelpart.exports.card import model_card
from pixelpart.exports.trained import Trained
from pixelpart.files import atomic_write
from pixelpart.runs import EVAL_SCHEMA, RunFolder, load_checkpoint, save_checkpoint


def write_hub_folder(trained: Trained, path: Path) -> None:
    """A folder that `Run` opens and `evaluate` takes. It lacks what only training needs: momentum and stored maps."""
    partial = path.with_name(f".{path.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        _write_files(trained, partial, name=path.name)
        partial.rename(path)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _write_files(trained: Trained, folder: Path, *, name: str) -> None:
    source = trained.run.folder
    tensors, facts = load_checkpoint(source.checkpoint(trained.checkpoint))
    prefix = "average." if trained.facts["weights"] == "averaged" else "model."
    weights = {name: tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    save_checkpoint(RunFolder(folder).checkpoint(trained.checkpoint), weights, facts)
    kept = [path for entry in trained.results for path in stored_arrays(source.path, entry)]
    for file in (source.config_file, source.metrics_file, *dict.fromkeys(kept)):
        if file.is_file():
            atomic_write(folder / file.relative_to(source.path), file.read_bytes())
    results = {"schema_version": EVAL_SCHEMA, "entries": trained.results}
    atomic_write(folder / "eval.json", json.dumps(results, indent=2) + "\n")
    atomic_write(folder / "README.md", model_card(trained, name))
