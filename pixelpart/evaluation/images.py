"""The images of an evaluation by sample number, the model's logits of them, and what counts as broken."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd

from pixelpart import draws, losses
from pixelpart.attacks import ATTACKS
from pixelpart.attacks.ball import draw_noise, inside, start_point
from pixelpart.config import DEFAULT_EPS, DEFAULT_SEED
from pixelpart.data import as_float, check_labels
from pixelpart.errors import UserError
from pixelpart.runtime.usercode import failure
from pixelpart.types import Budget, Flags, Images, Labels, Logits, Model, dtype_name

KEY_IMAGES = 8  # images whose logits are part of a result's key, and on which the model is checked
MODE_WARNING = "the model was in train mode and has dropout or batch norm; it was evaluated in eval mode"


@dataclass(frozen=True)
class ImageSet:
    """Images, uint8 or in [0,1], their labels, the device that they are attacked on, and how many at a time."""

    images: Tensor
    labels: Tensor
    device: torch.device
    batch_size: int = 128

    def __len__(self) -> int:
        return len(self.images)

    def take(self, index: Tensor) -> tuple[Images, Labels]:
        """Images as fp32 in [0,1] and labels of these sample numbers, on the device."""
        index = index.cpu()
        x, y = self.images[index].to(self.device), self.labels[index].to(self.device)
        return (as_float(x) if x.dtype == torch.uint8 else x.float()), y.long()

    def first(self, count: int) -> tuple[Images, Labels]:
        """The first `count` images and labels, or all if there are fewer."""
        return self.take(torch.arange(min(count, len(self))))


@torch.no_grad()
def logits_of(model: Model, x: Images, kind: str = "images") -> Logits:
    """The model's finite logits (b, k); a UserError if it returns anything else. `kind` of images, for the message."""
    logits = model(x)
    if not isinstance(logits, Tensor) or logits.ndim != 2 or len(logits) != len(x) or not logits.is_floating_point():
        raise UserError(
            f"the model returned {_described(logits)} for {len(x)} images; it must return logits ({len(x)}, classes)"
        )
    if count := int((~logits.isfinite()).any(1).sum()):
        raise UserError(f"the model returned NaN or infinite logits for {count} of {len(x)} {kind}")
    return logits


def check_adversarial(x_adv: object, x: Images, budget: Budget, *, attack: str) -> None:
    """A UserError that names the attack unless it returned finite images inside the budget of x."""
    if not isinstance(x_adv, Tensor) or x_adv.shape != x.shape:
        raise UserError(f"attack {attack} returned {_described(x_adv)}; it must return images {tuple(x.shape)}")
    if count := int((~x_adv.isfinite()).flatten(1).any(1).sum()):
        raise UserError(f"attack {attack} returned NaN or infinite pixels in {count} of {len(x)} images")
    if count := int((~inside(x_adv, x, budget)).sum()):
        project = "end it with pixelpart.attacks.ball.project(x_adv, x, budget)"
        raise UserError(f"attack {attack} left the budget or [0, 1] in {count} of {len(x)} images; {project}")


def errs_inside(model: Model, x: Images, x_adv: Images, y: Labels, *, eps: Budget) -> Flags:
    """Where x_adv breaks the model: it errs there, |x_adv - x| <= eps at every pixel, and x_adv is in [0,1]."""
    return (logits_of(model, x_adv, "adversarial images").argmax(1) != y) & inside(x_adv, x, eps)


def start_images(index: Tensor, x: Images, eps: Budget, *, kind: str, steps: int, seed: int, restart: int) -> Tensor:
    """Start images of one restart: shaped like x, or (starts, b, c, h, w) for an attack that takes several."""
    starts = ATTACKS[kind].starts
    numbers = range(restart * starts, (restart + 1) * starts)
    noise = [start_noise(index, x, stream=f"attack/{kind}{steps}", seed=seed, number=number) for number in numbers]
    images = [start_point(x, eps, part, kind="uniform") for part in noise]
    return images[0] if starts == 1 else torch.stack(images)


