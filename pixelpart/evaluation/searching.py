"""Which images stay right under searches, AutoAttack's among them: full batches of what still stands, fp32 deciding."""

import functools
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from pixelpart.attacks.autoattack import Try, run_searches
from pixelpart.attacks.search import Search, budget_per_sample
from pixelpart.errors import unknown
from pixelpart.evaluation.accuracy import logits_of
from pixelpart.evaluation.image_set import ImageSet
from pixelpart.evaluation.journal import Journal
from pixelpart.runtime.precision import PRECISIONS
from pixelpart.types import Flags, Images, Labels, Logits
from pixelpart.view.check import PROBES, trusted_view

Tell = Callable[[str, int, int, float], None]  # part, tries settled, of how many, share of images that stand


def under_searches(
    model: nn.Module,
    pictures: ImageSet,
    parts: Mapping[str, Search],
    *,
    right: Flags,
    eps: float,
    search: str,
    seed: int,
    slots: int,
    journal: Journal,
    tell: Tell,
    say: Callable[[str], None],
    used: Callable[[str], None] = lambda precision: None,
) -> Flags:
    """Which of the images that are `right` to begin with stay so under all parts, each at what those before left.

    What the journal knows is not done again. `used` is told the precision of the search if it is not the one asked for.
    """
    view, reason = trusted_view(model, pictures.take(torch.arange(min(PROBES, len(pictures))))[0], search)
    if reason:
        say(reason)
        used("fp32")

    def batch_of(samples: Tensor) -> tuple[Images, Labels, Tensor]:
        x, y = pictures.take(samples.cpu())
        return x, y, budget_per_sample(eps, x)

    names = list(parts)
    return run_searches(
        parts,
        view,
        functools.partial(logits_of, model),
        batch_of,
        clean_logits(model, pictures, batch_size=slots),
        right,
        seed=seed,
        slots=slots,
        settled={Try(names[part], *rest): broken for (part, *rest), broken in journal.done.items()},
        on_settled=lambda one, broken: journal.settle(names.index(one.search), one.sample, one.number, broken),
        progress=lambda name, done, total, correct: tell(name, done, total, correct / len(right)),
        say=say,
    )


def choose_search(search: str, device: torch.device) -> str:
    """The precision of the search: "auto" is bf16 on a GPU, where it is several times as fast, and fp32 elsewhere."""
    if search == "auto":
        return "bf16" if device.type == "cuda" else "fp32"
    if search not in PRECISIONS:
        raise unknown("search", search, ("auto", *PRECISIONS))
    return search


def clean_logits(model: nn.Module, pictures: ImageSet, *, batch_size: int) -> Logits:
    """What the model says of all pictures as they are."""
    batches = torch.arange(len(pictures)).split(batch_size)
    return torch.cat([logits_of(model, pictures.take(index)[0]) for index in batches])
