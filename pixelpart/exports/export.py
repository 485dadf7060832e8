"""`export`: the model of a run in a form that other programs read."""

import os
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
    export_format = choose(FORMATS, to, "export format")
    run = Run.of(run)
    run.folder.read_config()  # a UserError if it is no run folder, before one about `path`
    path = Path(f"{run.dir.resolve().name}{export_format.suffix}" if out is None else out)
    try:
        if os.path.lexists(path):
            raise UserError(f"{path} exists; choose another --out, or delete it")
        if path.suffix != export_format.suffix and path.suffix in {known.suffix for known in FORMATS.values()}:
            raise UserError(f"--to {to} does not write {path.suffix} files; choose another --out than {path}")
        export_format.write(Trained.of(run, checkpoint), path)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from None
    return path
