"""A trained model for other programs. A new format is a function and an entry in `FORMATS`."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pixelpart.exports.formats import to_onnx, to_pt2, to_robustbench
from pixelpart.exports.hub import write_hub_folder
from pixelpart.exports.trained import Trained


@dataclass(frozen=True)
class Format:
    """`write(trained, path)` writes a file, or a folder; `suffix` ends its default name."""

    suffix: str
    write: Callable[[Trained, Path], None]


FORMATS: dict[str, Format] = {
    "pt2": Format(".pt2", to_pt2),
    "onnx": Format(".onnx", to_onnx),
    "robustbench": Format(".pt", to_robustbench),
    "hub": Format("-hub", write_hub_folder),
}
