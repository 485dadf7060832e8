"""Projected gradient descent (Madry et al. 2018) inside a budget that may differ from pixel to pixel."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from pixelpart.attacks.ball import check_attack_inputs, check_attack_labels, first_image, in_dtype_of, project
from pixelpart.errors import UserError, choose
from pixelpart.losses import LOSSES, SampleLoss, kl
from pixelpart.types import Budget, Images, Labels, Logits, Model
from pixelpart.view.borrow import FrozenView, borrowed


def pgd(
    model: Model,
    x: Images,
    y: Labels | Logits,
    budget: Budget,
    *,
    step_size: float,
    steps: int,
    loss: str | SampleLoss = "ce",
    start: str | Images = "uniform",
    generator: torch.Generator | None = None,
    ascend: Callable[..., Images] | None = None,
) -> Images:
    """Adversarial images after `steps` times x_adv <- project(x_adv + step_size * sign(gradient of the loss)).

    y is what the loss compares the logits with: labels, class probabilities (b, k), or for "kl" the clean logits; if
    labels are given with "kl", the clean logits are computed once. `start` is uniform, normal, none, or a batch of
    images to start from, which are projected. `ascend` replaces `signed_step`. Without a generator every call draws the
    same noise: for restarts, and in a training loop, give all calls one generator.
    """
    loss_of = choose(LOSSES, loss, "loss") if isinstance(loss, str) else loss
    if not isinstance(model, FrozenView):  # a view comes from the training step, which must not wait for the device
        check_attack_inputs(x, budget, step_size=step_size, steps=steps, start=start)
    budget = in_dtype_of(x, budget)
    with torch.no_grad(), borrowed(model) as net:
        if not isinstance(model, FrozenView):
            check_attack_labels(y, net(x[:1]).shape[1], n=len(x))
        if not y.is_floating_point():
            y = net(x) if loss_of is kl else y.long()
        first = first_image(x, budget, start=start, generator=generator)
        if not isinstance(loss, str) and not isinstance(model, FrozenView):
            with torch.enable_grad():  # a loss may differentiate with respect to the logits itself
                check_loss(loss_of, net(first).requires_grad_(), y)
        return run_steps(net, x, y, budget, first, loss_of, step_size=step_size, steps=steps, ascend=ascend)


@torch.no_grad()
def run_steps(
    net: Model,
    x: Images,
    y: Labels | Logits,
    budget: Budget,
    first: Images,
    loss_of: SampleLoss,
    *,
    step_size: float,
    steps: int,
    ascend: Callable[..., Images] | None = None,
) -> Images:
    """The images after `steps` signed gradient steps from `first` on a frozen model."""
    x_adv = first.detach()
    for _ in range(steps):
        x_adv = (ascend or signed_step)(net, x_adv, x, y.detach(), budget, loss_of, step_size)
    return x_adv


def check_loss(loss_of: SampleLoss, logits: Logits, y: Labels | Logits) -> None:
    """A UserError that names the function unless it returns a finite number for each row of finite logits."""
    loss, name = loss_of(logits, y), getattr(loss_of, "__name__", repr(loss_of))
    if not isinstance(loss, Tensor) or loss.shape not in ((len(logits),), ()):
        returned = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
        raise UserError(f"the loss {name} returned {returned}; it must return one number per image, ({len(logits)},)")
    if type(loss) is Tensor and (count := int((logits.isfinite().all(1) & ~loss.isfinite()).sum())):
        raise UserError(f"the loss {name} returned NaN or infinite values for {count} of {len(logits)} images")


def total_loss(net: Model, x_adv: Images, y: Labels | Logits, loss_of: SampleLoss) -> Float[Tensor, ""]:
    """The sum over the batch: its gradient at an image is that of the image's own loss."""
    return loss_of(net(x_adv), y).sum()


def move(x_adv: Images, grad: Images, x: Images, budget: Budget, step_size: float) -> Images:
    """project(x_adv + step_size * sign(grad))"""
    return project(x_adv + step_size * grad.sign(), x, budget)


def signed_step(
    net: Model,
    x_adv: Images,
    x: Images,
    y: Labels | Logits,
    budget: Budget,
    loss_of: SampleLoss,
    step_size: float,
    *,
    total_loss: Callable[..., Tensor] = total_loss,
    move: Callable[..., Images] = move,
) -> Images:
    """One step up the loss; its two halves may be given in compiled form."""
    with torch.enable_grad():
        leaf = x_adv.detach().requires_grad_()
        (grad,) = torch.autograd.grad(total_loss(net, leaf, y, loss_of), leaf)
    return move(x_adv, grad, x, budget, step_size)
