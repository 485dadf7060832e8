"""Runs notebooks, each in an empty working folder: `python examples/run.py [NAME ...]` writes their outputs."""

import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).parent


def run(path: Path) -> nbformat.NotebookNode:
    """The notebook with the outputs of a fresh run; an error in a cell is raised."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        NotebookClient(notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": folder}}).execute()
    for cell in notebook.cells:
        cell.metadata = {}  # times
    notebook.metadata.pop("language_info", None)
    return notebook


if __name__ == "__main__":
    for path in [HERE / f"{name}.ipynb" for name in sys.argv[1:]] or sorted(HERE.glob("*.ipynb")):
        nbformat.write(run(path), path)
        print(f"{path.name}: {path.stat().st_size / 1000:.0f} KB")
