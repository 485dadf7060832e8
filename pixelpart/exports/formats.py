"""Files with one model: torch.export, ONNX, and weights for RobustBench's networks."""

import contextlib
import io
import json
import logging
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from pixelpart.errors import UserError
from pixelpart.evaluation.archive import METADATA
from pixelpart.exports.trained import Trained
from pixelpart.files import atomic_write

TOLERANCE = 1e-4  # largest difference from the model's logits, relative to their largest value
EXAMPLES = 2  # images that the network is traced with


def to_pt2(trained: Trained, path: Path) -> None:
    """An archive of torch.export: graph and weights, which torch loads without pixelpart."""
    batch = torch.export.Dim("batch")
    with _exporting("torch.export", trained):
        program = torch.export.export(trained.model, (_images(trained, EXAMPLES),), dynamic_shapes=({0: batch},))
        file = io.BytesIO()
        torch.export.save(program, file, extra_files={METADATA: json.dumps(trained.describe())})
        read = torch.export.load(io.BytesIO(file.getvalue())).module()
    check_logits(trained, read)
    atomic_write(path, file.getvalue())


def to_onnx(trained: Trained, path: Path) -> None:
    """An ONNX file with the input `images` and the output `logits`."""
    try:
        import onnxruntime
        import onnxscript  # noqa: F401  (torch.onnx needs it)
    except ImportError as error:
        raise UserError(f"--to onnx needs {error.name}: pip install 'pixelpart[onnx]'") from None
    with _exporting("torch.onnx", trained):
        program = torch.onnx.export(
            trained.model,
            (_images(trained, EXAMPLES),),
            input_names=["images"],
            output_names=["logits"],
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            dynamo=True,
            verbose=False,
        )
        assert program is not None
        proto = program.model_proto
        proto.metadata_props.add(key=METADATA, value=json.dumps(trained.describe()))
        content = proto.SerializeToString()
        session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    check_logits(trained, lambda x: torch.from_numpy(session.run(["logits"], {"images": x.numpy()})[0]))
    atomic_write(path, content)


def to_robustbench(trained: Trained, path: Path) -> None:
    """The state dict of a network that RobustBench has too, under its names."""
    name, (channels, height, width) = trained.config.model, trained.shape
    pooled = 8 if name.startswith("wrn-") else 4  # height and width of the region that RobustBench's networks average
    if name not in ("resnet18", "preactresnet18") and not name.startswith("wrn-"):
        raise UserError(f"RobustBench has resnet18, preactresnet18 and wrn-*, and this run is a {name}; use --to pt2")
    with torch.no_grad():
        size = tuple(trained.model.features(_images(trained, 1)).shape[2:])
    if channels != 3 or size != (pooled, pooled):
        raise UserError(
            f"RobustBench's {name} takes 3 x 32 x 32 images, and this run has {channels} x {height} x {width}; use "
            "--to pt2"
        )
    if trained.model.scaled:
        raise UserError("RobustBench's networks take pixels in [0, 1], and this one normalises them; use --to pt2")
    file = io.BytesIO()
    torch.save({name: tensor.clone() for name, tensor in trained.model.state_dict().items()}, file)
    atomic_write(path, file.getvalue())


@torch.no_grad()
def check_logits(trained: Trained, read: Callable[[Tensor], Tensor]) -> None:
    """A UserError unless the exported network has the model's logits, for another number of images too."""
    for n in (1, EXAMPLES + 1):
        x = _images(trained, n)
        expected = trained.model(x)
        try:
            difference = float((read(x) - expected).abs().max())
        except Exception as error:  # of another program's, which can be any
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            raise UserError(f"the exported {trained.config.model} fails on {n} images: {reason}") from error
        if not difference <= TOLERANCE * max(1.0, float(expected.abs().max())):
            name = trained.config.model
            raise UserError(f"the logits of the exported {name} differ from the model's by up to {difference:.2g}")


def _images(trained: Trained, n: int) -> Tensor:
    return torch.rand(n, *trained.shape, generator=torch.Generator().manual_seed(n))


@contextlib.contextmanager
def _exporting(exporter: str, trained: Trained) -> Iterator[None]:
    """Suppresses what the exporter prints; its errors, which can be any, become a UserError."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore")
            nowhere = stack.enter_context(open(os.devnull, "w"))
            stack.enter_context(contextlib.redirect_stdout(nowhere))
            stack.enter_context(contextlib.redirect_stderr(nowhere))  # torch prints the graph that it could not trace
            yield
    except Exception as error:
        first: BaseException = error  # the exporters wrap the error that says why
        while first.__cause__ is not None:
            first = first.__cause__
        reason = next(iter(str(first).splitlines()), type(first).__name__)
        if "Constraints violated (batch)" in reason:
            reason = "its forward depends on the number of images"
        raise UserError(f"{exporter} cannot export {trained.config.model}: {reason}") from error
    finally:
        logging.disable(before)
