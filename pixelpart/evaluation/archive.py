"""A network as `torch.export.save` writes it: graph and weights in one .pt2 file.

Such a file is a program, and PyTorch's reader may run code that lies in it: like `module:function` it is opened only
where a user names it.
"""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.export.passes import move_to_device_pass

from pixelpart.errors import UserError
from pixelpart.types import Images, Logits

DYNAMIC = "export it with dynamic_shapes=({0: torch.export.Dim('batch')},)"


class Portions(nn.Module):
    """A network that is asked about `most` images at once and no more."""

    def __init__(self, network: nn.Module, most: int) -> None:
        super().__init__()
        self.network, self.most = network, most

    def forward(self, x: Images) -> Logits:
        return torch.cat([self.network(part) for part in x.split(self.most)])


def load_archive(path: Path, *, device: torch.device) -> nn.Module:
    """The network of a .pt2 file, on the device; one that was exported in train mode is a UserError."""
    if not path.is_file():
        raise UserError(f"no file {path}")
    with _quiet():
        try:
            program = move_to_device_pass(torch.export.load(path), str(device))
        except Exception as error:  # it fails in many ways, and logs the reason
            raise UserError(
                f"{path} is damaged, or not an archive of torch.export.save that torch {torch.__version__} reads"
            ) from error
        most = _most_images(program, path)
        if layer := _in_training(program):
            raise UserError(f"{path} was exported in train mode ({layer}); call eval() on the model, then export it")
        network = program.module()
    return network if most is None else Portions(network, most)


def _most_images(program: ExportedProgram, path: Path) -> int | None:
    """How many images the graph takes at once; None where any number will do."""
    names = program.graph_signature.user_inputs
    nodes = [node for node in program.graph.nodes if node.op == "placeholder" and node.name in names]
    images = nodes[0].meta["val"] if len(nodes) == 1 else None
    if not isinstance(images, Tensor) or images.ndim != 4:
        raise UserError(f"{path} does not take images (n, 3, h, w) and nothing else")
    count = images.shape[0]
    if isinstance(count, int) or not count.node.expr.is_Symbol:
        raise UserError(f"{path} takes {count} images at a time, not any number of them; {DYNAMIC}")
    limits = program.range_constraints.get(count.node.expr)
    return int(limits.upper) if limits is not None and limits.upper.is_Integer else None


def _in_training(program: ExportedProgram) -> str | None:
    """The first operation that was told to behave as in training: dropout, or batch norm by the batch's statistics."""
    for node in program.graph.nodes:
        if isinstance(node.target, torch._ops.OpOverload):
            names = [argument.name for argument in node.target._schema.arguments]
            given = dict(zip(names, node.args, strict=False)) | node.kwargs
            if given.get("training") is True or given.get("train") is True:
                return str(node.target.overloadpacket).removeprefix("aten.")
    return None


@contextmanager
def _quiet() -> Iterator[None]:
    """No log lines and no warnings of PyTorch's exporter: what is wrong is said in one line."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
