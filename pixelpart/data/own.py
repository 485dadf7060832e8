"""A data set that the user's own code gives: `module:function`, where function(split) returns images and labels."""

import contextlib
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pixelpart.data.check import check_images
from pixelpart.data.folder import MEAN, STD
from pixelpart.data.home import Root
from pixelpart.data.sets import DataSet
from pixelpart.errors import UserError, choose
from pixelpart.runtime.usercode import failed, find_named, working_folder_first

SPLITS = {"train": 0, "test": 1}


def data_set(name: str) -> DataSet:
    """What function("train") and function("test") return, as a set; both are called now and kept."""
    with working_folder_first(), contextlib.redirect_stdout(sys.stderr):  # stdout is for results
        function = find_named(name)
        if not callable(function):
            raise UserError(f"{name} is a {type(function).__name__}; name a function of the split, train or test")
        held = {split: _split(name, function, split) for split in SPLITS}
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
        check=lambda root: None,  # all of it was looked at above
    )


def _split(name: str, function: Callable[..., Any], split: str) -> tuple[Tensor, Tensor]:
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # nor is it written to
            x, y = map(torch.as_tensor, function(split))
    except (Exception, SystemExit) as error:  # the user's own code: it may fail in any way
        raise failed(f"{name}({split!r})", error) from error
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
