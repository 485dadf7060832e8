"""AutoAttack by its authors' code, the package pyautoattack: what ours is compared with."""

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
from pixelpart.evaluation.images import ImageSet, errs_inside, logits_of
from pixelpart.runtime.precision import ieee_fp32
from pixelpart.types import Flags

FEWEST = 4  # classes: its targeted loss uses the third and the fourth largest logit


def under_reference(
    model: nn.Module, pictures: ImageSet, *, correct: Flags, eps: float, version: str, seed: int
) -> Flags:
    """Which of the correct samples remain correct; the images that the package returns are judged as ours are."""
    with _restored(pictures.device):
        attack = build(model, pictures.device, eps=eps, version=version, seed=seed)
    correct = correct.clone()
    index = correct.nonzero()[:, 0]
    if len(index):
        x, y = pictures.take(index)
        classes = logits_of(model, x[:1]).shape[1]
        check_classes(classes)
        for part in (attack.apgd_targeted, attack.fab):  # the package's own number of targets is nine
            part.n_target_classes = min(part.n_target_classes, classes - 1)
        with _restored(pictures.device):
            x_adv, _ = attack.run_standard_evaluation(x, y, batch_size=pictures.batch_size)
        with ieee_fp32(pictures.device):
            for part in torch.arange(len(index)).split(pictures.batch_size):
                here = part.to(x.device)
                broken = errs_inside(model, x[here], x_adv[here], y[here], eps=eps)
                correct[index[part[broken.cpu()]]] = False
    return correct


def build(model: nn.Module, device: torch.device, *, eps: float, version: str, seed: int) -> Any:
    try:
        from pyautoattack import AutoAttack
    except ImportError:
        raise UserError("engine reference needs pyautoattack: pip install 'pixelpart[reference]'") from None
    seed %= 2**63  # the package passes it to torch
    return AutoAttack(model, norm="Linf", eps=eps, version=version, seed=seed, device=str(device))


def release() -> str:
    """The installed version of the package, or "none"."""
    try:
        return importlib.metadata.version("pyautoattack")
    except importlib.metadata.PackageNotFoundError:
        return "none"


def check_classes(classes: int) -> None:
    if classes < FEWEST:
        raise UserError(f"engine reference needs at least {FEWEST} classes, not {classes}")


@contextlib.contextmanager
def _restored(device: torch.device) -> Iterator[None]:
    """Undoes what the package does to torch's generators, warnings, logging and tracing."""
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
