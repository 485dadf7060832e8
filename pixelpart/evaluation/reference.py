"""AutoAttack by its authors' own code, the package pyautoattack: the yardstick for ours."""

import contextlib
import logging
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from pixelpart.errors import UserError
from pixelpart.evaluation.accuracy import errs_inside
from pixelpart.evaluation.pictures import Pictures
from pixelpart.types import Flags


def under_reference(
    model: nn.Module, pictures: Pictures, *, right: Flags, eps: float, version: str, seed: int, batch_size: int
) -> Flags:
    """Which of the images that are `right` to begin with stay so; what it returns is judged as our own images are."""
    attack = build(model, pictures.device, eps=eps, version=version, seed=seed)
    right = right.clone()
    index = right.nonzero()[:, 0]
    if len(index):
        x, y = pictures.take(index)
        with _left_alone(pictures.device):
            x_adv, _ = attack.run_standard_evaluation(x, y, batch_size=batch_size)
        for some in torch.arange(len(index)).split(batch_size):
            here = some.to(x.device)
            broken = errs_inside(model, x[here], x_adv[here], y[here], eps=eps)
            right[index[some[broken.cpu()]]] = False
    return right


def build(model: nn.Module, device: torch.device, *, eps: float, version: str, seed: int) -> Any:
    try:
        from pyautoattack import AutoAttack
    except ImportError:
        raise UserError("the engine reference needs pyautoattack: pip install 'pixelpart[reference]'") from None
    return AutoAttack(model, norm="Linf", eps=eps, version=version, seed=seed, device=str(device))


@contextlib.contextmanager
def _left_alone(device: torch.device) -> Iterator[None]:
    """It seeds torch's global generators, warns and logs; all is as before on leaving."""
    logger = logging.getLogger("auto-attack")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    devices = [device] if device.type == "cuda" else []
    try:
        with torch.random.fork_rng(devices), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
