"""Losses per sample, for attacks and objectives: the larger, the worse for the model."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from pixelpart.errors import UserError
from pixelpart.types import Labels, Logits, PerSample, Probabilities, Targets


def ce(logits: Logits, y: Targets) -> PerSample:
    """Cross-entropy: -log p_y, or -sum_k y_k log p_k where y are probabilities."""
    return F.cross_entropy(logits, y, reduction="none")


def kl(logits: Logits, clean_logits: Logits) -> PerSample:
    """KL(p_clean || p) = sum_k p_clean,k (log p_clean,k - log p_k)."""
    log_p, log_clean = logits.log_softmax(1), clean_logits.log_softmax(1)
    return (log_clean.exp() * (log_clean - log_p)).sum(1)


def margin(logits: Logits, y: Labels) -> PerSample:
    """max_{k != y} z_k - z_y: negative where the prediction is correct."""
    return without(logits, y).amax(1) - at_class(logits, y)


def dlr(logits: Logits, y: Labels) -> PerSample:
    """Difference of logits ratio: (max_{k != y} z_k - z_y) / (z_1st - z_3rd), negative where the prediction is correct.

    Unchanged by a shift or a scale of the logits; Croce and Hein 2020, AutoAttack, where the 1e-12 comes from.
    """
    if logits.shape[1] < 3:
        raise UserError(f"the loss dlr needs at least 3 classes, not {logits.shape[1]}; choose ce, kl or margin")
    top = logits.topk(3, dim=1).values
    return margin(logits, y) / (top[:, 0] - top[:, 2] + 1e-12)


def targeted_margin(logits: Logits, y: Labels, target: Labels) -> PerSample:
    """z_t - z_y for the target class t."""
    return at_class(logits, target) - at_class(logits, y)


def targeted_dlr(logits: Logits, y: Labels, target: Labels) -> PerSample:
    """(z_t - z_y) / (z_1st - (z_3rd + z_4th) / 2 + 1e-12) for the target class t; Croce and Hein 2020, AutoAttack.

    With three classes there is no 4th logit, and the denominator is z_1st - z_3rd as in `dlr`. With two classes it
    would be z_1st - z_2nd and the ratio constant, so the loss is z_t - z_y itself.
    """
    lead = targeted_margin(logits, y, target)
    if logits.shape[1] < 3:
        return lead
    top = logits.topk(min(4, logits.shape[1]), dim=1).values
    return lead / (top[:, 0] - top[:, 2:].mean(1) + 1e-12)


def at_class(logits: Logits, y: Labels) -> PerSample:
    """z_y of every sample."""
    return logits.gather(1, y[:, None]).squeeze(1)


def without(logits: Logits, y: Labels) -> Logits:
    """The logits with class y at -inf, so that a maximum or a logsumexp runs over the others."""
    classes = torch.arange(logits.shape[1], device=logits.device)
    return logits.masked_fill(classes == y[:, None], -torch.inf)


def one_hot(y: Labels, classes: int, *, dtype: torch.dtype = torch.float32) -> Probabilities:
    """Probability 1 for class y, 0 for the others."""
    return (y[:, None] == torch.arange(classes, device=y.device)).to(dtype)


def likeliest(y: Targets) -> Labels:
    """The label, or the class of the largest probability."""
    return y.argmax(1) if y.is_floating_point() else y


def smoothed(y: Targets, smoothing: float, classes: int, *, dtype: torch.dtype = torch.float32) -> Probabilities:
    """Label smoothing (Szegedy et al. 2016): (1 - s) y + s / k."""
    certain = y if y.is_floating_point() else one_hot(y, classes, dtype=dtype)
    return (1 - smoothing) * certain + smoothing / classes


SampleLoss = Callable[[Tensor, Tensor], Tensor]

LOSSES: dict[str, SampleLoss] = {"ce": ce, "kl": kl, "margin": margin, "dlr": dlr}
