"""The classes that a run's model predicts for pictures."""

import os
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from pixelpart.config import Config
from pixelpart.data import as_float, classes_of, folder, read_picture
from pixelpart.errors import UserError
from pixelpart.evaluation.images import logits_of
from pixelpart.runs import Run
from pixelpart.runtime.device import choose_device
from pixelpart.runtime.precision import ieee_fp32
from pixelpart.runtime.progress import Progress, silent
from pixelpart.types import Images

AT_ONCE = 64  # pictures in memory


@dataclass(frozen=True)
class Prediction:
    """The most probable class of a picture; `name` is the class's number if the classes have no names."""

    path: Path
    label: int
    name: str
    probability: float
    probabilities: tuple[float, ...]  # of all classes, in the order of the labels

    def __str__(self) -> str:
        return f"{self.path}: {self.name} {self.probability:.1%}"

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"path": str(self.path)}


def predict(
    run: Run | Path | str,
    pictures: str | Path | Iterable[str | Path],
    *,
    checkpoint: str = "best",
    skip_bad: bool = False,
    device: torch.device | str | None = None,
    progress: Progress = silent,
    say: Callable[[str], None] = lambda line: None,
) -> list[Prediction]:
    """The prediction for each picture, in the order given; of a folder, for all pictures below it, sorted by path.

    Pictures are read as in training (`data.read_picture`). UserError for a file that cannot be read; with `skip_bad` it
    is left out, and a line says so.
    """
    run, device = Run.of(run), choose_device(device)
    model = run.load(checkpoint)[0].to(device)
    listed = [pictures] if isinstance(pictures, str | os.PathLike) else pictures
    files = find_files(listed, skip_bad=skip_bad, say=say)
    names, found = classes_of(run.config), list[Prediction]()
    for start in range(0, len(files), AT_ONCE):
        paths, x = read_pictures(files[start : start + AT_ONCE], run.config, skip_bad=skip_bad, say=say)
        if paths:
            with ieee_fp32(device):
                probabilities = logits_of(model, x.to(device)).softmax(1).cpu()
            for path, row in zip(paths, probabilities, strict=True):
                label = int(row.argmax())
                name = names[label] if names else str(label)
                found.append(Prediction(path, label, name, float(row[label]), tuple(row.tolist())))
        progress("predict", min(start + AT_ONCE, len(files)), len(files), "")
    if not found:
        raise UserError(f"none of {len(files)} files can be read")
    return found


def find_files(pictures: Iterable[str | Path], *, skip_bad: bool, say: Callable[[str], None]) -> list[Path]:
    """The files, and those below each folder; UserError if there are none."""
    files: list[Path] = []
    for path in map(Path, pictures):
        bad: list[str] = []
        below = sorted(folder.files_below(path, bad)) if path.is_dir() else [path]
        if bad and not skip_bad:
            raise UserError(bad[0])
        for line in bad:
            say(f"left out: {line}")
        if not below:
            raise UserError(f"no pictures in {path}")
        files += below
    if not files:
        raise UserError("no pictures given")
    return files


def read_pictures(
    files: Iterable[Path], config: Config, *, skip_bad: bool, say: Callable[[str], None]
) -> tuple[list[Path], Images]:
    """The files that could be read, and their images in [0,1]."""
    paths, images = list[Path](), list[torch.Tensor]()
    for file in files:
        try:
            if file.exists() and not file.is_file():  # opening a pipe would wait
                raise UserError(f"{file} is not a regular file")
            images.append(read_picture(file, config))
            paths.append(file)
        except UserError as error:
            if not skip_bad:
                raise
            say(f"left out: {error}")
    return paths, as_float(torch.stack(images)) if images else torch.empty(0)
