"""AutoAttack by its authors' own code, the package pyautoattack: the yardstick for ours."""

import contextlib
import importlib.metadata
import logging
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from pixelpart.errors import UserError
from pixelpart.evaluation.accuracy import errs_inside, logits_of
from pixelpart.evaluation.image_set import ImageSet
from pixelpart.runtime.precision import ieee_fp32
from pixelpart.types import Flags

FEWEST = 4  # classes: the targeted loss compares the first logit with the third and the fourth


def under_reference(
    model: nn.Module, pictures: ImageSet, *, right: Flags, eps: float, version: str, seed: int, batch_size: int
) -> Flags:
    """Which of the images that are `right` to begin with stay so; what it returns is judged as our own images are."""
    with _left_alone(pictures.device):
        attack = build(model, pictures.device, eps=eps, version=version, seed=seed)
    right = right.clone()
    index = right.nonzero()[:, 0]
    if len(index):
        x, y = pictures.take(index)
        aim_at(attack, logits_of(model, x[:1]).shape[1])
        with _left_alone(pictures.device):
            x_adv, _ = attack.run_standard_evaluation(x, y, batch_size=batch_size)
        with ieee_fp32(pictures.device):
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
    seed %= 2**63  # it goes to torch as it is
    return AutoAttack(model, norm="Linf", eps=eps, version=version, seed=seed, device=str(device))


def release() -> str:
    """Which version of it is installed, if one is."""
    try:
        return importlib.metadata.version("pyautoattack")
    except importlib.metadata.PackageNotFoundError:
        return "none"


def aim_at(attack: Any, classes: int) -> None:
    """As many targets as there are wrong classes, if those are fewer than its own nine."""
    check_classes(classes)
    for part in (attack.apgd_targeted, attack.fab):
        part.n_target_classes = min(part.n_target_classes, classes - 1)


def check_classes(classes: int) -> None:
    if classes < FEWEST:
        raise UserError(f"the engine reference needs {FEWEST} classes or more, for its targets; there are {classes}")


@contextlib.contextmanager
def _left_alone(device: torch.device) -> Iterator[None]:
    """It seeds torch's global generators, warns, logs and takes the tracer away; all is as before on leaving."""
    logger = logging.getLogger("auto-attack")
    level, tracer = logger.level, sys.gettrace()
    logger.setLevel(logging.CRITICAL)
    devices = [device] if device.type == "cuda" else []
    try:
        with torch.random.fork_rng(devices), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
        sys.settrace(tracer)