def start_noise(index: Tensor, x: Images, *, stream: str, seed: int, number: int) -> Images:
    """Uniform noise in [-1,1] for an attack's start of this number.

    The noise of a sample depends on its own number only, not on its batch, the other samples or the device.
    """
    like = torch.empty(1, *x.shape[1:], dtype=x.dtype)
    rows = [
        draw_noise(like, kind="uniform", generator=draws.generator(seed, stream, number, sample))
        for sample in index.tolist()
    ]
    return torch.cat(rows).to(x.device)


# -- checks before an evaluation


def check_counts(**counts: int | None) -> None:
    """A UserError that names the first argument that is given and not a positive integer."""
    for name, count in counts.items():
        if count is not None and (not isinstance(count, int) or isinstance(count, bool) or count < 1):
            raise UserError(f"{name} {count!r} is not a whole number above 0")


def mode_warnings(model: nn.Module) -> list[str]:
    """Warns if the caller's module has layers in train mode that behave differently in eval mode."""

    def differs(module: nn.Module) -> bool:
        if isinstance(module, _DropoutNd):
            return module.p > 0
        return isinstance(module, _NormBase) and module.running_mean is not None

    return [MODE_WARNING] if any(module.training and differs(module) for module in model.modules()) else []


def checked_logits(model: nn.Module, pictures: ImageSet) -> Logits:
    """The logits of the first KEY_IMAGES images, then of the same images with noise; a UserError if they are no logits.

    Only the noisy images show whether the model rounds pixels to 255 levels.
    """
    for name, parameter in model.named_parameters():
        if parameter.is_floating_point() and parameter.dtype != torch.float32:
            raise UserError(
                f"the model's weights are {dtype_name(parameter)} ({name}); evaluation needs fp32: use model.float()"
            )
    index = torch.arange(min(KEY_IMAGES, len(pictures)))
    x, _ = pictures.take(index)
    noise = start_noise(index, x, stream="probe", seed=DEFAULT_SEED, number=0)
    try:
        logits = logits_of(model, x)
        noisy = logits_of(model, start_point(x, DEFAULT_EPS, noise, kind="uniform"))
    except (MemoryError, UserError):
        raise
    except Exception as error:  # user code: it can raise anything
        raise failure(f"the model on images of shape {tuple(x.shape)}", error) from error
    if logits.dtype != torch.float32:
        raise UserError(f"the model's logits are {dtype_name(logits)}; evaluation needs fp32: use model.float()")
    for total in (1, 100):
        if (logits >= 0).all() and torch.allclose(logits.sum(1), logits.new_tensor(total), atol=0, rtol=1e-4):
            raise UserError(f"the model returns probabilities (rows >= 0 that sum to {total}); it must return logits")
    classes, labels = logits.shape[1], pictures.labels
    if not labels.is_floating_point() and (highest := int(labels.max())) >= classes:
        raise UserError(
            f"the model returns {classes} logits for each image, and there are labels up to {highest}: "
            f"it must return at least {highest + 1}"
        )
    check_labels(labels, classes, n=len(pictures))
    return torch.cat((logits, noisy))


def check_gradient(model: Model, pictures: ImageSet) -> None:
    """A UserError if the loss has no gradient, or a NaN or infinite one, at the first KEY_IMAGES images."""
    x, y = pictures.first(KEY_IMAGES)
    with torch.enable_grad():
        loss = losses.ce(model(x.requires_grad_()), y).sum()
        grad = torch.autograd.grad(loss, x, allow_unused=True)[0] if loss.requires_grad else None
    if grad is None:
        raise UserError(
            "no gradient reaches the model's input (no_grad in its forward?); only natural and square can run"
        )
    if not grad.isfinite().all():
        raise UserError(
            "the gradient of the model's loss is NaN or infinite at a test image; only natural and square can run"
        )


def _described(value: object) -> str:
    return f"{dtype_name(value)} {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
