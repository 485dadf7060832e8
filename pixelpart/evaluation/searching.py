"""Which images stay right under searches, AutoAttack's among them: full batches of what still stands, fp32 deciding."""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from pixelpart.attacks.autoattack import all_tries, hunt, samples_for
from pixelpart.attacks.batching import Try
from pixelpart.attacks.search import Search, spread
from pixelpart.errors import unknown
from pixelpart.evaluation.accuracy import logits_of
from pixelpart.evaluation.image_set import ImageSet
from pixelpart.evaluation.journal import Journal
from pixelpart.runtime.precision import PRECISIONS
from pixelpart.types import Flags, Images, Labels, Logits, Model
from pixelpart.view.check import PROBES, agrees, view_for_search

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
    right = right.clone()
    clean = clean_logits(model, pictures, batch_size=slots)
    net, why = trusted_view(model, pictures, search)
    if why:
        say(why)
        used("fp32")

    def take(samples: Tensor) -> tuple[Images, Labels, Tensor]:
        x, y = pictures.take(samples.cpu())
        return x, y, spread(eps, x)

    def judge(x: Images) -> Logits:
        return logits_of(model, x)

    for part, (name, method) in enumerate(parts.items()):
        standing = samples_for(method, net, take, right.nonzero()[:, 0].tolist(), slots=slots)
        if method.blind and not standing:
            continue  # as on most models: there is nothing to tell of it
        fallen = journal.broken(part).intersection(standing)
        tries = all_tries(method, standing, clean.shape[1])
        waiting = [one for one in tries if one[0] not in fallen and (part, *one) not in journal.done]
        progress = Standing(name, total=len(tries), settled=len(tries) - len(waiting), right=right, fallen=fallen)

        def settle(one: Try, broken: bool, *, part: int = part, progress: Standing = progress) -> None:
            journal.settle(part, *one, broken)
            progress.settle(one, broken)
            tell(*progress.news)

        tell(*progress.news)
        hunt(name, method, net, judge, take, clean, waiting, seed=seed, slots=slots, settle=settle, say=say)
        tell(*dataclasses.replace(progress, settled=len(tries)).news)
        right[list(fallen)] = False
        journal.note_time()
    return right


@dataclass
class Standing:
    """How far one part has come: tries settled, and which samples have fallen in it."""

    name: str
    total: int
    settled: int
    right: Flags
    fallen: set[int]

    def settle(self, one: Try, broken: bool) -> None:
        self.settled += 1
        if broken:
            self.fallen.add(one[0])

    @property
    def news(self) -> tuple[str, int, int, float]:
        return self.name, self.settled, self.total, (int(self.right.sum()) - len(self.fallen)) / len(self.right)


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


def trusted_view(model: nn.Module, pictures: ImageSet, search: str) -> tuple[Model, str | None]:
    """The model as it is searched through, and why not as asked, if so.

    A view that does not say of some images what the model says of them is not used.
    """
    dtype = PRECISIONS[search]
    view = view_for_search(model, dtype, pictures.device)
    if view is model:
        return model, None if dtype is None else f"the model cannot be searched through in {search}: fp32 instead"
    x, _ = pictures.take(torch.arange(min(PROBES, len(pictures))))
    if agrees(view, x, logits_of(model, x), dtype):
        return view, None
    return model, f"the model cannot be searched through in {search} and folded: it is used as it is"
