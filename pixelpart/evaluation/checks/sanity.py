"""Warnings about numbers that look unreliable, from a few images each.

A warning does not change a number. It is stored with the result and printed below the table.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from pixelpart import losses
from pixelpart.attacks.search import has_no_direction
from pixelpart.config import write_fraction
from pixelpart.evaluation.attack_spec import AttackSpec
from pixelpart.evaluation.images import ImageSet, logits_of
from pixelpart.evaluation.target import Target
from pixelpart.types import Flags, Images, Labels, Logits, Model, PerSample

CHECKED_IMAGES = 64  # images per check, evenly spread over the set
SCALE_IMAGES = 256  # a weak model that normalises twice loses half its accuracy, which 64 images do not show
REPEAT_TOLERANCE = 1e-4  # of the largest logit: allowed difference between two passes over one batch
BATCH_TOLERANCE = 1e-3  # the same between batch sizes, which may use other kernels
SIGNIFICANCE = 1e-3  # of the test that one accuracy is higher than another
STEP = 1 / 255  # along the gradient, where the loss should rise
SMALL_STEP = 1e-4  # along the gradient, where the margin should rise as fast as the gradient predicts
MAX_MISLED = 0.25  # share of images whose gradient may fail; 0 on sound models, 0.5 for random directions
MAX_ERROR = 0.5  # of the predicted rise; sound models are off by 1 %
MIN_CONFIDENCE = 0.2  # confidence above chance, as a share of accuracy above chance; sound models have 0.4 to 1
MIN_OTHERS = 10  # images of other classes that are all predicted as one class: no chance result
MAX_SQUARE = 0.002  # share of images that only Square breaks; AutoAttack warns above it

RANDOM = (
    "two passes over the same images differ: the model is random, and this number differs from call to call. Attacks "
    "that do not average over the randomness (EOT) are too weak, and an error by chance counts as their success"
)
PROBABILITIES = (
    "all outputs lie in [0, 1]: they look like probabilities (of a sigmoid, for example), not logits, and the "
    "gradients of losses for logits vanish"
)
BATCH = "the logits of an image depend on the other images in its batch, so this number depends on the batch size"

# usual mean and standard deviation per channel, next to those of the images themselves
STATISTICS = {
    "mean 0.5 and std 0.5": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    "ImageNet's mean and std": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
}


def attack_warnings(model: Model, target: Target, specs: Sequence[AttackSpec]) -> dict[str, list[str]]:
    """The warnings about each attack's result, by its name; the model and its gradients are checked once."""
    if not specs:
        return {}
    for_all = [*target.warnings, *model_warnings(model, target.pictures)]
    by_loss: dict[str, list[str]] = {}
    if any(spec.needs_gradient for spec in specs):
        by_loss = gradient_warnings(model, target.pictures)

    def of_attack(spec: AttackSpec) -> list[str]:
        if not spec.needs_gradient:
            return []
        followed = ("cross-entropy", "margin") if spec.follows_cross_entropy_only else ("margin",)
        of_losses = [warning for loss in followed for warning in by_loss[loss]]
        return [*of_losses, *settings_warnings(spec.eps, spec.settings)]

    return {spec.name: [*for_all, *of_attack(spec)] for spec in specs}


def settings_warnings(eps: float, settings: Mapping[str, Any]) -> list[str]:
    """Warns if the attack's budget is not eps everywhere, if it cannot cross the ball, or does so in every step."""
    warnings = []
    if "eps_low" in settings:
        high, low = write_fraction(eps), write_fraction(settings["eps_low"])
        warnings.append(
            f"outside the threat model: the budget is {high} where the model's mask is high and {low} elsewhere"
        )
    if "step_size" in settings and settings["steps"] * settings["step_size"] < eps * (1 - 1e-6):
        numbers = f"{settings['steps']} * {write_fraction(settings['step_size'])} < {write_fraction(eps)}"
        warnings.append(f"steps * step_size < eps ({numbers}): the attack cannot reach the edge of the eps ball")
    if "step_size" in settings and settings["steps"] > 1 and settings["step_size"] > eps * (1 - 1e-6):
        numbers = f"{write_fraction(settings['step_size'])} >= {write_fraction(eps)}"
        warnings.append(
            f"step_size >= eps ({numbers}): every step crosses the eps ball; smaller steps usually break more images"
        )
    return warnings


