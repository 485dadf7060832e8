"""Can this number be trusted? Each check looks at a few images and returns warnings, none where all is well.

A warning does not change a figure. It goes with it: into its entry and under the table.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd

from pixelpart import losses
from pixelpart.attacks.search import has_no_direction
from pixelpart.config import write_fraction
from pixelpart.evaluation.accuracy import logits_of
from pixelpart.evaluation.image_set import ImageSet
from pixelpart.types import Flags, Images, Labels, Logits, Model, PerSample

Warnings = list[str]

PROBES = 64  # images that are looked at, spread over all
MORE = 256  # the same on other scales: normalised twice, a weak model is right half as often, and 64 do not tell
ROUNDING = 1e-4  # of the largest logit: what two passes over one batch may differ by
REBATCHING = 1e-3  # the same for other batch sizes, which may take other kernels
CHANCE = 1e-3  # how probable a difference between two shares may be if there is none
STEP = 1 / 255  # by which a gradient is followed, to see whether its loss rises
DOWN = 0.25  # share of the images at which it may fall instead: none on honest models, half where the way is random
NEAR = 1e-4  # by which it is followed, to see whether the margin rises as fast as it tells
FAINT = 0.2  # of what it is right beyond chance, how sure a model is at least: honest ones by 0.4 to 1 of it
OFF = 0.5  # by how much of that it may be off; honest models are by 1 %, and at most DOWN of the images may be off more
SQUARE = 0.002  # share of images that Square may break of what gradients left standing; AutoAttack warns from there on

TRAIN_MODE = "the model came in train mode, with dropout or batch norm in it; it was judged in eval mode"
RANDOM = (
    "two passes over the same images differ: the model is random, an attack has to average over its draws (EOT), "
    "and these figures overstate its robustness"
)
SQUASHED = (
    "all outputs lie in [0, 1]: they seem to be probabilities, of a sigmoid for example, and not logits, and the "
    "gradients of losses made for logits vanish"
)
BATCH = "the logits of an image depend on the other images in its batch, and so do these figures on the batch size"

# By what mean and deviation a channel people normalise, besides those of the images themselves.
STATISTICS = {
    "0.5 and 0.5": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    "ImageNet's mean and deviation": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
}


def mode_warnings(model: nn.Module) -> Warnings:
    """Whether a module, as its owner hands it over, has layers in train mode that would act otherwise than in eval."""

    def acts(module: nn.Module) -> bool:
        if isinstance(module, _DropoutNd):
            return module.p > 0
        return isinstance(module, _NormBase) and module.running_mean is not None

    return [TRAIN_MODE] if any(module.training and acts(module) for module in model.modules()) else []


def settings_warnings(eps: float, settings: Mapping[str, Any]) -> Warnings:
    """Whether an attack stays in the ball, and can cross it with its steps: steps * step_size >= eps.

    One whose settings have an eps_low takes eps where the model's mask says important, whatever eps is asked for.
    """
    warnings = []
    if "eps_low" in settings:
        high, low = write_fraction(eps), write_fraction(settings["eps_low"])
        warnings = [
            f"outside the threat model: the budget is {high} where the model's mask says important, {low} elsewhere"
        ]
    if "step_size" in settings and settings["steps"] * settings["step_size"] < eps * (1 - 1e-6):
        way = f"{settings['steps']} * {write_fraction(settings['step_size'])} < {write_fraction(eps)}"
        warnings.append(f"steps * step_size < eps ({way}): the attack cannot reach all that eps allows")
    return warnings


def square_warnings(left: Mapping[str, int], n: int) -> Warnings:
    """Whether Square, which sees no gradient, broke more than SQUARE of the images that the other parts left standing.

    `left` has the images still right after each part, in the order in which they ran, out of n. The rule is
    AutoAttack's own (Croce and Hein 2020): by the least that any other part left.
    """
    squares = [count for name, count in left.items() if name.startswith("square")]  # it may have run twice
    others = [count for name, count in left.items() if not name.startswith("square")]
    if not squares or not others or min(others) - min(squares) <= SQUARE * n:
        return []
    return [
        f"Square, which needs no gradient, broke {min(others) - min(squares)} of {n} images that the white-box "
        "parts left standing: their gradients may be masked"
    ]


def model_warnings(model: Model, pictures: ImageSet) -> Warnings:
    """Whether the model is random, depends on the batch, squashes its logits, or is better on another scale."""
    x, _ = probes(pictures)
    logits, half, warnings = logits_of(model, x), len(x) // 2, []
    if _differ(logits, logits_of(model, x), share=ROUNDING):
        warnings.append(RANDOM)
    elif _differ(logits[half:], logits_of(model, x[half:]), share=REBATCHING):  # in other places too
        warnings.append(BATCH)
    if 0 <= logits.min() < logits.max() <= 1:
        warnings.append(SQUASHED)
    return warnings + scale_warnings(model, *probes(pictures, MORE))


def scale_warnings(model: Model, x: Images, y: Labels) -> Warnings:
    """Whether the model answers better on another scale than on [0,1], and better there than one class for all would.

    Both by an exact sign test at CHANCE: of the images on which two answers differ in being right, as many would favour
    either if neither were better.
    """
    right = logits_of(model, x).argmax(1) == y
    blind = y == y.mode().values
    best, warnings = int(right.sum()), []
    for words, other in scales(x).items():
        try:
            answers = logits_of(model, other).argmax(1) == y
        except Exception:  # the user's own code, on images that it may rightly refuse
            continue
        if int(answers.sum()) > best and _better(answers, right) and _better(answers, blind):
            best, n = int(answers.sum()), len(y)
            warnings = [f"of {n} images the model gets {int(right.sum())} right as they are, and {best} {words}"]
    return warnings


def scales(x: Images) -> dict[str, Images]:
    """[0,1] images as a model may want them that was trained on others, each with words for it."""
    std, mean = torch.std_mean(x, dim=(0, 2, 3), correction=0)
    known = {"their own mean and deviation": (mean, std.clamp(min=1e-3))}
    if x.shape[1] == 3:
        known |= {name: (x.new_tensor(centre), x.new_tensor(width)) for name, (centre, width) in STATISTICS.items()}
    made = {"when pixels run from 0 to 255: was it trained on those?": 255 * x}
    for name, (centre, width) in known.items():
        mean, std = centre[:, None, None], width[:, None, None]
        made[f"when normalised (by {name}): does it lack its normalisation?"] = (x - mean) / std
        made[f"when a normalisation is undone beforehand (by {name}): does it normalise twice?"] = x * std + mean
    return made


def gradient_warnings(model: Model, pictures: ImageSet) -> Warnings:
    """At how many images that are right a loss has no gradient that an attack could follow, or one that leads down."""
    x, y = probes(pictures)
    with torch.enable_grad():
        logits = model(x.requires_grad_())
        totals = {"cross-entropy": losses.ce(logits, y).sum(), "margin": losses.margin(logits, y).sum()}
        grads = {name: torch.autograd.grad(total, x, retain_graph=True)[0] for name, total in totals.items()}
    x, logits = x.detach(), logits.detach()
    right, warnings = logits.argmax(1) == y, []
    for name, grad in grads.items():
        count = int((right & has_no_direction(grad)).sum())
        if count:
            where = f"{count} of {int(right.sum())} images that are right"
            warnings.append(f"the gradient of the {name} is zero or NaN at {where}: an attack by it stands still there")
    off = int((right & _misleads(model, x, y, grads["margin"])).sum())
    if off > DOWN * int(right.sum()):
        warnings.append(
            f"the margin does not rise along its gradient as that tells at {off} of {int(right.sum())} images that are "
            "right: it is the gradient of another function (a straight-through estimate, or wrong), or this one jumps"
        )
    with torch.no_grad():
        stepped = model((x + STEP * grads["cross-entropy"].sign()).clamp(0, 1))
    falls = int((right & (_odds(stepped, y) < _odds(logits, y))).sum())
    if falls > DOWN * int(right.sum()):
        warnings.append(
            f"the cross-entropy falls by a small step along its gradient at {falls} of {int(right.sum())} images that "
            "are right: an attack by it is led astray"
        )
    return warnings + confidence_warnings(logits, y)


def confidence_warnings(logits: Logits, y: Labels) -> Warnings:
    """Whether the model is right far more often than it is sure: mean(max_k p_k) - 1/K < FAINT (accuracy - 1/K).

    The cross-entropy's gradient is the sum of p_k (grad z_k - grad z_y): where logits are scaled down all wrong classes
    weigh alike, and it aims at none. Of two classes, K = 2, only one is wrong.
    """
    right, chance = logits.argmax(1) == y, 1 / logits.shape[1]
    sure, share = float(logits.softmax(1).amax(1).mean()), float(right.double().mean())
    if chance == 0.5 or sure - chance >= FAINT * (share - chance) or not _better(right, y == y.mode().values):
        return []
    return [
        f"the model is right about {share:.0%} of the images and sure of its answers by {sure:.1%}, barely more than "
        "chance: its logits are scaled down, and an attack by the cross-entropy aims at no class"
    ]


@torch.no_grad()
def _misleads(model: Model, x: Images, y: Labels, grad: Images) -> Flags:
    """Where the margin m changes otherwise than told, by steps of NEAR both ways along the gradient's sign.

    Told is (x_1 - x_0) . grad, and |m(x_1) - m(x_0) - told| <= OFF told for an honest gradient; one of 0 tells nothing.
    """
    ends = [(x + step * grad.sign()).clamp(0, 1) for step in (-NEAR, NEAR)]
    low, high = (losses.margin(model(end).double(), y) for end in ends)
    told = ((ends[1] - ends[0]).double() * grad).flatten(1).sum(1)
    return (high - low - told).abs() > OFF * told


def _odds(logits: Logits, y: Labels) -> PerSample:
    """log((1 - p_y) / p_y), which rises with the cross-entropy and does not round to 0 where the model is sure."""
    sums = logits.double()
    return losses.without(sums, y).logsumexp(1) - losses.at_class(sums, y)


def probes(pictures: ImageSet, most: int = PROBES) -> tuple[Images, Labels]:
    """A few images, evenly spread: a set may be sorted by class."""
    n = min(most, len(pictures))
    return pictures.take(torch.arange(n) * len(pictures) // n)


def _differ(a: Logits, b: Logits, *, share: float) -> bool:
    return bool((a - b).abs().max() > share * torch.maximum(a.abs().max(), b.abs().max()))


def _better(a: Tensor, b: Tensor) -> bool:
    wins, n = int((a & ~b).sum()), int((a ^ b).sum())
    return sum(math.comb(n, k) for k in range(wins, n + 1)) < CHANCE * 2**n
