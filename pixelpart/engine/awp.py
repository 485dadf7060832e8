"""Adversarial weight perturbation (Wu et al. 2020): a step's gradient is taken where nearby weights do worst."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

TINY = 1e-20  # as in the authors' code: a weight without a gradient stays where it is


@contextmanager
def perturbed(
    model: nn.Module,
    objective: Callable[[], Tensor],
    *,
    gamma: float,
    agree: Callable[[Sequence[Tensor]], Sequence[Tensor]] = lambda grads: grads,
) -> Iterator[None]:
    """Inside, every weight of more than one dimension is w + gamma |w| g / |g|, with g the objective's gradient at w.

    The norms are each tensor's own. The objective is the one that is trained (for TRADES and MART the whole of it), as
    in the paper. The forward pass that g needs leaves batch-norm statistics as they were: those of a step come from the
    perturbed weights alone. `agree` makes of one process's gradients those of all. On leaving, the weights are as
    before, to the bit; with gamma 0 nothing happens at all.
    """
    if gamma == 0:
        yield
        return
    weights: list[Tensor] = [
        parameter for parameter in model.parameters() if parameter.ndim > 1 and parameter.requires_grad
    ]
    buffers = list(model.buffers())
    before, statistics = ([tensor.detach().clone() for tensor in tensors] for tensors in (weights, buffers))
    grads = torch.autograd.grad(objective(), weights, materialize_grads=True)  # 0 for a weight that takes no part
    with torch.no_grad():
        grads = tuple(agree(grads))
        for buffer, statistic in zip(buffers, statistics, strict=True):
            buffer.copy_(statistic)
        size, slope = torch.stack(torch._foreach_norm(weights)), torch.stack(torch._foreach_norm(grads))
        moves = torch._foreach_mul(grads, list((gamma * size / (slope + TINY)).unbind()))
        torch._foreach_add_(weights, list(moves))
    try:
        yield
    finally:
        with torch.no_grad():
            torch._foreach_copy_(weights, before)
