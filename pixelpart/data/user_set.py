"""A data set made by user code: `module:function`, where function(split) returns images and labels."""

import warnings

import torch
from torch import Tensor

from pixelpart.data.check import check_images
from pixelpart.data.folder import MEAN, STD
from pixelpart.data.home import Root
from pixelpart.data.sets import DataSet
from pixelpart.errors import UserError, choose
from pixelpart.runtime import usercode

SPLITS = ("train", "test")


def data_set(name: str) -> DataSet:
    """The images and labels that function("train") and function("test") return, as a set; both are called now."""
    held = {split: _split(name, split) for split in SPLITS}
    x, y = held["train"]
    found = y.unique()
    num_classes = len(found)
    if len(absent := (found != torch.arange(num_classes)).nonzero()):
        raise UserError(f"{name}: no training image has label {int(absent[0])}; number classes from 0, without gaps")
    for split, (images, labels) in held.items():
        try:
            check_images(images, labels, num_classes, shape=(3, x.shape[2], x.shape[3]))
        except UserError as error:
            raise UserError(f"{name}, {split}: {error}") from None

    def load(split: str, root: Root) -> tuple[Tensor, Tensor]:
        return choose(held, split, "split")

    return DataSet(
        classes=tuple(map(str, range(num_classes))),
        size=x.shape[-1],
        mean=MEAN,
        std=STD,
        counts={split: len(labels) for split, (_, labels) in held.items()},
        about=f"{num_classes} classes, from the code {name}",
        load=load,
        check=lambda root: None,  # checked above
    )


def _split(name: str, split: str) -> tuple[Tensor, Tensor]:
    found = usercode.call(name, split)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # nor is it written to
            x, y = map(torch.as_tensor, found)
    except Exception as error:
        raise UserError(f"{name}({split!r}) must return a pair of arrays (images, labels): {error}") from None
    if x.dtype != torch.uint8 or x.ndim != 4 or x.shape[1] != 3 or x.shape[2] != x.shape[3] or not len(x):
        kind = str(x.dtype).removeprefix("torch.")
        raise UserError(
            f"{name}({split!r}) gives images {kind} {tuple(x.shape)}; they must be uint8 (n, 3, size, size)"
        )
    whole = not (y.is_floating_point() or y.is_complex())
    if not whole or y.ndim != 1 or len(y) != len(x) or y.long().min() < 0:  # torch has no min of uint16
        kind = str(y.dtype).removeprefix("torch.")
        need = f"{len(x)} images need ({len(x)},), whole, from 0 up"
        raise UserError(f"{name}({split!r}) gives labels {kind} {tuple(y.shape)}; {need}")
    return x, y.long()
