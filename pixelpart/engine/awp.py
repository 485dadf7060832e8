"""Adversarial weight perturbation (Wu et al. 2020): the gradient is taken at the worst weights nearby."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

TINY = 1e-20  # as in the authors' code; a weight with zero gradient is not moved


@contextmanager
def perturbed(
    model: nn.Module,
    loss_function: Callable[[], Tensor],
    *,
    gamma: float,
    all_mean: Callable[[Sequence[Tensor]], Sequence[Tensor]] = lambda grads: grads,
) -> Iterator[None]:
    """Inside the block, every weight of more than one dimension is w + gamma |w| g / |g|, g the loss's gradient at w.

    The norms are those of each tensor. The loss is the whole training loss, also for TRADES and MART, as in the paper.
    The forward pass for g leaves batch-norm statistics unchanged. `all_mean` averages gradients over processes. On
    exit the weights are restored to the bit.
    """
    weights: list[Tensor] = [
        parameter for parameter in model.parameters() if parameter.ndim > 1 and parameter.requires_grad
    ]
    buffers = list(model.buffers())
    before, statistics = ([tensor.detach().clone() for tensor in tensors] for tensors in (weights, buffers))
    grads = torch.autograd.grad(loss_function(), weights, materialize_grads=True)  # 0 for unused weights
    with torch.no_grad():
        grads = tuple(all_mean(grads))
        for buffer, statistic in zip(buffers, statistics, strict=True):
            buffer.copy_(statistic)
        norms, slopes = torch.stack(torch._foreach_norm(weights)), torch.stack(torch._foreach_norm(grads))
        moves = torch._foreach_mul(grads, list((gamma * norms / (slopes + TINY)).unbind()))
        torch._foreach_add_(weights, list(moves))
    try:
        yield
    finally:
        with torch.no_grad():
            torch._foreach_copy_(weights, before)
