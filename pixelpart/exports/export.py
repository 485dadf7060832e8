"""`export`: the model of a run in a form that other programs read."""

from pathlib import Path

from pixelpart.errors import UserError, choose
from pixelpart.exports import FORMATS
from pixelpart.exports.trained import Trained
from pixelpart.runs import Run


def export(run: Run | str | Path, *, to: str, out: str | Path | None = None, checkpoint: str = "best") -> Path:
    """Writes the model of a run as a file or folder for other programs, and returns its path.

    `to` is pt2 (torch.export), onnx, robustbench (weights by the names of its networks) or hub (a run folder for
    sharing, with a model card). pt2 and onnx contain the network and the names of its classes, take batches of any
    size, and are read back and compared with the model. `out` is by default the run's name in the current folder;
    nothing is overwritten.
    """
    found = choose(FORMATS, to, "export format")
    run = run if isinstance(run, Run) else Run(Path(run))
    path = Path(f"{run.dir.resolve().name}{found.suffix}" if out is None else out)
    if path.exists() or path.is_symlink():
        raise UserError(f"{path} exists; choose another --out, or delete it")
    trained = Trained.of(run, checkpoint)
    try:
        found.write(trained, path)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from None
    return path
