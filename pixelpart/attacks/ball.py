"""The images within the budget of x: start points, the projections (there are no others) and the final check.

The budget bounds the change of every pixel. In l2 and l1 it bounds the norm of the change: a radius, one number per
sample.
"""

import math
import reprlib
from numbers import Real

import torch
from jaxtyping import Float
from torch import Tensor

from pixelpart.errors import UserError, unknown
from pixelpart.types import Budget, Flags, Images

Noise = Float[Tensor, "*several b c h w"]
Lengths = Float[Tensor, "b 1 1 1"]
Radius = float | Lengths

STARTS = ("uniform", "normal", "none")
NORMAL_SCALE = 0.001
TOLERANCE = 1e-6  # how far outside the ball an image may be, for rounding
ORDERS = {"l2": 2, "l1": 1}  # p of the norms other than linf
TINY = 1e-30  # instead of a length of 0


def check_attack_inputs(
    x: Tensor,
    budget: float | Tensor,
    *,
    step_size: float,
    steps: int,
    norm: str = "linf",
    start: str | Tensor = "none",
) -> None:
    """Raises a UserError if an attack cannot run with these inputs; see also `check_attack_labels`.

    Values of tensors are checked only where that has no side effects: not in compiled or captured code.
    """
    if not x.is_floating_point():
        raise UserError(f"images are {str(x.dtype).removeprefix('torch.')}; they must be float in [0, 1]")
    if x.ndim != 4:
        raise UserError(f"images have shape {tuple(x.shape)}; they must be (b, c, h, w), so x[None] for one image")
    if not _is_number(steps) or not _is_number(step_size) or steps < 0 or not 0 <= step_size < math.inf:
        raise UserError(f"steps {steps!r} and step_size {step_size!r} must be numbers, finite and not negative")
    if not float(steps).is_integer():
        raise UserError(f"steps {steps!r} is not a whole number")
    if isinstance(start, Tensor) and start.shape[-x.ndim :] != x.shape:  # MMA has one for every target
        raise UserError(f"the start has shape {tuple(start.shape)}; the images have {tuple(x.shape)}")
    if isinstance(start, Tensor) and type(start) is Tensor and not bool(start.isfinite().all()):
        raise UserError("the start has NaN or infinite values")
    if not isinstance(budget, Tensor) and not _is_number(budget):
        raise UserError(
            f"budget {reprlib.repr(budget)} is not a number or a tensor; a change of 8 levels of 255 is 8/255"
        )
    if isinstance(budget, Tensor) and not budget.is_floating_point():
        raise UserError(f"the budget is {str(budget.dtype).removeprefix('torch.')}; it must be float")
    if norm != "linf":
        _check_radius(budget, norm)
    elif not isinstance(budget, Tensor):
        if not 0 <= budget <= 1:
            raise UserError(f"budget {budget} is not in [0, 1]; a change of 8 levels of 255 is 8/255")
    elif budget.ndim != 4 or any(have not in (1, want) for have, want in zip(budget.shape, x.shape, strict=True)):
        b, c, h, w = x.shape  # 4 dimensions, since (b, h, w) could be (c, h, w)
        raise UserError(f"the budget has shape {tuple(budget.shape)}; it must be a number or ({b}, 1 or {c}, {h}, {w})")
    elif type(budget) is Tensor and not bool(((budget >= 0) & (budget <= 1)).all()):
        raise UserError(f"the budget is in [{float(budget.min())}, {float(budget.max())}], not in [0, 1]")
    if type(x) is Tensor and not bool(((x >= 0) & (x <= 1)).all()):
        raise UserError(f"images are in [{float(x.min())}, {float(x.max())}], not in [0, 1]")


def check_attack_labels(y: Tensor, classes: int, *, n: int) -> None:
    """Raises a UserError unless y has a label, or a row of floats (targets, clean logits), for each of n images."""
    if y.is_floating_point() and y.shape == (n, classes):
        return
    if y.is_floating_point() or y.shape != (n,) or y.is_complex() or y.dtype == torch.bool:
        raise UserError(
            f"labels are {str(y.dtype).removeprefix('torch.')} of shape {tuple(y.shape)}; need ({n},) integers"
        )
    if type(y) is Tensor and not bool(((y >= 0) & (y < classes)).all()):
        raise UserError(f"labels are in [{int(y.min())}, {int(y.max())}]; the model has {classes} classes")


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _check_radius(radius: Budget, norm: str) -> None:
    values = radius if isinstance(radius, Tensor) else torch.tensor(float(radius))
    if values.ndim and values.shape[1:] != (1, 1, 1):
        raise UserError(f"the {norm} radius has shape {tuple(values.shape)}; it must be a number or (b, 1, 1, 1)")
    if type(values) is Tensor and not bool(((values >= 0) & values.isfinite()).all()):
        raise UserError(f"the {norm} radius {float(values.min())} must be finite and not negative")


def in_dtype_of(x: Images, budget: Budget) -> Budget:
    """The budget in the images' dtype: a budget in fp64 would make the images fp64."""
    return budget.to(x.dtype) if isinstance(budget, Tensor) else budget


