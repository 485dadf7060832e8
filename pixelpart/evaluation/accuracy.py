"""Which images a model still gets right: as they are, and after an attack has tried.

A sample counts as broken only if the model errs, in fp32, on an input that lies inside the ball and inside [0,1]. The
image itself is such an input, so an attack tries only what is right to begin with, and robust accuracy is never above
natural accuracy.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from pixelpart import draws, losses
from pixelpart.attacks import ATTACKS
from pixelpart.attacks.ball import draw_noise, inside, start_point
from pixelpart.config import DEFAULT_EPS, DEFAULT_SEED
from pixelpart.data import check_labels
from pixelpart.errors import UserError
from pixelpart.evaluation.image_set import ImageSet
from pixelpart.evaluation.journal import Journal
from pixelpart.types import Budget, Flags, Images, Labels, Logits, Model

Report = Callable[[int, int], None]  # images settled so far, how many of them are right
Attempt = Callable[[Tensor, Images, Labels, int], Flags]  # sample numbers, images, labels, try -> which are broken


def natural(
    model: nn.Module, pictures: ImageSet, *, batch_size: int, report: Report = lambda settled, right: None
) -> Flags:
    """Which images the model gets right as they are."""
    right = torch.zeros(len(pictures), dtype=torch.bool)
    for index in _batches(torch.arange(len(pictures)), batch_size):
        x, y = pictures.take(index)
        right[index] = (logits_of(model, x).argmax(1) == y).cpu()
        settled = int(index[-1]) + 1
        report(settled, int(right[:settled].sum()))
    return right


def under_attack(
    model: nn.Module,
    pictures: ImageSet,
    *,
    kind: str,
    right: Flags,
    eps: float,
    step_size: float,
    steps: int,
    restarts: int,
    seed: int,
    batch_size: int,
    report: Report,
    journal: Journal | None = None,
    net: Model | None = None,
) -> Flags:
    """Which of the images that are `right` to begin with stay right under the attack of this name in ATTACKS.

    It may search through another view `net` of the model; the model decides.
    """
    net = model if net is None else net

    def attempt(index: Tensor, x: Images, y: Labels, restart: int) -> Flags:
        start = start_images(index, x, eps, kind=kind, steps=steps, seed=seed, restart=restart)
        x_adv = ATTACKS[kind].run(net, x, y, eps, step_size=step_size, steps=steps, start=start)
        return errs_inside(model, x, x_adv, y, eps=eps)

    return after_tries(
        attempt, pictures, right=right, tries=restarts, batch_size=batch_size, report=report, journal=journal
    )


def after_tries(
    attempt: Attempt,
    pictures: ImageSet,
    *,
    right: Flags,
    tries: int,
    batch_size: int,
    report: Report = lambda settled, right: None,
    journal: Journal | None = None,
) -> Flags:
    """Which of the images that are `right` to begin with no try breaks.

    Only survivors go on to the next try, and what the journal knows is not done again.
    """
    right, journal = right.clone(), journal or Journal()
    for batch in _batches(right.nonzero()[:, 0], batch_size):
        for number in range(tries):
            known = {n: journal.done[0, n, number] for n in batch.tolist() if (0, n, number) in journal.done}
            right[[n for n, broken in known.items() if broken]] = False
            live = torch.tensor([n for n in batch.tolist() if right[n] and n not in known], dtype=torch.long)
            if not len(live):
                continue
            broken = attempt(live, *pictures.take(live), number).cpu()
            right[live[broken]] = False
            for n, wrong in zip(live.tolist(), broken.tolist(), strict=True):
                journal.settle(0, n, number, wrong)
        # images in between that were wrong to begin with are settled as well
        settled = int(batch[-1]) + 1
        report(settled, int(right[:settled].sum()))
    report(len(pictures), int(right.sum()))
    return right


def start_images(index: Tensor, x: Images, eps: Budget, *, kind: str, steps: int, seed: int, restart: int) -> Tensor:
    """Where a restart of an attack begins: images like x, or (starts, b, c, h, w) for an attack that takes several."""
    starts = ATTACKS[kind].starts
    numbers = range(restart * starts, (restart + 1) * starts)
    noise = [start_noise(index, x, stream=f"attack/{kind}{steps}", seed=seed, number=number) for number in numbers]
    images = [start_point(x, eps, one, kind="uniform") for one in noise]
    return images[0] if starts == 1 else torch.stack(images)


def start_noise(index: Tensor, x: Images, *, stream: str, seed: int, number: int) -> Images:
    """Noise in [-1,1] for an attack's start of this number, counted over its restarts.

    It depends on each sample's own number: not on its batch, other survivors or the device.
    """
    like = torch.empty(1, *x.shape[1:], dtype=x.dtype)
    rows = [
        draw_noise(like, kind="uniform", generator=draws.generator(seed, stream, number, sample))
        for sample in index.tolist()
    ]
    return torch.cat(rows).to(x.device)


def errs_inside(model: Model, x: Images, x_adv: Images, y: Labels, *, eps: Budget) -> Flags:
    """Where x_adv breaks the model: it errs there, |x_adv - x| <= eps at every pixel, and x_adv is in [0,1]."""
    return (logits_of(model, x_adv).argmax(1) != y) & inside(x_adv, x, eps)


@torch.no_grad()
def logits_of(model: Model, x: Images) -> Logits:
    """The model's finite logits (b, k); anything else that comes out of it is a UserError."""
    logits = model(x)
    if not isinstance(logits, Tensor) or logits.ndim != 2 or len(logits) != len(x) or not logits.is_floating_point():
        found = f"{_dtype(logits)} {tuple(logits.shape)}" if isinstance(logits, Tensor) else type(logits).__name__
        raise UserError(f"the model returned {found} for {len(x)} images; it must return logits ({len(x)}, classes)")
    if not logits.isfinite().all():
        raise UserError("the model returned NaN or infinite logits")
    return logits


def check_model(model: Model, pictures: ImageSet, *, probes: int) -> Logits:
    """The logits of the first few images, once it is plain that they are logits and that every label has one.

    Below them those of the same images with noise: what rounds pixels to 255 levels moves nothing but these.
    """
    index = torch.arange(min(probes, len(pictures.images)))
    x, _ = pictures.take(index)
    noise = start_noise(index, x, stream="probe", seed=DEFAULT_SEED, number=0)
    try:
        logits = logits_of(model, x)
        noisy = logits_of(model, start_point(x, DEFAULT_EPS, noise, kind="uniform"))
    except (MemoryError, UserError):
        raise
    except Exception as error:  # the model's own code: it may fail in any way
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"the model fails on images of shape {tuple(x.shape)}: {first}") from error
    if logits.dtype != torch.float32:
        raise UserError(f"the model's logits are {_dtype(logits)}; fp32 decides: use model.float()")
    for whole in (1, 100):
        if (logits >= 0).all() and torch.allclose(logits.sum(1), logits.new_tensor(whole), atol=0, rtol=1e-4):
            raise UserError(f"the model returns probabilities (rows >= 0 that sum to {whole}); it must return logits")
    check_labels(pictures.labels, logits.shape[1], n=len(pictures.images))
    return torch.cat((logits, noisy))


def check_gradient(model: Model, pictures: ImageSet, *, probes: int) -> None:
    """A UserError where the loss has no gradient at the first few images, or NaN: an attack would stand still."""
    x, y = pictures.take(torch.arange(min(probes, len(pictures))))
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


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _batches(index: Tensor, size: int) -> Iterator[Tensor]:
    return (index[i : i + size] for i in range(0, len(index), size))
