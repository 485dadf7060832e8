"""Models from `torch.export.save`: graph and weights in one .pt2 file.

Loading such a file can run code that it contains: like `module:function`, it is loaded only if the user names it.
"""

import logging
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.export.passes import move_to_device_pass

from pixelpart.config import Size
from pixelpart.errors import UserError
from pixelpart.files import parse_json
from pixelpart.types import Images, Logits

METADATA = "pixelpart.json"  # what an exported file says of its model: a file in an archive, a property of an onnx
DYNAMIC = "export it with dynamic_shapes=({0: torch.export.Dim('batch')},)"


@dataclass(frozen=True)
class TrainedOn:
    """What is known of the images that a model was trained on."""

    classes: tuple[str, ...] = ()  # names in the order of the logits
    size: Size = 0  # 0: not known
    channels: int = 3
    background: str = "white"

    @classmethod
    def of_archive(cls, path: Path) -> "TrainedOn":
        """What `export` wrote into the archive; other archives say nothing."""
        try:
            with zipfile.ZipFile(path) as archive:
                (member,) = (name for name in archive.namelist() if name.endswith(f"/extra/{METADATA}"))
                found = parse_json(archive.read(member).decode())
            channels, height, width = map(int, found["shape"])
            background = str(found.get("pictures", {}).get("background", "white"))
            size = height if height == width else (height, width)
            return cls(tuple(map(str, found["classes"])), size, channels, background)
        except Exception:  # an archive of another program, or a file that `load_archive` refuses
            return cls()


class Split(nn.Module):
    """A network that is called with at most `most` images at a time."""

    def __init__(self, network: nn.Module, most: int) -> None:
        super().__init__()
        self.network, self.most = network, most

    def forward(self, x: Images) -> Logits:
        return torch.cat([self.network(part) for part in x.split(self.most)])


def load_archive(path: Path, *, device: torch.device) -> nn.Module:
    """The network of a .pt2 file, on the device; a UserError if it was exported in train mode."""
    if not path.is_file():
        raise UserError(f"no file {path}")
    with _quiet():
        try:
            with zipfile.ZipFile(path) as archive:
                if (member := archive.testzip()) is not None:  # torch.export.load does not check this
                    raise ValueError(f"checksum mismatch in {member}")
            program = move_to_device_pass(torch.export.load(path), str(device))
        except Exception as error:  # torch raises many types, and logs the reason
            raise UserError(
                f"{path} is corrupt, or not an archive of torch.export.save that torch {torch.__version__} reads"
            ) from error
        most = _most_images(program, path)
        if layer := _layer_in_training(program):
            raise UserError(f"{path} was exported in train mode ({layer}); call eval() on the model, then export it")
        network = program.module()
    return network if most is None else Split(network, most)


def _most_images(program: ExportedProgram, path: Path) -> int | None:
    """The largest batch that the graph takes; None if there is no limit."""
    names = program.graph_signature.user_inputs
    nodes = [node for node in program.graph.nodes if node.op == "placeholder" and node.name in names]
    images = nodes[0].meta["val"] if len(nodes) == 1 else None
    if not isinstance(images, Tensor) or images.ndim != 4:
        raise UserError(f"{path} does not take images (n, 3, h, w) as its only input")
    count = images.shape[0]
    if isinstance(count, int) or not count.node.expr.is_Symbol:
        raise UserError(f"{path} takes batches of {count} images, not of any size; {DYNAMIC}")
    limits = program.range_constraints.get(count.node.expr)
    return int(limits.upper) if limits is not None and limits.upper.is_Integer else None


def _layer_in_training(program: ExportedProgram) -> str | None:
    """The first operation that runs as in training: dropout, or batch norm with batch statistics."""
    for node in program.graph.nodes:
        if isinstance(node.target, torch._ops.OpOverload):
            names = [argument.name for argument in node.target._schema.arguments]
            given = dict(zip(names, node.args, strict=False)) | node.kwargs
            if given.get("training") is True or given.get("train") is True:
                return str(node.target.overloadpacket).removeprefix("aten.")
    return None


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppresses the log lines and warnings of torch.export."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