def project(x_adv: Images, x: Images, budget: Budget) -> Images:
    """The nearest image with |x_adv - x| <= budget at every pixel and all values in [0, 1]; x is in [0, 1]."""
    return x_adv.maximum(x - budget).minimum(x + budget).clamp(0, 1)


def project_l2(x_adv: Images, x: Images, radius: Radius) -> Images:
    """x + d min(1, radius / |d|_2) with d = x_adv - x, clamped to [0, 1]; x is in [0, 1], so clamping shortens d.

    It is in the ball and in [0, 1], and the nearest such image where clamping changes nothing.
    """
    change = x_adv - x
    return (x + change * (radius / length(change, "l2").clamp(min=TINY)).clamp(max=1)).clamp(0, 1)


def project_l1(x_adv: Images, x: Images, radius: Radius) -> Images:
    """The nearest image with |x_adv - x|_1 <= radius and all values in [0, 1]; x is in [0, 1].

    It is x + sign(d) min(max(|d| - a, 0), room), with d = x_adv - x, room the distance from x to the end of [0, 1] that
    d points to, and a >= 0 as small as the radius allows; Croce and Hein 2021, "Mind the box". a is found by bisection
    to the last bit.
    """
    change = x_adv - x
    size, room = change.abs().flatten(1), torch.where(change > 0, 1 - x, x).flatten(1)
    zero, limit = torch.zeros_like(size), (size.new_zeros(len(x), 1, 1, 1) + radius).flatten(1)

    def shrunk(a: Tensor) -> Tensor:
        return (size - a).clamp(zero, room)

    def exceeds(a: Tensor) -> Tensor:
        return shrunk(a).sum(1, keepdim=True) > limit

    low = zero[:, :1]
    high = torch.where(exceeds(low), size.amax(1, keepdim=True), low)  # within the radius, here and below
    for _ in range(7 - round(math.log2(torch.finfo(x.dtype).eps))):
        middle = (low + high) / 2
        more = exceeds(middle)
        low, high = torch.where(more, middle, low), torch.where(more, high, middle)
    return (x + change.sign() * shrunk(high).view_as(x)).clamp(0, 1)


def unit(change: Images) -> Images:
    """change / |change|_2, or 0; divided by its largest entry first, since the square of a small one underflows."""
    large = change / change.abs().amax((1, 2, 3), keepdim=True).clamp(min=TINY)
    return large / length(large, "l2").clamp(min=TINY)


def length(change: Images, norm: str, dtype: torch.dtype | None = None) -> Lengths:
    """|change| in l2 or l1, summed in this dtype."""
    return torch.linalg.vector_norm(change, ORDERS[norm], dim=(1, 2, 3), keepdim=True, dtype=dtype)


def inside(x_adv: Images, x: Images, budget: Budget, *, norm: str = "linf") -> Flags:
    """Where |x_adv - x| <= budget at every pixel, up to rounding, and x_adv is in [0, 1].

    In l2 and l1 it is |x_adv - x| <= budget + 1e-6 max(1, |x_adv - x|).
    """
    if norm == "linf":
        near = (x_adv - x).abs() <= budget + TOLERANCE
    else:
        size = length(x_adv - x, norm, torch.float64)
        near = size <= budget + TOLERANCE * size.clamp(min=1)
    return (near & (x_adv >= 0) & (x_adv <= 1)).flatten(1).all(1)


def default_generator(x: Images) -> torch.Generator:
    """The generator of an attack that was given none: seed 0."""
    return torch.Generator(x.device).manual_seed(0)


def draw_noise(x: Noise, *, kind: str, generator: torch.Generator | None = None) -> Noise:
    """Noise for `start_point`: uniform in [-1, 1], standard normal, or zeros ("none"); no generator means seed 0."""
    if kind == "none":
        return torch.zeros_like(x)
    generator = generator or default_generator(x)
    if kind == "uniform":
        noise = 2 * torch.rand(x.shape, generator=generator, device=generator.device, dtype=x.dtype) - 1
    elif kind == "normal":
        noise = torch.randn(x.shape, generator=generator, device=generator.device, dtype=x.dtype)
    else:
        raise unknown("start", kind, STARTS)
    return noise.to(x.device)


def start_point(x: Images, budget: Budget, noise: Images, *, kind: str) -> Images:
    """Where an attack starts, projected: x + budget * noise ("uniform"), x + 0.001 * noise ("normal") or x ("none")."""
    if kind == "uniform":
        return project(x + budget * noise, x, budget)
    if kind == "normal":
        return project(x + NORMAL_SCALE * noise, x, budget)
    if kind == "none":
        return project(x, x, budget)
    raise unknown("start", kind, STARTS)


def first_image(x: Images, budget: Budget, *, start: str | Images, generator: torch.Generator | None = None) -> Images:
    """The first image of an attack: a random start of the named kind, or the given image batch, projected."""
    if isinstance(start, torch.Tensor):
        return project(start, x, budget)
    return start_point(x, budget, draw_noise(x, kind=start, generator=generator), kind=start)
