"""`corruptions`: how many test images a model gets right after noise, blur, weather and the like."""

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pixelpart.attacks.autoattack import default_slots
from pixelpart.data import SETS
from pixelpart.data.corruptions import CORRUPTIONS, SEVERITIES
from pixelpart.data.corruptions.source import CorruptionSource, Facts, check_names, open_source
from pixelpart.errors import UserError, choose
from pixelpart.evaluation.checks import sanity
from pixelpart.evaluation.image_set import ImageSet
from pixelpart.evaluation.measure import natural
from pixelpart.evaluation.result import Entry, FlagArray, Outcome
from pixelpart.evaluation.store import ResultKey, ResultStore
from pixelpart.evaluation.target import Target, load_target
from pixelpart.evaluation.validate import check_counts, check_model
from pixelpart.runs import Run
from pixelpart.runtime.precision import ieee_fp32
from pixelpart.types import Flags
from pixelpart.view.borrow import borrowed

FILE = "corruptions.json"
DRAWN = "frost is drawn by a formula, not cut from photographs: not the frost of CIFAR-10-C"
Progress = Callable[[str, int, int, str], None]  # what is being done, how much of it is, of how much, and a note


@dataclass(frozen=True)
class Corrupted:
    """`clean`, and the outcome of every corruption at every severity: `result["fog", 3].accuracy`."""

    clean: Outcome = field(repr=False)
    outcomes: dict[tuple[str, int], Outcome] = field(repr=False)

    def __getitem__(self, cell: tuple[str, int]) -> Outcome:
        return self.outcomes[cell]

    @property
    def names(self) -> list[str]:
        return list(dict.fromkeys(name for name, _ in self.outcomes))

    @property
    def severities(self) -> list[int]:
        return sorted({severity for _, severity in self.outcomes})

    def mean(self, name: str | None = None) -> tuple[float, float, float]:
        """Accuracy averaged over the severities of one corruption, or over all there is, with its 95 % interval."""
        return mean_of(
            np.stack([outcome.right for (other, _), outcome in self.outcomes.items() if name in (None, other)])
        )

    @property
    def entries(self) -> list[Entry]:
        return [outcome.entry for outcome in (self.clean, *self.outcomes.values())]

    def as_json(self) -> dict[str, Any]:
        def told(name: str | None) -> dict[str, Any]:
            mean, *interval = self.mean(name)
            return {"accuracy": mean, "interval": interval}

        return {"mean": told(None), "means": {name: told(name) for name in self.names}, "entries": self.entries}

    def __str__(self) -> str:
        """A line for each corruption, a column for each severity, means with their intervals; then the warnings."""
        wide = max(len(name) for name in (*self.names, "corruption"))
        cells = "".join(f"{severity:>9}" for severity in self.severities)
        lines = [f"{'corruption':<{wide}}{cells}{'mean':>9}"]
        for name in self.names:
            outcomes = [self.outcomes[name, severity] for severity in self.severities]
            star = " *" if any(outcome.warnings for outcome in outcomes) else ""
            row = "".join(f"{outcome.accuracy:>9.2%}" for outcome in outcomes)
            lines.append(f"{name:<{wide}}{row}{_with_interval(*self.mean(name))}{star}")
        blank = " " * 9 * len(self.severities)
        low, high = self.clean.interval
        star = " *" if any(entry["warnings"] for entry in self.entries) else ""
        lines.append(f"{'mean':<{wide}}{blank}{_with_interval(*self.mean())}{star}")
        lines.append(f"{'clean':<{wide}}{blank}{_with_interval(self.clean.accuracy, low, high)}")
        lines.append(f"n = {self.clean.n}, corrupted images: {self.entries[-1]['settings']['source']}")
        warnings = dict.fromkeys(warning for entry in self.entries for warning in entry["warnings"])
        return "\n".join([*lines, *(f"* {warning}" for warning in warnings)])


