"""Where data sets live on disk."""

import os
from pathlib import Path

VARIABLE = "PIXELPART_DATA"
Root = str | os.PathLike[str] | None


def home(root: Root = None) -> Path:
    """The folder that holds the sets: `root`, else $PIXELPART_DATA, else ~/.cache/pixelpart. Nothing is created."""
    if root is not None and os.fspath(root):
        return Path(root).expanduser()
    named = os.environ.get(VARIABLE)
    return Path(named).expanduser() if named else Path.home() / ".cache" / "pixelpart"