def square_warnings(left: Mapping[str, int], n: int) -> list[str]:
    """Warns if Square, which uses no gradient, broke more than MAX_SQUARE of n images that no white-box attack broke.

    `left` has the number of images still correct after each attack of AutoAttack, whose own rule this is (Croce and
    Hein 2020).
    """
    white_box = [count for name, count in left.items() if name != "square"]
    broken = min(white_box) - left["square"] if white_box and "square" in left else 0
    if broken <= MAX_SQUARE * n:
        return []
    return [
        f"Square, which uses no gradient, broke {broken} of {n} images that the white-box attacks did not break: "
        "gradients may be masked"
    ]


def model_warnings(model: Model, pictures: ImageSet) -> list[str]:
    """Warns if the model is random, depends on the batch, returns probabilities, needs another scale or is constant."""
    x, _ = checked_images(pictures)
    logits, half, warnings = logits_of(model, x), len(x) // 2, []
    if _differ(logits, logits_of(model, x), tolerance=REPEAT_TOLERANCE):
        warnings.append(RANDOM)
    elif _differ(logits[half:], logits_of(model, x[half:]), tolerance=BATCH_TOLERANCE):  # at other positions too
        warnings.append(BATCH)
    if 0 <= logits.min() < logits.max() <= 1:
        warnings.append(PROBABILITIES)
    x, y = checked_images(pictures, SCALE_IMAGES)
    return warnings + (scale_warnings(model, x, y) or constant_warnings(model, x, y) or chance_warnings(model, x, y))


def scale_warnings(model: Model, x: Images, y: Labels) -> list[str]:
    """Warns if the model is more accurate on another scale than [0,1], and there than the most frequent class."""
    correct = logits_of(model, x).argmax(1) == y
    constant = y == y.mode().values
    best, warnings = int(correct.sum()), []
    for description, rescaled in other_scales(x).items():
        try:
            other = logits_of(model, rescaled).argmax(1) == y
        except Exception:  # the user's own code may reject such images
            continue
        if int(other.sum()) > best and _better(other, correct) and _better(other, constant):
            best = int(other.sum())
            warnings = [f"the model gets {int(correct.sum())} of {len(y)} images right, but {best} {description}"]
    return warnings


def constant_warnings(model: Model, x: Images, y: Labels) -> list[str]:
    """Warns if the model predicts the same class for all images, as one does whose training collapsed."""
    predicted = logits_of(model, x).argmax(1)
    if bool((predicted != predicted[0]).any()) or int((y != predicted[0]).sum()) < MIN_OTHERS:
        return []
    return [
        f"all {len(y)} images examined are predicted as class {int(predicted[0])}: the model has learned nothing, and "
        "no attack can lower the share of images of that class"
    ]


def chance_warnings(model: Model, x: Images, y: Labels) -> list[str]:
    """Warns if the model is right less often than guessing, as it is if labels and outputs are numbered differently."""
    logits, n = logits_of(model, x), len(y)
    correct, chance = int((logits.argmax(1) == y).sum()), 1 / logits.shape[1]
    if sum(math.comb(n, k) * chance**k * (1 - chance) ** (n - k) for k in range(correct + 1)) >= SIGNIFICANCE:
        return []
    return [
        f"the model gets {correct} of {n} images right, fewer than guessing among its {logits.shape[1]} classes: does "
        "label k mean output k?"
    ]


def other_scales(x: Images) -> dict[str, Images]:
    """[0,1] images as a model trained on another scale may expect them, each with a description."""
    std, mean = torch.std_mean(x, dim=(0, 2, 3), correction=0)
    statistics = {"their own mean and std": (mean, std.clamp(min=1e-3))}
    if x.shape[1] == 3:
        statistics |= {name: (x.new_tensor(mean), x.new_tensor(std)) for name, (mean, std) in STATISTICS.items()}
    scales = {"if pixels range from 0 to 255: was it trained on those?": 255 * x}
    for name, pair in statistics.items():
        mean, std = (values[:, None, None] for values in pair)
        scales[f"if they are normalised by {name}: is its normalisation missing?"] = (x - mean) / std
        scales[f"if a normalisation by {name} is undone first: does it normalise twice?"] = x * std + mean
    return scales


