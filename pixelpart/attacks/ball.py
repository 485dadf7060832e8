"""The images within the budget of x: how to get in (start) and how to stay in (the only projection there is)."""

import torch
from jaxtyping import Float
from torch import Tensor

from pixelpart.errors import UserError, unknown
from pixelpart.types import Budget, Flags, Images

Noise = Float[Tensor, "*several b c h w"]

STARTS = ("uniform", "normal", "none")
NORMAL_SCALE = 0.001
TOLERANCE = 1e-6  # how far outside the ball rounding may put an image that still counts as inside


def check(x: Tensor, budget: Budget, *, step_size: float, steps: int) -> None:
    """Returns if an attack can begin; a mistake in what was handed in is a UserError.

    Values inside tensors are looked at only where that is free of side effects: not in compiled or captured code.
    """
    if not x.is_floating_point():
        raise UserError(f"images are {str(x.dtype).removeprefix('torch.')}; give float in [0, 1]")
    if steps < 0 or not step_size >= 0:
        raise UserError(f"steps {steps} and step_size {step_size} must not be negative")
    if not isinstance(budget, Tensor):
        if not 0 <= budget <= 1:
            raise UserError(f"budget {budget} is not from 0 to 1; a change of 8 levels of 255 is 8/255")
    elif type(budget) is Tensor and not bool(((budget >= 0) & (budget <= 1)).all()):
        raise UserError(f"the budget lies in [{float(budget.min())}, {float(budget.max())}], not in [0, 1]")
    if type(x) is Tensor and not bool(((x >= 0) & (x <= 1)).all()):
        raise UserError(f"images lie in [{float(x.min())}, {float(x.max())}], not in [0, 1]")


def project(x_adv: Images, x: Images, budget: Budget) -> Images:
    """The nearest image with |x_adv - x| <= budget at every pixel and all values in [0, 1], where x lies too."""
    return x_adv.maximum(x - budget).minimum(x + budget).clamp(0, 1)


def inside(x_adv: Images, x: Images, budget: Budget) -> Flags:
    """Where |x_adv - x| <= budget at every pixel, but for rounding, and x_adv is in [0, 1]."""
    return (((x_adv - x).abs() <= budget + TOLERANCE) & (x_adv >= 0) & (x_adv <= 1)).flatten(1).all(1)


def seeded(x: Images) -> torch.Generator:
    """The generator that stands in where none is handed in."""
    return torch.Generator(x.device).manual_seed(0)


def draw_noise(x: Noise, *, kind: str, generator: torch.Generator | None = None) -> Noise:
    """Noise for `start_point`: uniform in [-1, 1], standard normal, or zeros ("none"); no generator means seed 0."""
    if kind == "none":
        return torch.zeros_like(x)
    generator = generator or seeded(x)
    if kind == "uniform":
        noise = 2 * torch.rand(x.shape, generator=generator, device=generator.device, dtype=x.dtype) - 1
    elif kind == "normal":
        noise = torch.randn(x.shape, generator=generator, device=generator.device, dtype=x.dtype)
    else:
        raise unknown("start", kind, STARTS)
    return noise.to(x.device)


def start_point(x: Images, budget: Budget, noise: Images, *, kind: str) -> Images:
    """Where an attack begins, projected: x + budget * noise ("uniform"), x + 0.001 * noise ("normal") or x ("none")."""
    if kind == "uniform":
        return project(x + budget * noise, x, budget)
    if kind == "normal":
        return project(x + NORMAL_SCALE * noise, x, budget)
    if kind == "none":
        return project(x, x, budget)
    raise unknown("start", kind, STARTS)


def begin(x: Images, budget: Budget, *, start: str | Images, generator: torch.Generator | None = None) -> Images:
    """The first image of an attack: a start of the named kind, or the image batch handed in, projected."""
    if isinstance(start, torch.Tensor):
        return project(start, x, budget)
    return start_point(x, budget, draw_noise(x, kind=start, generator=generator), kind=start)