def corruptions(
    subject: Run | str | Path | nn.Module,
    *,
    severities: Iterable[int] = SEVERITIES,
    names: str | Iterable[str] | None = None,
    images: int | None = None,
    folder: str | Path | None = None,
    frost: str | Path | None = None,
    checkpoint: str = "best",
    batch_size: int | None = None,
    device: torch.device | str | None = None,
    data: str | tuple[Tensor, Tensor] | None = None,
    size: int = 0,
    skip_bad: bool = False,
    root: str | Path | None = None,
    out: str | Path | None = None,
    name: str | None = None,
    say: Callable[[str], None] = lambda line: None,
    progress: Progress = lambda what, done, total, note: None,
) -> Corrupted:
    """The accuracy of a model on test images corrupted in 19 ways at 5 severities (Hendrycks and Dietterich 2019).

    `subject`, `images`, `checkpoint`, `data`, `root`, `out` and `name` are as in `evaluate`. The images come from .npy
    files in `folder`, or in CIFAR-10-C in the data root; else they are made, with the pictures of frost in the folder
    `frost` or those of the package imagecorruptions if it is installed, else with drawn frost. Every outcome is kept in
    corruptions.json as it comes, and reused for the same model and images.
    """
    wanted = list(dict.fromkeys(severities))
    chosen = parse_names(names)
    for severity in wanted:
        if not isinstance(severity, int) or severity not in SEVERITIES:
            raise UserError(f"unknown severity {severity!r}; choose from {', '.join(map(str, SEVERITIES))}")
    if not wanted:
        raise UserError(f"no severities named; choose from {', '.join(map(str, SEVERITIES))}")
    check_counts(images=images, batch_size=batch_size)
    target = load_target(
        subject,
        checkpoint=checkpoint,
        data=data,
        size=size,
        skip_bad=skip_bad,
        images=images,
        device=device,
        root=root,
        out=out,
        name=name,
    )
    source = _source(target, chosen, root=root, folder=folder, frost=frost, say=say)
    batch_size = batch_size or default_slots(target.pictures.device)
    with ieee_fp32(target.pictures.device), borrowed(target.model) as model:
        run = CorruptionRun(model, target, source, batch_size, progress, total=1 + len(chosen) * len(wanted))
        clean = run.outcome("clean", 0)
        cells = [(name, severity) for name in chosen for severity in sorted(wanted)]
        outcomes = {(source.name(name), severity): run.outcome(name, severity) for name, severity in cells}
    return Corrupted(clean, outcomes)


def mean_of(flags: FlagArray) -> tuple[float, float, float]:
    """The mean of flags (versions, n) and both ends of its 95 % interval.

    mean ± z s / sqrt(n), s the deviation between images of the share in which each is right: the versions of one image
    are not independent, so they count as one.
    """
    shares = flags.mean(0)
    n = len(shares)
    half = NormalDist().inv_cdf(0.975) * float(shares.std(ddof=1)) / math.sqrt(n) if n > 1 else 1.0
    mean = float(shares.mean())
    return mean, max(0.0, mean - half), min(1.0, mean + half)


def parse_names(names: str | Iterable[str] | None) -> list[str]:
    """Corruptions by their names, in the order of the table; all if None."""
    if names is None:
        return list(CORRUPTIONS)
    asked = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    for name in asked:
        choose(CORRUPTIONS, name, "corruption")
    if not asked:
        raise UserError(f"no corruptions named; choose from {', '.join(CORRUPTIONS)}")
    return [name for name in CORRUPTIONS if name in asked]


def _source(target: Target, names: list[str], **settings: Any) -> CorruptionSource:
    dataset = target.tags["dataset"]
    x, y = target.pictures.images, target.pictures.labels
    whole = dataset in SETS and len(x) == SETS[dataset].counts["test"]
    source = open_source(x, y, whole=whole, dataset=dataset, **settings)
    check_names(source, names)
    return source


class CorruptionRun:
    """One model and one source of corrupted images; `outcome` measures one corruption at one severity."""

    def __init__(
        self,
        model: nn.Module,
        target: Target,
        source: CorruptionSource,
        batch_size: int,
        progress: Progress,
        *,
        total: int,
    ) -> None:
        self.model, self.target, self.source = model, target, source
        self.batch_size, self.progress = batch_size, progress
        self.store = ResultStore(target, file=FILE)
        self.model_key = ResultKey.of(model, target, check_model(model, target.pictures))
        self.warnings: list[str] | None = None
        self.done, self.total = 0, total * len(target.pictures)

    def outcome(self, name: str, severity: int) -> Outcome:
        """The outcome of one corruption, or of the images as they are (severity 0): kept, or measured now."""
        facts: Facts = self.source.facts(name, severity) if severity else {"source": "clean"}
        called = self.source.name(name) if severity else name
        title = f"{called}-{severity}" if severity else called
        key = self.model_key.under(facts)
        outcome = self.store.find(key, title)
        if outcome is None:
            start, correct = time.perf_counter(), self._measure(name, severity)
            outcome = self.store.add(
                key,
                title,
                correct.numpy(),
                eps=0.0,
                settings={"corruption": called, "severity": severity, "source": facts["source"]},
                seed=facts.get("seed", 0),
                warnings=[*self._model_warnings(), *([DRAWN] if called == "frost-drawn" else [])],
                seconds=time.perf_counter() - start,
            )
        self.done += outcome.n
        self.progress("classifying", self.done, self.total, f"{title} {outcome.accuracy:.2%}")
        return outcome

    def _measure(self, name: str, severity: int) -> Flags:
        pictures = self.target.pictures
        if severity:
            x = self.source.images(name, severity, self.progress)
            pictures = ImageSet(x, pictures.labels, pictures.device)
        return natural(self.model, pictures, batch_size=self.batch_size, report=self._report)

    def _report(self, settled: int, correct: int) -> None:
        self.progress("classifying", self.done + settled, self.total, "")

    def _model_warnings(self) -> list[str]:
        if self.warnings is None:
            self.warnings = [*self.target.warnings, *sanity.model_warnings(self.model, self.target.pictures)]
        return self.warnings


def _with_interval(mean: float, low: float, high: float) -> str:
    return f"{mean:>9.2%}  [{low:.2%}, {high:.2%}]"