def gradient_warnings(model: Model, pictures: ImageSet) -> dict[str, list[str]]:
    """Warns, by loss, if its gradient is zero, NaN or misleading at images that the model classifies correctly."""
    x, y = checked_images(pictures)
    with torch.enable_grad():
        logits = model(x.requires_grad_())
        sums = {"cross-entropy": losses.ce(logits, y).sum(), "margin": losses.margin(logits, y).sum()}
        grads = {name: torch.autograd.grad(total, x, retain_graph=True)[0] for name, total in sums.items()}
    x, logits = x.detach(), logits.detach()
    correct, warnings = logits.argmax(1) == y, {name: list[str]() for name in grads}
    images = f"of {int(correct.sum())} correct images"
    for name, grad in grads.items():
        if count := int((correct & has_no_direction(grad)).sum()):
            warnings[name].append(
                f"the gradient of the {name} is zero or NaN at {count} {images}: attacks cannot use it"
            )
    misled = int((correct & _mispredicts(model, x, y, grads["margin"])).sum())
    if misled > MAX_MISLED * int(correct.sum()):
        warnings["margin"].append(
            f"the margin does not rise as its gradient predicts at {misled} {images}: the gradient is wrong or that of "
            "another function (a straight-through estimate), or the model is not smooth"
        )
    with torch.no_grad():
        stepped = model((x + STEP * grads["cross-entropy"].sign()).clamp(0, 1))
    falls = int((correct & (_log_odds_against(stepped, y) < _log_odds_against(logits, y))).sum())
    if falls > MAX_MISLED * int(correct.sum()):
        warnings["cross-entropy"].append(
            f"a step of 1/255 along its gradient lowers the cross-entropy at {falls} {images}: an attack is misled"
        )
    warnings["cross-entropy"] += confidence_warnings(logits, y)
    return warnings


def confidence_warnings(logits: Logits, y: Labels) -> list[str]:
    """Warns if the model is far less confident than accurate: mean(max_k p_k) - 1/K < MIN_CONFIDENCE (accuracy - 1/K).

    The cross-entropy's gradient is the sum of p_k (grad z_k - grad z_y): if logits are scaled down, all wrong classes
    have the same weight and it aims at none of them. With K = 2 there is only one wrong class.
    """
    correct, chance = logits.argmax(1) == y, 1 / logits.shape[1]
    confidence, accuracy = float(logits.softmax(1).amax(1).mean()), float(correct.double().mean())
    if chance == 0.5 or confidence - chance >= MIN_CONFIDENCE * (accuracy - chance):
        return []
    if not _better(correct, y == y.mode().values):
        return []
    return [
        f"the model's accuracy is {accuracy:.0%} and its mean confidence {confidence:.1%}, barely above chance: its "
        "logits are scaled down, and an attack by the cross-entropy aims at no class"
    ]


@torch.no_grad()
def _mispredicts(model: Model, x: Images, y: Labels, grad: Images) -> Flags:
    """Where the gradient mispredicts the change of the margin m between SMALL_STEP against and along its sign.

    |m(x_1) - m(x_0) - (x_1 - x_0) . grad| > MAX_ERROR (x_1 - x_0) . grad; a gradient of 0 predicts nothing.
    """
    ends = [(x + step * grad.sign()).clamp(0, 1) for step in (-SMALL_STEP, SMALL_STEP)]
    low, high = (losses.margin(model(end).double(), y) for end in ends)
    predicted = ((ends[1] - ends[0]).double() * grad).flatten(1).sum(1)
    return (high - low - predicted).abs() > MAX_ERROR * predicted


def _log_odds_against(logits: Logits, y: Labels) -> PerSample:
    """log((1 - p_y) / p_y), which rises with the cross-entropy but does not round to 0 for a confident model."""
    logits = logits.double()
    return losses.without(logits, y).logsumexp(1) - losses.at_class(logits, y)


def checked_images(pictures: ImageSet, most: int = CHECKED_IMAGES) -> tuple[Images, Labels]:
    """A few images, evenly spread, since a set may be sorted by class."""
    n = min(most, len(pictures))
    return pictures.take(torch.arange(n) * len(pictures) // n)


def _differ(a: Logits, b: Logits, *, tolerance: float) -> bool:
    return bool((a - b).abs().max() > tolerance * torch.maximum(a.abs().max(), b.abs().max()))


def _better(a: Tensor, b: Tensor) -> bool:
    """Whether the exact one-sided sign test finds flags a true more often than flags b."""
    wins, n = int((a & ~b).sum()), int((a ^ b).sum())
    return sum(math.comb(n, k) for k in range(wins, n + 1)) < SIGNIFICANCE * 2**n
